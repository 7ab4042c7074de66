//! How fast what guests save leaves this machine: no faster, pack by pack, than its owner allows.
//!
//! One line for all of them. A pack goes out as fast as the network takes it, and holds the line for as
//! long as it would take at the owner's rate. The member's own uploads are not held up here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use gpunion_protocol::time::{BootMs, Millis};

use crate::config::clock;

/// A limit that is taken away is noticed after so long.
const LOOK: Millis = Millis(500);

#[derive(Debug, Default)]
pub(super) struct UploadPace {
    /// Bytes a second; 0: no limit.
    most: AtomicU64,
    free_at: Mutex<BootMs>,
}

impl UploadPace {
    pub(super) fn set(&self, most: Option<u64>) {
        let most = most.unwrap_or(0);
        if self.most.swap(most, Ordering::Relaxed) != most {
            *self.free_at.lock().unwrap_or_else(PoisonError::into_inner) = BootMs(0);
        }
    }

    /// Until so many bytes may go.
    pub(super) async fn wait_for(&self, bytes: usize) {
        let most = self.most.load(Ordering::Relaxed);
        let at = self.turn(bytes as u64, most, clock::boot());
        while self.most.load(Ordering::Relaxed) == most {
            let left = at - clock::boot();
            if left == Millis(0) {
                return;
            }
            tokio::time::sleep(left.min(LOOK).as_std()).await;
        }
    }

    fn turn(&self, bytes: u64, most: u64, now: BootMs) -> BootMs {
        if most == 0 {
            return now;
        }
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        let at = now.max(*free_at);
        *free_at = at + Millis(bytes.saturating_mul(1_000) / most);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_follow_each_other_at_the_owners_rate() {
        let pace = UploadPace::default();
        let at = |bytes, now| pace.turn(bytes, 1_000, BootMs(now)).0;
        assert_eq!([at(5_000, 0), at(2_000, 0), at(1_000, 100)], [0, 5_000, 7_000]);
        assert_eq!(at(1_000, 20_000), 20_000, "a pause is not made up for");
        assert_eq!(pace.turn(1 << 40, 0, BootMs(20_001)), BootMs(20_001), "no limit");
    }

    #[tokio::test]
    async fn a_limit_that_is_taken_away_holds_up_nobody() {
        let pace = UploadPace::default();
        pace.set(Some(1));
        pace.wait_for(1 << 20).await;
        let waits = pace.wait_for(1);
        tokio::pin!(waits);
        assert!(futures_util::poll!(waits.as_mut()).is_pending());
        pace.set(None);
        waits.await;
    }
}
