//! The one thread that talks to the driver (F26).
//!
//! NVML's handles borrow the library, so both live on this thread's stack. A GPU that fails is
//! asked ever more seldom and shown as unknown; the others go on (F12). A driver that goes away
//! is opened afresh, with the sentence shown meanwhile. The thread ends with its `Gpus`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use gpunion_protocol::gpu::{GpuSample, GpuSource, GpuState, GpuView};
use gpunion_protocol::ids::GpuUuid;
use gpunion_protocol::time::{BootMs, Millis};
use nvml_wrapper::Nvml;
use tokio::sync::watch;

use super::history::History;
use super::open::{self, NoGpus};
use super::pace::{self, BackOff};
use super::read::{self, Card, Silent};
use super::watch::boot_now;

/// GPUs that come or go are noticed in this time.
const COUNT_AGAIN: Millis = Millis(30_000);
/// The same, while one could not be counted or none is there.
const COUNT_SOON: Millis = Millis(5_000);

pub(super) struct Sampler {
    pub(super) library: Option<PathBuf>,
    pub(super) publish: watch::Sender<GpuView>,
    pub(super) history: Arc<Mutex<History>>,
    pub(super) wanted: Arc<AtomicU32>,
    pub(super) woken: mpsc::Receiver<()>,
    /// Told once, after the first view.
    pub(super) spoken: Option<mpsc::SyncSender<()>>,
}

/// Nobody listens any more.
struct Over;

/// Every GPU ever seen, with its last sample.
type Known = BTreeMap<GpuUuid, GpuSample>;

/// What is kept about one GPU's failures.
#[derive(Default)]
struct Failing {
    back_off: BackOff,
    not_before: Option<BootMs>,
}

impl Sampler {
    pub(super) fn run(mut self) {
        let mut known = Known::new();
        let mut back_off = BackOff::default();
        loop {
            let gone = match open::open(self.library.as_deref()) {
                Ok(nvml) => match self.follow(&nvml, &mut known, &mut back_off) {
                    Ok(gone) => gone,
                    Err(Over) => return,
                },
                Err(gone) => gone,
            };
            for sample in known.values_mut() {
                unknown(sample, boot_now(), &gone.to_string());
            }
            let source = GpuSource::None { sentence: gone.to_string() };
            self.show(source, &known, Vec::new());
            if self.pause(back_off.failed()).is_err() {
                return;
            }
        }
    }

    /// Samples until the driver goes away, and says why it did.
    fn follow(&mut self, nvml: &Nvml, known: &mut Known, back_off: &mut BackOff) -> Result<NoGpus, Over> {
        let source = GpuSource::Ready { version: nvml.sys_driver_version().ok() };
        let mut failing: BTreeMap<GpuUuid, Failing> = BTreeMap::new();
        loop {
            let (cards, troubles) = match read::cards(nvml) {
                Ok(found) => found,
                Err(gone) => return Ok(gone),
            };
            let now = boot_now();
            for (uuid, sample) in known.iter_mut() {
                if cards.iter().all(|card| card.uuid != *uuid) {
                    unlisted(sample, now);
                }
            }
            let counted = boot_now();
            let again = if troubles.is_empty() && !cards.is_empty() { COUNT_AGAIN } else { COUNT_SOON };
            while boot_now() - counted < again {
                let started = boot_now();
                for card in &cards {
                    let failing = failing.entry(card.uuid.clone()).or_default();
                    if let Err(gone) = look(card, known, failing) {
                        return Ok(gone);
                    }
                }
                back_off.worked();
                self.remember(known);
                self.show(source.clone(), known, troubles.clone());
                let pace = if self.wanted.load(Ordering::SeqCst) > 0 { pace::FAST } else { pace::NORMAL };
                self.pause(started + pace - boot_now())?;
            }
        }
    }

    fn remember(&self, known: &Known) {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        for sample in known.values() {
            history.add(sample);
        }
    }

    fn show(&mut self, source: GpuSource, known: &Known, troubles: Vec<String>) {
        self.publish.send_replace(GpuView { source, gpus: known.clone(), troubles });
        if let Some(spoken) = self.spoken.take() {
            let _ = spoken.try_send(());
        }
    }

    /// Waits, but not longer than until somebody is in a hurry.
    fn pause(&self, wait: Millis) -> Result<(), Over> {
        match self.woken.recv_timeout(wait.as_std()) {
            Ok(()) | Err(mpsc::RecvTimeoutError::Timeout) => Ok(()),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(Over),
        }
    }
}

/// Reads one GPU, unless it has failed so recently that it is left alone.
fn look(card: &Card<'_>, known: &mut Known, failing: &mut Failing) -> Result<(), NoGpus> {
    if failing.not_before.is_some_and(|at| boot_now() < at) {
        return Ok(());
    }
    let now = boot_now();
    let state = match card.sample(now) {
        Ok(sample) => {
            *failing = Failing::default();
            known.insert(card.uuid.clone(), sample);
            return Ok(());
        }
        Err(Silent::DriverGone(gone)) => return Err(gone),
        Err(Silent::Lost) => None,
        Err(Silent::NoAnswer(why)) => Some(why),
    };
    failing.not_before = Some(boot_now() + failing.back_off.failed());
    let sample = known.entry(card.uuid.clone()).or_insert_with(|| card.blank(now));
    match state {
        None => lost(sample, now),
        Some(why) => unknown(sample, now, &why),
    }
    Ok(())
}

/// Since when a GPU has not been well; the first trouble's time is kept.
fn since(sample: &GpuSample, now: BootMs) -> BootMs {
    match sample.state {
        GpuState::Lost { since } | GpuState::Unknown { since, .. } => since,
        GpuState::Ok | GpuState::Suspended => now,
    }
}

fn lost(sample: &mut GpuSample, now: BootMs) {
    sample.state = GpuState::Lost { since: since(sample, now) };
}

fn unknown(sample: &mut GpuSample, now: BootMs, why: &str) {
    sample.state = GpuState::Unknown { since: since(sample, now), why: why.to_owned() };
}

/// One that is lost is not counted any more: it stays lost.
fn unlisted(sample: &mut GpuSample, now: BootMs) {
    match sample.state {
        GpuState::Lost { .. } => {}
        GpuState::Ok | GpuState::Suspended | GpuState::Unknown { .. } => {
            unknown(sample, now, "the driver does not list this GPU any more");
        }
    }
}
