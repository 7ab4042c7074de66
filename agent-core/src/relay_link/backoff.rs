//! How long to wait before dialling again. Pure: randomness is passed in.

use std::time::Duration;

const FIRST: u64 = 500;
/// Half a minute at most: a relay that comes back after a weekend is found soon (F70).
const LAST: u64 = 30_000;

#[derive(Debug, Clone, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after one more failure: doubling, and anywhere in the upper half of it, so that a
    /// group's agents don't all knock at once when the relay is back.
    pub fn after_failure(&mut self, random: u64) -> Duration {
        let whole = FIRST.saturating_mul(1 << self.failures.min(16)).min(LAST);
        self.failures = self.failures.saturating_add(1);
        let half = whole / 2;
        Duration::from_millis(half + random % (half + 1))
    }

    pub fn succeeded(&mut self) {
        self.failures = 0;
    }
}

/// Random bits for a wait; no secret depends on them.
pub fn jitter() -> u64 {
    getrandom::u64().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn f70_waits_grow_and_never_pass_half_a_minute(randoms in proptest::collection::vec(any::<u64>(), 1..200)) {
            let mut backoff = Backoff::default();
            for (n, random) in randoms.into_iter().enumerate() {
                let whole = FIRST.saturating_mul(1 << n.min(16)).min(LAST);
                let wait = backoff.after_failure(random).as_millis();
                prop_assert!(wait >= u128::from(whole / 2) && wait <= u128::from(whole));
            }
            backoff.succeeded();
            prop_assert!(backoff.after_failure(u64::MAX).as_millis() <= u128::from(FIRST));
        }
    }
}
