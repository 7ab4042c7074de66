//! Is the GPU free of the guest: the question that ends a reclaim (invariant 3).
//!
//! Verified means: no (pid, start time) ever seen for the guest is on the GPU's own list, and
//! memory not explained by listed foreign processes is no more than before the guest came.
//! Where the driver gave no list before either, device memory alone decides and the verdict
//! says so. Utilisation never decides: it latches (F04). Every doubt is "not yet".
//!
//! Pure: samples come in, verdicts go out. What was true before the guest came, and who was
//! seen, are plain data that outlive the agent, so that another process can go on verifying.

use std::collections::BTreeSet;
use std::fmt;

use gpunion_protocol::gpu::{GpuProcess, GpuSample, GpuState};
use gpunion_protocol::ids::GpuUuid;
use gpunion_protocol::receipt::How;
use gpunion_protocol::time::BootMs;
use serde::{Deserialize, Serialize};

/// So many of a guest's processes are remembered beside those that are on a list now.
const SEEN_MAX: usize = 256;

/// A process for ever: a pid alone is given to somebody else one day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: u32,
    /// Clock ticks since boot.
    pub start_time: u64,
}

/// One GPU as it was before the guest came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BeforeGuest {
    pub gpu: GpuUuid,
    /// Bytes.
    pub memory_used: Option<u64>,
    /// None: the driver gives no list.
    pub processes: Option<Vec<GpuProcess>>,
}

/// By what a guest's processes are known on a GPU's list.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestTraces {
    /// Its container's id.
    pub container: Option<String>,
    /// Everybody seen for it; of those that are on no list any more only the youngest.
    pub seen: BTreeSet<ProcessId>,
}

/// The question, while it is open.
#[derive(Debug, Clone)]
pub struct Verification {
    before: BeforeGuest,
    guest: GuestTraces,
    not_before: BootMs,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Free {
        how: How,
        /// The card calls itself busy although nobody is on it (F04). It may be lent.
        telemetry_latch: bool,
    },
    NotYet(NotYet),
}

/// Why a GPU can't be called free; `Display` is the sentence for the receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotYet {
    /// The sample is of another GPU, or older than the end of the guest.
    NoFreshSample,
    /// Lost, suspended or silent.
    NoAnswer,
    /// The driver listed processes before and does not now.
    ListMissing,
    GuestListed {
        pids: Vec<u32>,
    },
    /// The driver does not tell how much memory is used.
    MemoryUnknown,
    MemoryHeld {
        bytes: u64,
    },
}

impl ProcessId {
    /// None for a process whose start can't be told.
    pub fn of(process: &GpuProcess) -> Option<Self> {
        process.start_time.map(|start_time| Self { pid: process.pid, start_time })
    }
}

impl BeforeGuest {
    /// None when the sample says nothing about now.
    pub fn of(sample: &GpuSample) -> Option<Self> {
        (sample.state == GpuState::Ok).then(|| Self {
            gpu: sample.uuid.clone(),
            memory_used: sample.memory_used,
            processes: sample.processes.clone(),
        })
    }

    fn listed(&self, process: &GpuProcess) -> Option<&GpuProcess> {
        let same = |p: &&GpuProcess| p.pid == process.pid && p.start_time == process.start_time;
        self.processes.iter().flatten().find(same)
    }

    /// Bytes used that no listed process explained.
    fn unexplained(&self) -> Option<u64> {
        let explained = sum(self.processes.iter().flatten().filter_map(|p| p.memory));
        self.memory_used.map(|used| used.saturating_sub(explained))
    }
}

impl GuestTraces {
    pub fn new(container: Option<String>) -> Self {
        Self { container, seen: BTreeSet::new() }
    }

    /// Remembers the guest's processes in the samples of all its GPUs; true when there was a new
    /// one, which wants to be saved.
    pub fn learn<'a>(&mut self, samples: impl IntoIterator<Item = &'a GpuSample>) -> bool {
        let listed: Vec<&GpuProcess> =
            samples.into_iter().flat_map(|sample| sample.processes.iter().flatten()).collect();
        let mine = listed.iter().filter(|p| self.container_is(p)).filter_map(|p| ProcessId::of(p));
        let new: Vec<ProcessId> = mine.filter(|id| !self.seen.contains(id)).collect();
        self.seen.extend(&new);
        self.forget_the_oldest(&listed);
        !new.is_empty()
    }

    /// A guest that makes process after process must not make its record grow for ever. One that
    /// is on no list any more counts again by its container if it comes back; the youngest stay.
    fn forget_the_oldest(&mut self, listed: &[&GpuProcess]) {
        let surplus = self.seen.len().saturating_sub(SEEN_MAX);
        if surplus == 0 {
            return;
        }
        let on_a_list = |id: &ProcessId| listed.iter().any(|p| ProcessId::of(p).as_ref() == Some(id));
        let mut off: Vec<ProcessId> = self.seen.iter().copied().filter(|id| !on_a_list(id)).collect();
        off.sort_by_key(|id| id.start_time);
        for id in off.iter().take(surplus) {
            self.seen.remove(id);
        }
    }

    fn container_is(&self, process: &GpuProcess) -> bool {
        self.container.is_some() && process.container == self.container
    }

    /// A process without a start time can be anybody with that pid: it counts as the guest's.
    pub(crate) fn owns(&self, process: &GpuProcess) -> bool {
        let seen = match ProcessId::of(process) {
            Some(id) => self.seen.contains(&id),
            None => self.seen.iter().any(|id| id.pid == process.pid),
        };
        seen || self.container_is(process)
    }
}

impl Verification {
    /// Only samples taken at `not_before` or later count: when the guest was ended.
    pub fn new(before: BeforeGuest, guest: GuestTraces, not_before: BootMs) -> Self {
        Self { before, guest, not_before }
    }

    pub fn observe(&mut self, sample: &GpuSample) -> Verdict {
        if sample.uuid != self.before.gpu || sample.taken_at < self.not_before {
            return Verdict::NotYet(NotYet::NoFreshSample);
        }
        if sample.state != GpuState::Ok {
            return Verdict::NotYet(NotYet::NoAnswer);
        }
        self.guest.learn([sample]);
        match self.judge(sample) {
            Ok(how) => Verdict::Free { how, telemetry_latch: sample.telemetry_latch() },
            Err(why) => Verdict::NotYet(why),
        }
    }

    fn judge(&self, sample: &GpuSample) -> Result<How, NotYet> {
        let listed = sample.processes.iter().flatten();
        let mut pids: Vec<u32> = listed.filter(|p| self.guest.owns(p)).map(|p| p.pid).collect();
        if !pids.is_empty() {
            pids.sort_unstable();
            return Err(NotYet::GuestListed { pids });
        }
        let (how, explained) = match (&self.before.processes, &sample.processes) {
            (Some(_), None) => return Err(NotYet::ListMissing),
            (Some(_), Some(now)) => (How::ProcessList, sum(now.iter().filter_map(|p| self.explains(p)))),
            // Nothing was explained before: nothing may be explained now, or it would hide a leak.
            (None, Some(_) | None) => (How::DeviceTotalOnly, 0),
        };
        let before = self.before.unexplained().ok_or(NotYet::MemoryUnknown)?;
        let used = sample.memory_used.ok_or(NotYet::MemoryUnknown)?;
        match used.saturating_sub(explained).saturating_sub(before) {
            0 => Ok(how),
            bytes => Err(NotYet::MemoryHeld { bytes }),
        }
    }

    /// Bytes that a process which is surely not the guest's accounts for. One that can't be
    /// looked at may be a guest's that was never seen, unless it was there before; one whose
    /// bytes were untold before is in the old figure already.
    fn explains(&self, process: &GpuProcess) -> Option<u64> {
        match self.before.listed(process) {
            Some(old) => old.memory.and(process.memory),
            None => process.start_time.and(process.memory),
        }
    }
}

fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

impl fmt::Display for NotYet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFreshSample => f.write_str("the GPU has not been read since the guest ended"),
            Self::NoAnswer => f.write_str(
                "the GPU does not answer; if it has fallen off the bus, only a reboot brings it back",
            ),
            Self::ListMissing => {
                f.write_str("the driver has stopped listing the processes on this GPU; asking again")
            }
            Self::GuestListed { pids } => {
                let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
                write!(f, "processes of the guest are still on the GPU: {}", pids.join(", "))
            }
            Self::MemoryUnknown => f.write_str(
                "no process of the guest is on the GPU, but the driver does not tell how much memory is used",
            ),
            Self::MemoryHeld { bytes } => write!(
                f,
                "{:.1} MiB more than before the guest came are in use, and no listed process explains them",
                *bytes as f64 / f64::from(1 << 20)
            ),
        }
    }
}

#[cfg(test)]
#[path = "verify_tests.rs"]
pub(super) mod tests;
