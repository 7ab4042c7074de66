//! When the program's word "I have saved" is passed on. Pure.
//!
//! A guest may create the file in a loop, and the agent acts on each word: so only a few a second
//! are told. The newest is never lost: it is told when its time has come, and before anything
//! that is judged by it (how the guest stands when it is stopped, how its program ended).

use crate::events::BootUs;

/// Microseconds between two.
pub(crate) const EVERY: u64 = 250_000;

#[derive(Debug)]
pub(crate) struct Saved {
    newest: Option<i64>,
    waits: bool,
    /// From when on the next one may be told.
    free_at: BootUs,
}

impl Saved {
    pub(crate) fn new(now: BootUs) -> Self {
        Self { newest: None, waits: false, free_at: now }
    }

    pub(crate) fn seen(&mut self, at_ns: i64) {
        self.newest = Some(at_ns);
        self.waits = true;
    }

    /// When the one that waits is to be told.
    pub(crate) fn due_at(&self) -> Option<BootUs> {
        self.waits.then_some(self.free_at)
    }

    /// The one that waits, when it may be told now.
    pub(crate) fn due(&mut self, now: BootUs) -> Option<i64> {
        if self.free_at <= now { self.at_once(now) } else { None }
    }

    /// The one that waits, whatever the time.
    pub(crate) fn at_once(&mut self, now: BootUs) -> Option<i64> {
        if !std::mem::take(&mut self.waits) {
            return None;
        }
        self.free_at = now.plus(EVERY);
        self.newest
    }

    /// For an agent that knows nothing.
    pub(crate) fn again(&mut self) -> Option<i64> {
        self.waits = false;
        self.newest
    }
}
