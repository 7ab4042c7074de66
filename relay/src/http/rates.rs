//! How often one address may try to join. A code has 128 random bits and can't be guessed; this
//! only keeps a loop somewhere from filling the queue.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use gpunion_protocol::time::{BootMs, Millis};

/// One more try is given in this time.
const REFILL: Millis = Millis(2_000);
/// Addresses remembered; when there are more, the one that waited longest is forgotten.
const ADDRESSES: usize = 4_096;

pub(crate) struct Rates {
    burst: u32,
    /// When each address will have all its tries again.
    full_at: Mutex<BTreeMap<IpAddr, BootMs>>,
}

impl Rates {
    pub(crate) fn new(burst: u32) -> Self {
        Self { burst: burst.max(1), full_at: Mutex::default() }
    }

    /// Takes one try; false when there is none.
    pub(crate) fn take(&self, address: IpAddr, now: BootMs) -> bool {
        let mut all = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, full_at| *full_at > now);
        let full_at = all.get(&address).copied().unwrap_or(now) + REFILL;
        if full_at - now > Millis(REFILL.0.saturating_mul(self.burst.into())) {
            return false;
        }
        if all.len() >= ADDRESSES {
            let oldest = all.iter().min_by_key(|(_, at)| **at).map(|(address, _)| *address);
            oldest.and_then(|oldest| all.remove(&oldest));
        }
        all.insert(address, full_at);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_run_out_and_come_back_each_address_for_itself() {
        let rates = Rates::new(3);
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let now = BootMs(1_000_000);
        assert_eq!([(); 4].map(|()| rates.take(a, now)), [true, true, true, false]);
        assert!(rates.take(b, now));
        assert!(!rates.take(a, now + Millis(1_999)));
        assert!(rates.take(a, now + Millis(2_000)));
        assert!(!rates.take(a, now + Millis(2_000)));
    }
}
