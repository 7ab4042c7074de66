//! How often to ask: each second, ten times a second while a reclaim waits for an answer, and
//! ever more seldom where asking fails (F26).

use gpunion_protocol::time::Millis;

pub(super) const NORMAL: Millis = Millis(1_000);
pub(super) const FAST: Millis = Millis(100);
const LONGEST: Millis = Millis(60_000);

/// Failures in a row, and with them the time until the next try.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct BackOff {
    failures: u32,
}

impl BackOff {
    pub(super) fn failed(&mut self) -> Millis {
        let wait = Millis(NORMAL.0 << self.failures.min(6)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        wait
    }

    pub(super) fn worked(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f26_backs_off_to_a_minute_and_forgets_on_success() {
        let mut back_off = BackOff::default();
        let waits: Vec<u64> = (0..9).map(|_| back_off.failed().0 / 1_000).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        back_off.worked();
        assert_eq!(back_off.failed(), NORMAL);
    }
}
