//! What one machine's clocks show at an instant of the world: boot time that starts anew with each
//! boot and runs a little fast or slow, wall time that is off and may be stepped at any moment.
//! Nobody but the world knows its true time.

use gpunion_protocol::time::{BootMs, Now, WallMs};

/// Wall time of the world's first instant.
const EPOCH: i64 = 1_764_000_000_000;

#[derive(Debug, Clone)]
pub(super) struct Clock {
    /// World time of the last boot, milliseconds.
    booted: u64,
    /// Parts in a million that the clock runs too fast.
    drift: i64,
    /// Milliseconds that wall time is off.
    pub(super) wall_off: i64,
}

impl Clock {
    /// Booted `uptime` before the world began.
    pub(super) fn new(drift: i64, wall_off: i64) -> Self {
        Self { booted: 0, drift, wall_off }
    }

    pub(super) fn boot(&mut self, at: u64) {
        self.booted = at;
    }

    pub(super) fn now(&self, at: u64) -> Now {
        Now {
            boot: BootMs(1_000 + self.run(at.saturating_sub(self.booted), self.drift)),
            wall: WallMs(EPOCH + self.wall_off + at as i64),
        }
    }

    /// The first instant of the world at which this machine's boot time is at least `boot`.
    pub(super) fn world(&self, boot: BootMs) -> u64 {
        let since = boot.0.saturating_sub(1_000);
        if since > u64::MAX / 4_000_000 {
            return u64::MAX;
        }
        let mut at = self.booted + self.run(since, -self.drift).saturating_sub(2);
        while self.now(at).boot < boot {
            at += 1;
        }
        at
    }

    fn run(&self, length: u64, ppm: i64) -> u64 {
        let extra = i128::from(length) * i128::from(ppm) / 1_000_000;
        (i128::from(length) + extra).max(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_on_a_machine_is_found_again_in_the_world() {
        for drift in [-500, 0, 500] {
            let mut clock = Clock::new(drift, -77);
            clock.boot(123_456);
            for at in [123_456, 200_000, 9_999_999] {
                let boot = clock.now(at).boot;
                let found = clock.world(boot);
                assert!(found <= at && clock.now(found).boot >= boot, "{drift} {at} {found}");
            }
        }
    }
}
