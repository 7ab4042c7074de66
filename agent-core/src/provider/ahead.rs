//! Preparing ahead: an attempt that is made ready while the one before it still runs elsewhere.
//!
//! It holds its GPUs and its workspace, and its program does not begin before the relay says `Go`.
//! What the job saved since then is fetched on top of what lies there already.

use gpunion_protocol::ids::{AttemptRef, SnapshotId};
use gpunion_protocol::job::EndCause;
use gpunion_protocol::time::{BootMs, Millis, Now};

use super::Provider;
use super::attempt::Attempt;
use super::effect::Effect;
use super::record::Phase;

/// So long after its lease one that waits is given up: whoever made it wait is gone for good.
const WAITS: Millis = Millis::from_secs(600);

impl Attempt {
    /// Until when it waits for its word at most.
    pub(super) fn waits_until(&self) -> Option<BootMs> {
        self.lease_until.filter(|_| self.record.assignment.wait).map(|until| until + WAITS)
    }

    /// Prepared as far as it may be: the attempt before it still counts.
    pub(super) fn waits_for_go(&self) -> bool {
        self.record.assignment.wait && self.record.phase == Phase::Start
    }
}

impl Provider {
    pub(super) fn wait_on_time(&mut self, name: &AttemptRef, now: Now, out: &mut Vec<Effect>) {
        let until = self.attempts.get(name).and_then(Attempt::waits_until);
        if until.is_some_and(|until| until <= now.boot) {
            self.end(name, EndCause::Stale, now, out);
        }
    }

    /// Its workspace is filled from a checkpoint that is not the newest any more.
    pub(super) fn stages_again(&mut self, name: &AttemptRef, out: &mut Vec<Effect>) -> bool {
        let overtaken = |attempt: &mut Attempt| std::mem::take(&mut attempt.overtaken);
        let again = self.attempts.get_mut(name).is_some_and(overtaken);
        if again {
            self.set_phase(name, Phase::Stage, out);
        }
        again
    }

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
            // What is being fetched or made goes on to its end: inputs are large, and two helpers must
            // not write one workspace. Then the rest is fetched on top.
            Phase::Stage if newer => {
                attempt.overtaken = attempt.op().is_some();
                self.save_attempt(name);
                self.tell_state(name, out);
            }
            Phase::Create | Phase::Start if newer => self.set_phase(name, Phase::Stage, out),
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
