//! The one place of this half that reads clocks. Decisions get the time passed in.

use gpunion_protocol::time::{BootMs, Now, WallMs};

/// Milliseconds since the Unix epoch, for display and for the time part of ids.
pub fn wall() -> WallMs {
    WallMs(jiff::Timestamp::now().as_millisecond())
}

/// CLOCK_BOOTTIME: runs on through sleep, never jumps.
pub fn boot() -> BootMs {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    let millis = u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000;
    BootMs(secs.saturating_mul(1_000).saturating_add(millis))
}

pub fn now() -> Now {
    Now { boot: boot(), wall: wall() }
}
