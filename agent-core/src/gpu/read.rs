//! One GPU, asked once: every figure on its own, none of them needed (F17 to F21).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use gpunion_protocol::gpu::{GpuProcess, GpuSample, GpuState};
use gpunion_protocol::ids::GpuUuid;
use gpunion_protocol::time::BootMs;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

use super::{attribution, open, plausible, power};

/// A GPU with its handle kept; what never changes is asked once.
pub(super) struct Card<'nvml> {
    device: Device<'nvml>,
    pub(super) uuid: GpuUuid,
    name: String,
    mig: bool,
    power_status: Option<PathBuf>,
}

/// Why there is no sample of a GPU now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Silent {
    /// NVML itself must be opened afresh.
    DriverGone(open::NoGpus),
    /// Fallen off the bus.
    Lost,
    NoAnswer(String),
}

/// All GPUs that say their UUID, and one sentence for each that does not (F12).
pub(super) fn cards(nvml: &Nvml) -> Result<(Vec<Card<'_>>, Vec<String>), open::NoGpus> {
    let count = match nvml.device_count() {
        Ok(count) => count,
        Err(error) if open::driver_gone(&error) => return Err(open::why(&error, None)),
        Err(error) => return Ok((Vec::new(), vec![format!("The GPUs can't be counted: {error}")])),
    };
    let mut cards = Vec::new();
    let mut troubles = Vec::new();
    for index in 0..count {
        match card(nvml, index) {
            Ok(card) => cards.push(card),
            Err(error) => {
                troubles.push(format!("One of {count} GPUs can't be used, the others can: {error}"));
            }
        }
    }
    Ok((cards, troubles))
}

fn card(nvml: &Nvml, index: u32) -> Result<Card<'_>, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let uuid = GpuUuid(device.uuid()?);
    Ok(Card {
        uuid,
        name: device.name().unwrap_or_else(|_| "NVIDIA GPU".to_owned()),
        mig: device.mig_mode().is_ok_and(|mode| mode.current == 1),
        power_status: device.pci_info().ok().and_then(|pci| power::status_file(&pci.bus_id)),
        device,
    })
}

impl Card<'_> {
    pub(super) fn sample(&self, now: BootMs) -> Result<GpuSample, Silent> {
        let mut sample = self.blank(now);
        if self.power_status.as_deref().is_some_and(power::suspended) {
            sample.state = GpuState::Suspended;
            return Ok(sample);
        }
        let mut asked = Asked::default();
        let device = &self.device;
        if let Some(memory) = asked.note(device.memory_info())? {
            (sample.memory_total, sample.memory_used) = plausible::memory(memory.total, memory.used);
        }
        sample.utilisation = asked
            .note(device.utilization_rates())?
            .and_then(|rates| plausible::utilisation(rates.gpu, self.mig));
        sample.temperature_c =
            asked.note(device.temperature(TemperatureSensor::Gpu))?.and_then(plausible::temperature);
        sample.power_mw = asked.note(device.power_usage())?.and_then(plausible::power);
        sample.power_limit_mw = asked.note(device.enforced_power_limit())?.and_then(plausible::power_limit);
        sample.processes = self.processes(&mut asked, sample.memory_total)?;
        match asked {
            Asked { answered: false, failed: Some(why) } => Err(Silent::NoAnswer(why)),
            Asked { .. } => Ok(sample),
        }
    }

    /// What this GPU is, with no figure.
    pub(super) fn blank(&self, now: BootMs) -> GpuSample {
        GpuSample {
            uuid: self.uuid.clone(),
            name: self.name.clone(),
            standin: self.name.contains("stand-in"),
            mig: self.mig,
            memory_total: None,
            memory_used: None,
            utilisation: None,
            power_mw: None,
            power_limit_mw: None,
            temperature_c: None,
            processes: None,
            state: GpuState::Ok,
            taken_at: now,
        }
    }

    /// Both of the driver's lists as one; a process on both is named once.
    fn processes(&self, asked: &mut Asked, total: Option<u64>) -> Result<Option<Vec<GpuProcess>>, Silent> {
        let compute = asked.note(listed(|| self.device.running_compute_processes()))?;
        let graphics = asked.note(listed(|| self.device.running_graphics_processes()))?;
        // A GPU that lists who computes but not who draws still lists every guest.
        let Some(compute) = compute else { return Ok(None) };
        let computing: BTreeSet<u32> = compute.iter().map(|process| process.pid).collect();
        let mut by_pid: BTreeMap<u32, Option<u64>> = BTreeMap::new();
        for process in compute.into_iter().chain(graphics.into_iter().flatten()) {
            let memory = match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => plausible::process_memory(bytes, total),
                UsedGpuMemory::Unavailable => None,
            };
            let held = by_pid.entry(process.pid).or_default();
            *held = (*held).max(memory);
        }
        let all = by_pid.into_iter().map(|(pid, memory)| identified(pid, memory, !computing.contains(&pid)));
        Ok(Some(all.collect()))
    }
}

fn identified(pid: u32, memory: Option<u64>, draws_only: bool) -> GpuProcess {
    let (start_time, container) = attribution::process_identity(pid);
    GpuProcess { pid, start_time, memory, container, draws_only }
}

/// "Not found" means nobody (F19); a list that grew while it was read is read once more.
fn listed(ask: impl Fn() -> Result<Vec<ProcessInfo>, NvmlError>) -> Result<Vec<ProcessInfo>, NvmlError> {
    let answer = match ask() {
        Err(NvmlError::InsufficientSize(_)) => ask(),
        answer => answer,
    };
    match answer {
        Err(NvmlError::NotFound) => Ok(Vec::new()),
        answer => answer,
    }
}

/// What a round of questions has come to.
#[derive(Default)]
struct Asked {
    answered: bool,
    failed: Option<String>,
}

impl Asked {
    /// A figure, or none. Only a lost GPU or a gone driver ends the round.
    fn note<T>(&mut self, answer: Result<T, NvmlError>) -> Result<Option<T>, Silent> {
        let error = match answer {
            Ok(value) => {
                self.answered = true;
                return Ok(Some(value));
            }
            Err(error) => error,
        };
        if open::driver_gone(&error) {
            return Err(Silent::DriverGone(open::why(&error, None)));
        }
        #[expect(clippy::wildcard_enum_match_arm, reason = "NVML's errors, not ours: the rest fail alike")]
        match error {
            NvmlError::GpuLost => return Err(Silent::Lost),
            // Not asked for by this card or driver: no sign of trouble.
            NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => {}
            other => self.failed = Some(open::chain(&other)),
        }
        Ok(None)
    }
}
