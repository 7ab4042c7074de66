//! The owner's rules: what narrows, for a while, what the owner's wish lends.
//!
//! Pure: settings and facts in, verdicts out. A rule never lends anything by itself (the wish does),
//! and never changes the wish; when it says nothing more against it, what the wish lends is lent.

pub mod band;
pub mod hours;
pub mod own_work;
pub mod settings;

use gpunion_protocol::time::Millis;
use gpunion_protocol::units::Bytes;
use serde::{Deserialize, Serialize};

use band::Band;
use hours::Hours;
use own_work::Yields;

/// What the owner has set; kept with the wish, and everything has a default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rules {
    pub hours: Hours,
    /// IANA name of the zone that the hours are of; set with them.
    pub zone: Option<String>,
    /// What a guest does when its owner's own work comes to its GPU.
    pub own_work: Yields,
    /// Own work is what holds this much of a GPU,
    pub own_memory: Bytes,
    /// or keeps it busy for this percentage of the time,
    pub own_busy: u32,
    /// for so long.
    pub own_after: Millis,
    /// A GPU is lent again when it has been free of own work for so long.
    pub own_free: Millis,
    /// Lend on battery too.
    pub on_battery: bool,
    /// Degrees Celsius of a GPU.
    pub temperature: Option<Band>,
    /// Watts of a GPU.
    pub power: Option<Band>,
    /// A second, of all that guests save together.
    pub upload: Option<Bytes>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            hours: Hours::default(),
            zone: None,
            own_work: Yields::Leaves,
            own_memory: Bytes(1 << 30),
            own_busy: 20,
            own_after: Millis::from_secs(10),
            own_free: Millis::from_secs(300),
            on_battery: false,
            temperature: None,
            power: None,
            upload: None,
        }
    }
}

/// What a rule says of the machine or of a GPU: allowed, or not, with its sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Says {
    pub allows: bool,
    pub reason: String,
}

impl Says {
    pub fn yes(reason: impl Into<String>) -> Self {
        Self { allows: true, reason: reason.into() }
    }

    pub fn no(reason: impl Into<String>) -> Self {
        Self { allows: false, reason: reason.into() }
    }
}
