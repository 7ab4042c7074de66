//! The only place of the relay that reads a clock.
//!
//! Boot time runs on while the machine sleeps and never jumps: leases are counted in it. It means
//! nothing after a restart, so it is never saved: leases start anew then. Wall time is for people.

use gpunion_protocol::time::{BootMs, Now, WallMs};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Both readings, now.
pub(crate) fn now() -> Now {
    let boot = millis(clock_gettime(ClockId::Boottime));
    let wall = millis(clock_gettime(ClockId::Realtime));
    Now { boot: BootMs(boot.unsigned_abs()), wall: WallMs(wall) }
}

fn millis(time: Timespec) -> i64 {
    time.tv_sec.saturating_mul(1_000).saturating_add(time.tv_nsec / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_readings_are_plausible() {
        let first = now();
        let second = now();
        assert!(first.boot.0 > 0 && second.boot >= first.boot);
        assert!(first.wall.0 > 1_700_000_000_000, "wall time is in milliseconds since 1970");
    }
}
