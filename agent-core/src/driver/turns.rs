//! Whose turn it is: the owner first, then what inits and operations say, then the rest. Decides
//! nothing of what is said.
//!
//! Nobody is heard without end while others wait: a guest whose init talks all the time must not
//! keep the relay, the GPUs or the commits from being heard.

use std::time::Duration;

use gpunion_protocol::gpu::GpuView;
use tokio::sync::{mpsc, watch};
use tokio::time::Interval;

use crate::provider::call::OwnerCall;
use crate::provider::event::Event;
use crate::relay_link::session::SessionEvent;

/// Events in a row, before everybody else has been asked once.
const IN_A_ROW: u32 = 32;

pub(super) struct Ears<'a, A> {
    pub(super) calls: &'a mut mpsc::Receiver<OwnerCall>,
    pub(super) events: &'a mut mpsc::Receiver<Event>,
    pub(super) session: &'a mut mpsc::Receiver<SessionEvent>,
    pub(super) gpus: &'a mut watch::Receiver<GpuView>,
    pub(super) around: &'a mut watch::Receiver<A>,
    pub(super) second: &'a mut Interval,
    /// When the machine wants to be woken.
    pub(super) wake: Duration,
}

#[derive(Debug)]
pub(super) enum Turn<T> {
    Call(OwnerCall),
    Event(Event),
    Session(SessionEvent),
    Committed(T),
    Gpus,
    Around,
    Second,
    Timeout,
}

/// Counts events in a row.
#[derive(Debug, Default)]
pub(super) struct Turns(u32);

impl Turns {
    pub(super) async fn next<T, A>(
        &mut self,
        ears: Ears<'_, A>,
        committed: impl Future<Output = T>,
    ) -> Turn<T> {
        let Ears { calls, events, session, gpus, around, second, wake } = ears;
        // Those that come so often at most stand before the relay, which may say much.
        let rest = async {
            tokio::select! {
                biased;
                done = committed => Turn::Committed(done),
                _ = second.tick() => Turn::Second,
                Ok(()) = gpus.changed() => Turn::Gpus,
                Ok(()) = around.changed() => Turn::Around,
                Some(event) = session.recv() => Turn::Session(event),
                () = tokio::time::sleep(wake) => Turn::Timeout,
            }
        };
        let turn = if self.0 < IN_A_ROW {
            tokio::select! {
                biased;
                Some(call) = calls.recv() => Turn::Call(call),
                Some(event) = events.recv() => Turn::Event(event),
                turn = rest => turn,
            }
        } else {
            tokio::select! {
                biased;
                Some(call) = calls.recv() => Turn::Call(call),
                turn = rest => turn,
                Some(event) = events.recv() => Turn::Event(event),
            }
        };
        match &turn {
            Turn::Event(_) if self.0 < IN_A_ROW => self.0 += 1,
            Turn::Call(_) => {}
            Turn::Event(_)
            | Turn::Session(_)
            | Turn::Committed(_)
            | Turn::Gpus
            | Turn::Around
            | Turn::Second
            | Turn::Timeout => self.0 = 0,
        }
        turn
    }
}

#[cfg(test)]
mod tests {
    use gpunion_protocol::gpu::GpuView;
    use tokio::sync::oneshot;

    use super::*;

    /// A guest whose init talks without end, a relay that does too: the owner is next, and GPUs,
    /// commits and the relay are heard within a few turns.
    #[tokio::test]
    async fn a_guest_that_never_falls_silent_starves_nobody() {
        let (owner, mut calls) = mpsc::channel(8);
        let (say, mut events) = mpsc::channel(1024);
        let (relay, mut session) = mpsc::channel(1024);
        let (gpu, mut gpus) = watch::channel(GpuView::none("none"));
        let (_tell, mut around) = watch::channel(());
        let mut second = tokio::time::interval(Duration::from_secs(3600));
        second.tick().await;
        for _ in 0..1024 {
            say.try_send(Event::Timeout).unwrap();
            relay.try_send(SessionEvent::Down { why: String::new() }).unwrap();
        }
        gpu.send_replace(GpuView::none("other"));
        let mut turns = Turns::default();
        let mut heard = Vec::new();
        let mut next = async |committed: bool| {
            let ears = Ears {
                calls: &mut calls,
                events: &mut events,
                session: &mut session,
                gpus: &mut gpus,
                around: &mut around,
                second: &mut second,
                wake: Duration::from_secs(3600),
            };
            let done = async {
                if !committed {
                    std::future::pending::<()>().await;
                }
            };
            turns.next(ears, done).await
        };
        for _ in 0..3 * (IN_A_ROW + 1) {
            heard.push(next(!heard.iter().any(|turn| matches!(turn, Turn::Committed(())))).await);
        }
        let at = |pick: fn(&Turn<()>) -> bool| heard.iter().position(pick).unwrap();
        assert!(at(|turn| matches!(turn, Turn::Event(_))) == 0, "inits come first");
        assert_eq!(at(|turn| matches!(turn, Turn::Committed(()))), IN_A_ROW as usize);
        assert!(at(|turn| matches!(turn, Turn::Gpus)) < 2 * (IN_A_ROW as usize + 1));
        assert!(at(|turn| matches!(turn, Turn::Session(_))) < 3 * (IN_A_ROW as usize + 1));
        owner.try_send(OwnerCall::History(oneshot::channel().0)).unwrap();
        assert!(matches!(next(false).await, Turn::Call(_)), "the owner waits for nobody");
    }
}
