//! What happened lately, for readers of `GET /v1/events`: a bounded ring, numbered.
//!
//! A reader that fell behind, or comes back from before a restart, is told `Missed` and fetches
//! everything anew; nobody waits for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use gpunion_protocol::http::{Event, Role};
use gpunion_protocol::ids::Epoch;
use tokio::sync::watch;

use crate::broker::{Audience, Caller};

/// Events that a reader takes at once.
const READ_MAX: usize = 256;

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Feed(Arc<Inner>);

struct Inner {
    epoch: Epoch,
    max: usize,
    ring: Mutex<Ring>,
    news: watch::Sender<()>,
    /// Changes when a device was shut out: readers check whether they still may read.
    doors: watch::Sender<()>,
}

#[derive(Default)]
struct Ring {
    /// The number of the event at the front.
    first: u64,
    events: VecDeque<(Audience, Event)>,
}

impl Ring {
    fn end(&self) -> u64 {
        self.first + self.events.len() as u64
    }
}

impl Feed {
    pub(crate) fn new(epoch: Epoch, max: usize) -> Self {
        Self(Arc::new(Inner {
            epoch,
            max: max.max(1),
            ring: Mutex::default(),
            news: watch::Sender::new(()),
            doors: watch::Sender::new(()),
        }))
    }

    pub(crate) fn push(&self, audience: Audience, event: Event) {
        let mut ring = self.ring();
        ring.events.push_back((audience, event));
        if ring.events.len() > self.0.max {
            ring.events.pop_front();
            ring.first += 1;
        }
        drop(ring);
        self.0.news.send_replace(());
    }

    pub(crate) fn shut_out(&self) {
        self.0.doors.send_replace(());
    }

    /// Changes at each `shut_out`.
    pub(crate) fn doors(&self) -> watch::Receiver<()> {
        self.0.doors.subscribe()
    }

    /// A reader from now on, or from after the event of this id on.
    pub(crate) fn reader(&self, caller: &Caller, after: Option<&str>) -> Reader {
        let news = self.0.news.subscribe();
        let end = self.ring().end();
        let next = match after.map(|id| self.number(id)) {
            None => Some(end),
            Some(Some(number)) if number < end => Some(number + 1),
            Some(_) => None,
        };
        Reader { feed: self.clone(), caller: caller.clone(), next, news }
    }

    /// An id is `EPOCH-NUMBER`: numbers start anew with each start of the relay.
    fn number(&self, id: &str) -> Option<u64> {
        let (epoch, number) = id.split_once('-')?;
        (epoch.parse() == Ok(self.0.epoch.0)).then(|| number.parse().ok())?
    }

    fn ring(&self) -> std::sync::MutexGuard<'_, Ring> {
        self.0.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One reader's place; `next: None` has missed events.
pub(crate) struct Reader {
    feed: Feed,
    caller: Caller,
    next: Option<u64>,
    news: watch::Receiver<()>,
}

impl Reader {
    /// Those events since the last read that this reader may see, with their ids.
    pub(crate) fn read(&mut self) -> Vec<(String, Event)> {
        self.news.mark_unchanged();
        let epoch = self.feed.0.epoch.0;
        let feed = self.feed.clone();
        let ring = feed.ring();
        let Some(from) = self.next.and_then(|next| next.checked_sub(ring.first)) else {
            let end = ring.end();
            self.next = Some(end);
            // The id is the last event's before what comes next; a ring that is empty has none.
            return vec![(format!("{epoch}-{}", end.wrapping_sub(1)), Event::Missed)];
        };
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let mut out = Vec::new();
        for (number, (audience, event)) in (ring.first..).zip(&ring.events).skip(from).take(READ_MAX) {
            self.next = Some(number + 1);
            if self.may_see(audience) {
                out.push((format!("{epoch}-{number}"), event.clone()));
            }
        }
        if self.next < Some(ring.end()) {
            self.news.mark_changed();
        }
        out
    }

    /// Returns when there may be more.
    pub(crate) async fn news(&mut self) {
        // The sender lives in the feed that this reader holds.
        let _ = self.news.changed().await;
    }

    fn may_see(&self, audience: &Audience) -> bool {
        match audience {
            Audience::Everybody => true,
            Audience::Member(member) => *member == self.caller.member || self.caller.role == Role::Operator,
        }
    }
}

#[cfg(test)]
mod tests {
    use gpunion_protocol::ids::{DeviceId, JobId, MemberId};
    use gpunion_protocol::time::WallMs;

    use super::*;

    fn member(n: u8) -> MemberId {
        MemberId::new(1, [n; 10])
    }

    fn caller(n: u8, role: Role) -> Caller {
        Caller { device: DeviceId::new(1, [n; 10]), member: member(n), role }
    }

    fn note(text: &str) -> Event {
        Event::Note { job: JobId::new(1, [0; 10]), text: text.to_owned(), at: WallMs(0) }
    }

    fn texts(read: &[(String, Event)]) -> Vec<String> {
        read.iter()
            .map(|(_, event)| match event {
                Event::Note { text, .. } => text.clone(),
                Event::Missed => "missed".to_owned(),
                Event::Job { .. } | Event::Group => "other".to_owned(),
            })
            .collect()
    }

    #[test]
    fn readers_see_their_own_and_resume_where_they_were() {
        let feed = Feed::new(Epoch(3), 100);
        let mut ada = feed.reader(&caller(1, Role::Member), None);
        let mut op = feed.reader(&caller(9, Role::Operator), None);
        for (n, text) in [(1, "a"), (2, "b"), (1, "c")] {
            feed.push(Audience::Member(member(n)), note(text));
        }
        let seen = ada.read();
        assert_eq!(texts(&seen), ["a", "c"]);
        assert_eq!(texts(&op.read()), ["a", "b", "c"]);
        let mut back = feed.reader(&caller(1, Role::Member), Some(&seen[0].0));
        assert_eq!(texts(&back.read()), ["c"]);
        assert_eq!(texts(&ada.read()), [""; 0]);
    }

    #[test]
    fn who_fell_behind_or_comes_from_an_earlier_start_missed_some() {
        let feed = Feed::new(Epoch(3), 2);
        let mut slow = feed.reader(&caller(1, Role::Member), None);
        for text in ["a", "b", "c"] {
            feed.push(Audience::Everybody, note(text));
        }
        assert_eq!(texts(&slow.read()), ["missed"]);
        feed.push(Audience::Everybody, note("d"));
        assert_eq!(texts(&slow.read()), ["d"]);
        for id in ["2-1", "3-99", "nonsense", ""] {
            let mut back = feed.reader(&caller(1, Role::Member), Some(id));
            let first = back.read();
            assert_eq!(texts(&first), ["missed"], "{id:?}");
            let mut again = feed.reader(&caller(1, Role::Member), Some(&first[0].0));
            assert_eq!(texts(&again.read()), [""; 0], "the id of Missed resumes after it");
        }
    }
}
