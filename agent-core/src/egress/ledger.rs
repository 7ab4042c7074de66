//! The books of what one guest contacted: bounded, whatever the guest does. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gpunion_protocol::egress::{Contact, Contacts};
use gpunion_protocol::time::WallMs;

/// So many destinations are kept of each kind, let through and refused: the first ones.
const KEPT: usize = 64;

/// Bytes as they go by; counted by whoever moves them.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) up: AtomicU64,
    pub(super) down: AtomicU64,
}

impl Counts {
    fn of(up: u64, down: u64) -> Arc<Self> {
        Arc::new(Self { up: AtomicU64::new(up), down: AtomicU64::new(down) })
    }

    fn read(&self) -> (u64, u64) {
        (self.up.load(Ordering::Relaxed), self.down.load(Ordering::Relaxed))
    }
}

#[derive(Debug)]
pub(super) struct Ledger {
    /// Of the kinds let through (false) and refused (true).
    entries: BTreeMap<(bool, String, u16), Entry>,
    left_out: u64,
    /// Bytes over all destinations.
    total: Arc<Counts>,
}

#[derive(Debug)]
struct Entry {
    counts: Arc<Counts>,
    /// What `counts` was when `last` was set.
    seen: (u64, u64),
    times: u64,
    first: WallMs,
    last: WallMs,
    refused: Option<String>,
}

impl Ledger {
    /// Goes on where an earlier run of the agent stopped.
    pub(super) fn from(contacts: &Contacts) -> Self {
        let entry = |contact: &Contact| Entry {
            counts: Counts::of(contact.up, contact.down),
            seen: (contact.up, contact.down),
            times: contact.times,
            first: contact.first,
            last: contact.last,
            refused: contact.refused.clone(),
        };
        let key = |contact: &Contact| (contact.refused.is_some(), contact.name.clone(), contact.port);
        Self {
            entries: contacts.list.iter().map(|contact| (key(contact), entry(contact))).collect(),
            left_out: contacts.left_out,
            total: Counts::of(contacts.up, contacts.down),
        }
    }

    pub(super) fn total(&self) -> Arc<Counts> {
        Arc::clone(&self.total)
    }

    /// A connection was made; its bytes are to be counted there.
    pub(super) fn connected(&mut self, name: &str, port: u16, now: WallMs) -> Arc<Counts> {
        self.enter(name, port, None, now).unwrap_or_default()
    }

    pub(super) fn refused(&mut self, name: &str, port: u16, why: String, now: WallMs) {
        let _counts = self.enter(name, port, Some(why), now);
    }

    fn enter(&mut self, name: &str, port: u16, refused: Option<String>, now: WallMs) -> Option<Arc<Counts>> {
        let key = (refused.is_some(), name.to_owned(), port);
        let room = self.entries.keys().filter(|known| known.0 == key.0).count() < KEPT;
        if !room && !self.entries.contains_key(&key) {
            self.left_out += 1;
            return None;
        }
        let entry = self.entries.entry(key).or_insert_with(|| Entry {
            counts: Arc::default(),
            seen: (0, 0),
            times: 0,
            first: now,
            last: now,
            refused: None,
        });
        entry.times += 1;
        entry.last = now;
        entry.refused = refused;
        Some(Arc::clone(&entry.counts))
    }

    pub(super) fn contacts(&mut self, now: WallMs) -> Contacts {
        let list = self.entries.iter_mut().map(|((_, name, port), entry)| {
            let read = entry.counts.read();
            if read != entry.seen {
                (entry.seen, entry.last) = (read, now);
            }
            Contact {
                name: name.clone(),
                port: *port,
                up: read.0,
                down: read.1,
                times: entry.times,
                first: entry.first,
                last: entry.last,
                refused: entry.refused.clone(),
            }
        });
        let (up, down) = self.total.read();
        Contacts { list: list.collect(), left_out: self.left_out, up, down }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_books_are_bounded_and_what_is_refused_does_not_crowd_out_what_is_reached() {
        let mut ledger = Ledger::from(&Contacts::default());
        for n in 0..10_000u32 {
            ledger.refused(&format!("n{n}.example.org"), 443, "no".to_owned(), WallMs(1));
        }
        let counts = ledger.connected("github.com", 443, WallMs(2));
        counts.down.fetch_add(7, Ordering::Relaxed);
        let contacts = ledger.contacts(WallMs(9));
        assert_eq!((contacts.list.len(), contacts.left_out), (KEPT + 1, 10_000 - KEPT as u64));
        let reached = &contacts.list[0];
        assert_eq!((reached.name.as_str(), reached.down, reached.last), ("github.com", 7, WallMs(9)));
    }

    #[test]
    fn an_agent_that_is_back_goes_on_with_the_books() {
        let mut ledger = Ledger::from(&Contacts::default());
        ledger.connected("github.com", 443, WallMs(2)).up.fetch_add(3, Ordering::Relaxed);
        ledger.refused("github.com", 22, "not asked".to_owned(), WallMs(3));
        let first = ledger.contacts(WallMs(4));
        let mut ledger = Ledger::from(&first);
        assert_eq!(ledger.contacts(WallMs(5)), first);
        ledger.connected("github.com", 443, WallMs(6)).up.fetch_add(4, Ordering::Relaxed);
        let contact = ledger.contacts(WallMs(7)).list.remove(0);
        assert_eq!((contact.up, contact.times, contact.first, contact.last), (7, 2, WallMs(2), WallMs(7)));
    }
}
