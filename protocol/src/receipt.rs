//! The record that ends a reclaim.

use serde::{Deserialize, Serialize};

use crate::egress::Contacts;
use crate::ids::{AttemptRef, GpuUuid};
use crate::job::EndCause;
use crate::time::{Millis, WallMs};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    pub at: WallMs,
    pub gpus: Vec<GpuReceipt>,
    pub guests: Vec<GuestReceipt>,
    /// From the click to: no guest CPU thread runs; no guest process exists; GPU memory is free.
    pub stopped_ms: Option<u64>,
    pub ended_ms: Option<u64>,
    pub verified_ms: Option<u64>,
    pub verified: bool,
    pub how: How,
    /// One sentence for each thing that could not be done, and what goes on being tried.
    pub troubles: Vec<String>,
    /// False when the wish could not be written down (a full disk); the stop did not wait for it.
    pub wish_saved: bool,
}

/// How it was verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// No process of the guest is on the GPU's own list, and memory is back.
    ProcessList,
    /// The driver gives no list of processes.
    DeviceTotalOnly,
    /// No GPU was lent to a guest: there is nothing to verify but that its processes are gone.
    ProcessesOnly,
    NotVerified,
}

impl How {
    pub fn words(self) -> &'static str {
        match self {
            Self::ProcessList => "by the GPU's own process list and memory",
            Self::DeviceTotalOnly => "by device total only",
            Self::ProcessesOnly => "by the end of its processes (no GPU was lent)",
            Self::NotVerified => "not verified",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuReceipt {
    pub uuid: GpuUuid,
    pub name: String,
    /// Bytes used on the GPU: before the guest came, at the click, at the end.
    pub memory_baseline: Option<u64>,
    pub memory_before: Option<u64>,
    pub memory_after: Option<u64>,
    pub standin: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestReceipt {
    pub attempt: AttemptRef,
    pub name: String,
    pub member: String,
    /// Processes that existed in the guest at the click.
    pub processes: u32,
    pub stopped_ms: Option<u64>,
    pub ended_ms: Option<u64>,
    pub way: Way,
}

/// What ended the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// One word to init over its channel.
    Init,
    /// The file `end` in its read-only mount.
    EndFile,
    /// Its cgroup, frozen and killed by the second way, as its init did not answer.
    SecondWay,
    Engine,
    /// It had ended already.
    Already,
    NotEnded,
}

/// One line of `gpunion history`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    pub attempt: AttemptRef,
    pub name: String,
    pub member: String,
    pub gpus: Vec<GpuUuid>,
    pub from: WallMs,
    pub until: WallMs,
    pub lasted: Millis,
    pub ended: String,
    /// The same in one word; absent in entries of an earlier version.
    #[serde(default)]
    pub cause: Option<EndCause>,
    #[serde(default)]
    pub receipt: Option<Receipt>,
    /// What it contacted; absent for a guest without egress.
    #[serde(default)]
    pub contacts: Option<Contacts>,
}
