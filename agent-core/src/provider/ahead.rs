//! Preparing ahead: an attempt that is made ready while the one before it still runs elsewhere.
//!
//! It holds its GPUs and its workspace, and its program does not begin before the relay says `Go`.
//! What the job saved since then is fetched on top of what lies there already.

use gpunion_protocol::ids::{AttemptRef, SnapshotId};
use gpunion_protocol::time::Now;

use super::Provider;
use super::attempt::Attempt;
use super::effect::Effect;
use super::record::Phase;

impl Attempt {
    /// Prepared as far as it may be: the attempt before it still counts.
    pub(super) fn waits_for_go(&self) -> bool {
        self.record.assignment.wait && self.record.phase == Phase::Start
    }
}

impl Provider {
    /// It counts from now on, and goes on from this checkpoint.
    pub(super) fn go(
        &mut self,
        name: &AttemptRef,
        from: Option<SnapshotId>,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        // Said again, since nobody heard that it runs.
        if !std::mem::take(&mut attempt.record.assignment.wait) {
            if !attempt.state().is_before_running() {
                self.tell_state(name, out);
            }
            return;
        }
        let newer = attempt.record.assignment.from != from;
        attempt.record.assignment.from = from;
        attempt.note = None;
        match attempt.record.phase {
            Phase::Stage | Phase::Create | Phase::Start if newer => {
                attempt.give_up_op();
                out.push(Effect::GiveUp { attempt: name.clone() });
                self.set_phase(name, Phase::Stage, out);
            }
            Phase::Pull
            | Phase::Stage
            | Phase::Create
            | Phase::Start
            | Phase::Running
            | Phase::Finishing { .. }
            | Phase::Leaving { .. }
            | Phase::Ending { .. }
            | Phase::Over { .. } => {
                self.save_attempt(name);
                self.tell_state(name, out);
            }
        }
        self.advance(name, now, out);
    }
}
