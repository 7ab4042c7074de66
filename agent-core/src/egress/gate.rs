//! The gate of one guest's egress: open while its lease lasts, shut for good at its end.
//!
//! Every byte passes it, so a machine that wakes from sleep lets nothing through that is over; and
//! what is connected is cut when it shuts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use gpunion_protocol::time::BootMs;
use tokio_util::sync::CancellationToken;

use crate::config::clock;

#[derive(Debug, Default)]
pub(super) struct Gate {
    until: AtomicU64,
    /// Cancelled for what was connected until now, and then a new one.
    connected: Mutex<CancellationToken>,
    over: CancellationToken,
}

impl Gate {
    pub(super) fn open_until(&self, at: BootMs) {
        self.until.store(at.0, Ordering::Relaxed);
        self.look();
    }

    pub(super) fn until(&self) -> BootMs {
        BootMs(self.until.load(Ordering::Relaxed))
    }

    pub(super) fn is_open(&self) -> bool {
        !self.over.is_cancelled() && clock::boot() < self.until()
    }

    /// Cuts what is connected when the time is over; to be called again and again.
    pub(super) fn look(&self) {
        if !self.is_open() {
            let mut connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *connected).cancel();
        }
    }

    /// Shuts it for good.
    pub(super) fn shut(&self) {
        self.over.cancel();
        self.look();
    }

    /// Cancelled when a connection that is made now must be cut.
    pub(super) fn pass(&self) -> CancellationToken {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner).child_token()
    }

    pub(super) async fn is_over(&self) {
        self.over.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use gpunion_protocol::time::Millis;

    use super::*;

    #[test]
    fn it_is_shut_until_a_lease_is_known_and_cuts_what_passed_when_that_ends() {
        let gate = Gate::default();
        assert!(!gate.is_open());
        gate.open_until(clock::boot() + Millis::from_secs(60));
        let pass = gate.pass();
        gate.look();
        assert!(gate.is_open() && !pass.is_cancelled());
        gate.open_until(clock::boot());
        assert!(!gate.is_open() && pass.is_cancelled());
        gate.open_until(clock::boot() + Millis::from_secs(60));
        let next = gate.pass();
        assert!(gate.is_open() && !next.is_cancelled(), "a renewal opens it again");
        gate.shut();
        gate.open_until(clock::boot() + Millis::from_secs(60));
        assert!(!gate.is_open() && next.is_cancelled(), "the end is the end");
    }
}
