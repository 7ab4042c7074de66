//! GPUs as the local API shows them: what the driver said last, and how old that is.
//!
//! Every figure is optional. A driver that can't tell is shown as "n/a", never as 0 (F17, F21,
//! F22). Nothing here asks a clock: whoever shows a sample passes the time in.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::GpuUuid;
use crate::time::{BootMs, Millis};

/// Everything known about this machine's GPUs at one instant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuView {
    pub source: GpuSource,
    pub gpus: BTreeMap<GpuUuid, GpuSample>,
    /// One sentence for each thing that is wrong and has no UUID to be shown under.
    #[serde(default)]
    pub troubles: Vec<String>,
}

/// Whether a driver answers at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "driver", rename_all = "snake_case")]
pub enum GpuSource {
    /// No NVML; the sentence says why and what to do. CPU jobs can still be lent.
    None { sentence: String },
    Ready {
        #[serde(default)]
        version: Option<String>,
    },
}

/// What one GPU said last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuSample {
    pub uuid: GpuUuid,
    /// As the driver names it; a stand-in has "stand-in" in its name.
    pub name: String,
    /// These figures come from the stand-in library and are not figures of a GPU.
    pub standin: bool,
    /// Divided by MIG: utilisation is not known for the whole.
    #[serde(default)]
    pub mig: bool,
    /// Bytes.
    pub memory_total: Option<u64>,
    /// Bytes.
    pub memory_used: Option<u64>,
    /// Percent of time in which something ran on it.
    pub utilisation: Option<u32>,
    /// Milliwatts drawn.
    pub power_mw: Option<u32>,
    /// Milliwatts it may draw.
    pub power_limit_mw: Option<u32>,
    /// Degrees Celsius.
    pub temperature_c: Option<u32>,
    /// Who uses it. None: the driver gives no list. Empty: nobody.
    pub processes: Option<Vec<GpuProcess>>,
    pub state: GpuState,
    /// When these figures were taken (boot time).
    pub taken_at: BootMs,
}

/// One process on a GPU's own list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    pub pid: u32,
    /// Clock ticks since boot; with the pid it names a process for ever. None when the process
    /// is gone or can't be looked at.
    pub start_time: Option<u64>,
    /// Bytes of GPU memory. None: the driver does not tell.
    pub memory: Option<u64>,
    /// The id of the container it runs in, out of its cgroup.
    #[serde(default)]
    pub container: Option<String>,
    /// The driver lists it among those who draw and not among those who compute.
    #[serde(default)]
    pub draws_only: bool,
}

/// Whether a GPU's figures may be relied on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum GpuState {
    Ok,
    /// Fallen off the bus: only a reset or reboot brings it back. `since` is boot time.
    Lost {
        since: BootMs,
    },
    /// It does not answer, or is not listed any more; the figures are its last ones.
    Unknown {
        since: BootMs,
        why: String,
    },
    /// Switched off by the system to save power; it is not woken for a figure.
    Suspended,
}

/// One point of a GPU's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuPoint {
    pub at: BootMs,
    /// Bytes.
    pub memory_used: Option<u64>,
    /// Percent.
    pub utilisation: Option<u32>,
    pub power_mw: Option<u32>,
    pub temperature_c: Option<u32>,
}

/// A sample older than this says nothing about now (F06).
pub const SAMPLE_LASTS: Millis = Millis(5_000);

impl GpuSample {
    /// The name with its label where the figures are none of a GPU.
    pub fn label(&self) -> String {
        if self.standin && !self.name.contains("stand-in") {
            format!("{} (stand-in)", self.name)
        } else {
            self.name.clone()
        }
    }

    /// Busy by its own word, yet nobody is on it and next to nothing is held (F04): the counter
    /// has latched. The card works and may be lent.
    pub fn telemetry_latch(&self) -> bool {
        let low = match (self.memory_used, self.memory_total) {
            (Some(used), Some(total)) => used <= total / 20,
            (None, _) | (_, None) => false,
        };
        self.utilisation == Some(100) && low && self.processes.as_ref().is_some_and(Vec::is_empty)
    }
}

impl GpuView {
    pub fn none(sentence: impl Into<String>) -> Self {
        Self {
            source: GpuSource::None { sentence: sentence.into() },
            gpus: BTreeMap::new(),
            troubles: Vec::new(),
        }
    }

    /// The same view as seen at `now`: a figure that has got too old is called unknown, so that
    /// a driver that hangs never looks like a GPU that is well.
    #[must_use]
    pub fn aged(mut self, now: BootMs) -> Self {
        for sample in self.gpus.values_mut() {
            if sample.state == GpuState::Ok && now - sample.taken_at > SAMPLE_LASTS {
                sample.state = GpuState::Unknown {
                    since: sample.taken_at,
                    why: "the driver has not answered since".to_owned(),
                };
            }
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> GpuSample {
        GpuSample {
            uuid: GpuUuid("GPU-1".into()),
            name: "stand-in A".into(),
            standin: true,
            mig: false,
            memory_total: Some(100),
            memory_used: Some(1),
            utilisation: Some(100),
            power_mw: None,
            power_limit_mw: None,
            temperature_c: None,
            processes: Some(vec![]),
            state: GpuState::Ok,
            taken_at: BootMs(1_000),
        }
    }

    #[test]
    fn f04_busy_with_nobody_on_it_is_a_latch() {
        assert!(sample().telemetry_latch());
        let no_list = GpuSample { processes: None, ..sample() };
        assert!(!no_list.telemetry_latch());
    }

    #[test]
    fn f06_an_old_sample_becomes_unknown() {
        let mut view = GpuView::none("");
        view.gpus.insert(GpuUuid("GPU-1".into()), sample());
        let fresh = view.clone().aged(BootMs(6_000));
        assert_eq!(fresh.gpus[&GpuUuid("GPU-1".into())].state, GpuState::Ok);
        let old = view.aged(BootMs(6_001));
        assert!(matches!(
            old.gpus[&GpuUuid("GPU-1".into())].state,
            GpuState::Unknown { since: BootMs(1_000), .. }
        ));
    }

    #[test]
    fn a_sample_survives_its_text_form() {
        let text = serde_json::to_string(&sample()).unwrap();
        assert_eq!(serde_json::from_str::<GpuSample>(&text).unwrap(), sample());
    }
}
