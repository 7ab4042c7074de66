//! How far a preparation has come, in words for people: the member who waits, the owner whose
//! network it is. Told now and then, and never waited for.

use gpunion_protocol::ids::AttemptRef;
use gpunion_protocol::time::{BootMs, Millis};
use gpunion_protocol::units::Bytes;
use tokio::sync::mpsc;

use crate::config::clock;
use crate::provider::event::Event;

const EACH: Millis = Millis(500);

/// Of one operation.
#[derive(Debug, Clone)]
pub(super) struct Teller {
    attempt: AttemptRef,
    events: mpsc::Sender<Event>,
    last: Option<BootMs>,
}

impl Teller {
    pub(super) fn new(attempt: AttemptRef, events: mpsc::Sender<Event>) -> Self {
        Self { attempt, events, last: None }
    }

    /// `doing` is what is done; bytes so far, of all where they are known.
    pub(super) fn tell(&mut self, doing: &str, done: u64, total: Option<u64>) {
        let now = clock::boot();
        if self.last.is_some_and(|last| now - last < EACH) {
            return;
        }
        self.last = Some(now);
        let note = match total {
            Some(total) => format!("{doing}: {} of {}", Bytes(done), Bytes(total)),
            None => format!("{doing}: {}", Bytes(done)),
        };
        // A machine that is behind has better things to hear.
        let _ = self.events.try_send(Event::Progress { attempt: self.attempt.clone(), note });
    }
}

#[cfg(test)]
mod tests {
    use gpunion_protocol::ids::{AttemptNo, Epoch, JobId, Token};

    use super::*;

    #[test]
    fn progress_is_told_now_and_then_and_nobody_waits_for_its_listener() {
        let token = Token { epoch: Epoch(1), attempt: AttemptNo(1) };
        let attempt = AttemptRef { job: JobId::new(1, [0; 10]), token };
        let (events, mut heard) = mpsc::channel(1);
        let mut teller = Teller::new(attempt.clone(), events);
        for done in 0..1_000 {
            teller.tell("pulling the image", done << 20, Some(2_000 << 20));
        }
        let note = "pulling the image: 0 B of 2.0 GiB".to_owned();
        assert_eq!(heard.try_recv().unwrap(), Event::Progress { attempt, note });
        assert!(heard.try_recv().is_err(), "a thousand words in no time are one");
        teller.last = None;
        teller.tell("a", 1, None);
        teller.last = None;
        teller.tell("the queue is full", 2, None);
        assert!(matches!(heard.try_recv(), Ok(Event::Progress { note, .. }) if note == "a: 1 B"));
    }
}
