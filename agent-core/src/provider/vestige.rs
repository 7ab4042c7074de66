//! What a GPU may still hold of guests that have ended.
//!
//! The driver gives memory back a little after the last process has gone, and a process may hang in
//! it for longer. Until the GPU has been seen free, a reclaim must not call it so, and the next
//! guest must not take what is left for the owner's.

use gpunion_protocol::gpu::GpuSample;
use gpunion_protocol::ids::{AttemptRef, GpuUuid};
use gpunion_protocol::receipt::How;
use gpunion_protocol::time::{BootMs, Millis, Now};

use super::Provider;
use super::attempt::Attempt;
use crate::gpu::verify::{BeforeGuest, GuestTraces, Verdict, Verification};

/// The driver gives memory back within seconds; what is there a minute later is not its guest's.
const VESTIGE_LASTS: Millis = Millis(60_000);
const VESTIGES_MAX: usize = 16;

/// What a GPU may still hold of a guest that has ended.
#[derive(Debug)]
pub(super) struct Vestige {
    pub(super) before: BeforeGuest,
    /// Of each guest since it was seen free last.
    pub(super) traces: Vec<GuestTraces>,
    ended: BootMs,
}

impl Vestige {
    pub(super) fn forget_at(&self) -> BootMs {
        self.ended + VESTIGE_LASTS
    }

    fn is_gone(&self, sample: &GpuSample) -> bool {
        let question =
            |traces: &GuestTraces| Verification::new(self.before.clone(), traces.clone(), self.ended);
        let mut questions: Vec<Verification> = self.traces.iter().map(question).collect();
        is_free(&mut questions, sample).is_ok()
    }
}

/// Free of each of them.
pub(super) fn is_free(questions: &mut [Verification], sample: &GpuSample) -> Result<How, String> {
    let mut free = Ok(How::ProcessesOnly);
    for question in questions {
        match question.observe(sample) {
            Verdict::Free { how, telemetry_latch: _ } => free = free.map(|_| how),
            Verdict::NotYet(why) => free = Err(why.to_string()),
        }
    }
    free
}

impl Provider {
    /// The GPU as it is before a guest comes. What the guest before it may still hold is not part
    /// of that, or it would hide a leak of the next one.
    pub(super) fn before_guest(&self, gpu: &GpuUuid) -> Option<BeforeGuest> {
        match self.vestiges.get(gpu) {
            Some(vestige) => Some(vestige.before.clone()),
            None => self.gpus.gpus.get(gpu).and_then(BeforeGuest::of),
        }
    }

    pub(super) fn forget_vestiges(&mut self, now: Now) {
        let gpus = &self.gpus.gpus;
        self.vestiges.retain(|uuid, vestige| {
            now.boot < vestige.forget_at() && gpus.get(uuid).is_none_or(|sample| !vestige.is_gone(sample))
        });
    }

    pub(super) fn has_vestige(&self, attempt: &Attempt) -> bool {
        attempt.record.before.iter().any(|before| self.vestiges.contains_key(&before.gpu))
    }

    /// The guest's processes have ended; the driver may still be giving its memory back, and a
    /// reclaim that comes meanwhile must not call the GPU free.
    pub(super) fn leave_vestiges(&mut self, name: &AttemptRef, now: Now) {
        let Some(record) = self.attempts.get(name).map(|attempt| &attempt.record) else { return };
        for before in &record.before {
            let vestige = self.vestiges.entry(before.gpu.clone()).or_insert_with(|| Vestige {
                before: before.clone(),
                traces: Vec::new(),
                ended: now.boot,
            });
            vestige.ended = now.boot;
            vestige.traces.push(record.traces.clone());
            if vestige.traces.len() > VESTIGES_MAX {
                vestige.traces.remove(0);
            }
        }
    }
}
