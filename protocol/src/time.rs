//! The two readings that decisions may use, passed in from outside.
//!
//! Boot time runs on through sleep and never jumps: leases and time-outs use it. Wall time is
//! for people and for the owner's hours only; it is never compared between machines.

use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

/// Milliseconds of CLOCK_BOOTTIME on one machine, valid for one boot of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootMs(pub u64);

/// A length of time in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub u64);

/// Milliseconds since the Unix epoch, for display and the owner's hours only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WallMs(pub i64);

/// One instant as a machine may see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Now {
    pub boot: BootMs,
    pub wall: WallMs,
}

impl Millis {
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000))
    }

    pub const fn as_std(self) -> std::time::Duration {
        std::time::Duration::from_millis(self.0)
    }

    /// Seconds with their fraction, for display.
    pub fn secs(self) -> f64 {
        self.0 as f64 / 1_000.0
    }
}

impl Add<Millis> for BootMs {
    type Output = BootMs;

    fn add(self, rhs: Millis) -> BootMs {
        BootMs(self.0.saturating_add(rhs.0))
    }
}

/// The time since `rhs`, zero when `rhs` is later.
impl Sub<BootMs> for BootMs {
    type Output = Millis;

    fn sub(self, rhs: BootMs) -> Millis {
        Millis(self.0.saturating_sub(rhs.0))
    }
}

impl Add<Millis> for Millis {
    type Output = Millis;

    fn add(self, rhs: Millis) -> Millis {
        Millis(self.0.saturating_add(rhs.0))
    }
}
