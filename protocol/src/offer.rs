//! What a provider lends now.

use serde::{Deserialize, Serialize};

use crate::egress::EgressRule;
use crate::ids::GpuUuid;
use crate::time::Millis;
use crate::units::Bytes;

/// An offer replaces the one before it whole. An empty one (`open: false`) withdraws.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Offer {
    /// False: no new attempts; those there may finish.
    pub open: bool,
    /// One sentence when it is not open, or when something is wrong ("the container engine does not answer").
    #[serde(default)]
    pub why: Option<String>,
    pub gpus: Vec<OfferedGpu>,
    /// Caps over all guests together.
    pub cpus: u32,
    pub memory: Bytes,
    pub disk: Bytes,
    /// How long it will still be lent; absent when no end is known. A length, not a time of day:
    /// wall clocks are never compared between machines.
    #[serde(default)]
    pub time_left: Option<Millis>,
    /// The longest that a job gets to save when it must leave, whatever its spec asks for; absent:
    /// the agent does not say.
    #[serde(default)]
    pub grace: Option<Millis>,
    /// `amd64`, `arm64`: as the container engine names it.
    pub architecture: String,
    /// What guests may reach here, over what their specs name.
    #[serde(default)]
    pub egress: EgressRule,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedGpu {
    pub uuid: GpuUuid,
    pub name: String,
    pub memory: Bytes,
    /// Lent and healthy, so an attempt may be placed on it when none is there.
    pub free_for_guests: bool,
    #[serde(default)]
    pub standin: bool,
}
