//! Leaving with notice: the owner, or the end of the owner's hours, wants the machine back, and the
//! jobs on it get time to save.
//!
//! Each program is told (its signal, `/run/gpunion/leaving`) and leaves when it says `saved`, when
//! it ends, or when its grace is over: the spec's, and never longer than the owner allows. A
//! checkpoint is taken meanwhile, so that little is left to read and to send after the end. Then
//! every process is ended, which frees the GPU, and the workspace as it is becomes the attempt's
//! last checkpoint. However a program ends that was told to leave, it has left: many save and exit
//! with 0 when they are told to stop, and none of those has finished its work.

use gpunion_protocol::guest::{Exit, ToInit};
use gpunion_protocol::ids::{AttemptRef, SnapshotId};
use gpunion_protocol::job::EndCause;
use gpunion_protocol::local::Wish;
use gpunion_protocol::time::{BootMs, Millis, Now, WallMs};

use super::Provider;
use super::attempt::Attempt;
use super::checkpoint::Whole;
use super::effect::{Effect, Operation};
use super::event::{Outcome, Taken, Trouble};
use super::record::Phase;

/// A workspace that can't be read so often is given up; the job goes on from the checkpoint before.
const LAST_TRIES: u32 = 5;
/// A last checkpoint is tried for as long as the work that it saves took, and at least for this.
const LAST_LEAST: Millis = Millis::from_secs(60);
const SIGTERM: i32 = 15;

/// What is only worth knowing while the agent lives.
#[derive(Debug, Default)]
pub(super) struct Leave {
    /// No program is waited for longer.
    by: Option<BootMs>,
    /// The program said `saved` after it was told.
    saved: bool,
    /// When nothing wrote to its workspace any more.
    still: Option<BootMs>,
    /// It is given up then: the job waits no longer than it saves.
    until: Option<BootMs>,
    /// Of a salvage: the work that it is there for.
    at_stake: Option<Millis>,
    /// The program ended by itself and was not just killed by the signal.
    ended_well: bool,
    refusals: u32,
    /// When the upload of the last checkpoint was begun.
    sending: Option<BootMs>,
    last: Last,
}

/// How far the last checkpoint is.
#[derive(Debug)]
enum Last {
    /// `read`: a first pass is done, and the second reads only what has changed since.
    ToTake {
        read: bool,
    },
    Taken(Whole),
    /// At the relay, which has not answered yet.
    Told(Whole),
}

impl Default for Last {
    fn default() -> Self {
        Self::ToTake { read: false }
    }
}

impl Leave {
    pub(super) fn salvage_until(&mut self, until: BootMs, at_stake: Millis) {
        (self.until, self.at_stake) = (Some(until), Some(at_stake));
    }

    /// What it left is not wanted any more.
    pub(super) fn give_up_now(&mut self, now: BootMs) {
        self.until = Some(now);
    }

    pub(super) fn sends_now(&mut self, now: BootMs) {
        self.sending = Some(now);
    }

    pub(super) fn unpublished(&self) -> Option<&Whole> {
        match &self.last {
            Last::Told(whole) => Some(whole),
            Last::ToTake { .. } | Last::Taken(_) => None,
        }
    }

    fn waits_for(&self, snapshot: SnapshotId) -> bool {
        self.unpublished().is_some_and(|whole| whole.checkpoint.snapshot == snapshot)
    }

    /// What brings it further once no process lives; absent while the relay has the word.
    pub(super) fn operation(&self) -> Option<Operation> {
        match &self.last {
            Last::ToTake { read: true } => Some(Operation::PassTwo),
            Last::ToTake { read: false } => Some(Operation::Whole),
            Last::Taken(whole) => Some(Operation::Upload { snapshot: whole.checkpoint.snapshot }),
            Last::Told(_) => None,
        }
    }

    pub(super) fn saved(&mut self, at_ns: i64, told: Option<WallMs>) {
        // The file's time and ours are of one clock; one that was made before is no answer.
        self.saved |= told.is_some_and(|told| at_ns >= told.0.saturating_mul(1_000_000));
    }
}

impl Attempt {
    pub(super) fn is_told_to_leave(&self) -> bool {
        self.record.told_to_leave.is_some()
    }

    pub(super) fn leaves_by(&self) -> Option<BootMs> {
        self.leave.by.filter(|_| self.record.phase == Phase::Running)
    }

    /// When its last checkpoint is given up.
    pub(super) fn given_up_at(&self) -> Option<BootMs> {
        self.leave.until.filter(|_| matches!(self.record.phase, Phase::Leaving { .. }))
    }

    /// How it is told once its last checkpoint is safe, or given up.
    fn leaves_as(&self) -> EndCause {
        if self.is_salvaged() { EndCause::Reclaimed } else { EndCause::Left }
    }

    /// All that it waits for before it leaves has come.
    pub(super) fn is_ready_to_leave(&self, now: Now) -> bool {
        self.leave.saved || self.leave.by.is_some_and(|by| by <= now.boot)
    }
}

impl Provider {
    pub(super) fn grace_of(&self, attempt: &Attempt) -> Millis {
        attempt.record.assignment.spec.checkpoint.grace.0.min(self.wish.grace)
    }

    /// Guests that were told to leave and are not gone yet.
    pub(super) fn leaving(&self) -> u32 {
        let leaves = |attempt: &&Attempt| match attempt.record.phase {
            Phase::Running => attempt.is_told_to_leave(),
            Phase::Leaving { reclaimed, .. } => !reclaimed,
            Phase::Pull
            | Phase::Stage
            | Phase::Create
            | Phase::Start
            | Phase::Finishing { .. }
            | Phase::Ending { .. }
            | Phase::Over { .. } => false,
        };
        u32::try_from(self.attempts.values().filter(leaves).count()).unwrap_or(u32::MAX)
    }

    /// The agent stops, and does not know for how long: its guests go on elsewhere. Where nobody can
    /// be told they could go nowhere, and run on here until an agent is back.
    pub(super) fn stop(&mut self, now: Now, out: &mut Vec<Effect>) {
        self.stopping |= self.link.is_up();
        self.whoever_must_leaves(now, out);
    }

    /// Nothing is left that an agent that was told to stop waits for.
    pub fn may_stop(&self) -> bool {
        // What can't go on without engine or relay is on the books, for the next agent.
        let (engine, relay) = (self.may_operate(), self.link.is_up());
        let done = |attempt: &Attempt| match attempt.record.phase {
            Phase::Over { told, cleaned, .. } => (cleaned || !engine) && (told || !relay),
            Phase::Finishing { .. } | Phase::Leaving { .. } => !(attempt.may_live() || engine && relay),
            Phase::Pull
            | Phase::Stage
            | Phase::Create
            | Phase::Start
            | Phase::Running
            | Phase::Ending { .. } => false,
        };
        !self.stopping || self.attempts.values().all(done)
    }

    /// Its owner lends it what it uses, and will for as long as it needs to leave.
    fn is_still_lent(&self, attempt: &Attempt, now: Now) -> bool {
        if self.stopping {
            return false;
        }
        let grace = i64::try_from(self.grace_of(attempt).0).unwrap_or(i64::MAX);
        let lasts = |end: Option<WallMs>| end.is_none_or(|at| at.0.saturating_sub(grace) > now.wall.0);
        let lends = |wish: &Wish| match wish {
            Wish::Sharing { until } => lasts(*until),
            Wish::NotSharing | Wish::PausedUntil { .. } => false,
        };
        if self.ruled_out().is_some() || !lasts(self.hours_end()) {
            return false;
        }
        let gpus = &attempt.record.assignment.gpus;
        if gpus.is_empty() {
            return self.wishes_now().any(|wish| lends(&wish));
        }
        gpus.iter().all(|gpu| lends(&self.wish_of(gpu)) && !self.is_kept(gpu))
    }

    pub(super) fn whoever_must_leaves(&mut self, now: Now, out: &mut Vec<Effect>) {
        let names: Vec<AttemptRef> = self.attempts.keys().cloned().collect();
        for name in names {
            self.leave_on_time(&name, now, out);
        }
    }

    pub(super) fn leave_on_time(&mut self, name: &AttemptRef, now: Now, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get(name) else { return };
        if !attempt.is_told_to_leave() && !self.is_still_lent(attempt, now) {
            self.begin_to_leave(name, now, out);
        }
        let Some(attempt) = self.attempts.get(name) else { return };
        if !attempt.is_told_to_leave() || attempt.record.phase != Phase::Running {
            return;
        }
        // After a restart of the agent its grace is counted anew.
        let by = now.boot + self.grace_of(attempt);
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        attempt.leave.by.get_or_insert(by);
        if attempt.is_ready_to_leave(now) {
            self.end_to_leave(name, now, out);
        }
    }

    fn begin_to_leave(&mut self, name: &AttemptRef, now: Now, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get(name) else { return };
        match attempt.record.phase {
            // Nothing has been computed: it costs the job nothing to begin elsewhere.
            Phase::Pull | Phase::Stage | Phase::Create | Phase::Start => {
                return self.end(name, EndCause::Left, now, out);
            }
            Phase::Running if attempt.attached && !attempt.begun => {
                return self.end(name, EndCause::Left, now, out);
            }
            Phase::Running => {}
            // It is going already, or its result is being saved.
            Phase::Finishing { .. } | Phase::Leaving { .. } | Phase::Ending { .. } | Phase::Over { .. } => {
                return;
            }
        }
        let by = now.boot + self.grace_of(attempt);
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        attempt.record.told_to_leave = Some(now.wall);
        attempt.leave.by = Some(by);
        attempt.note = Some("its provider leaves: it saves, and then moves".to_owned());
        attempt.checkpoints.hurry(now.boot);
        self.save_attempt(name);
        self.tell_state(name, out);
        self.say_leave(name, now, out);
    }

    /// Said again to an init that comes back: the word may have been lost.
    pub(super) fn say_leave(&mut self, name: &AttemptRef, now: Now, out: &mut Vec<Effect>) {
        let seq = self.new_seq();
        let Some(attempt) = self.attempts.get(name) else { return };
        let deadline = attempt.leave.by.unwrap_or(now.boot + self.grace_of(attempt));
        let signal = attempt.record.assignment.spec.signal_number().unwrap_or(SIGTERM);
        Self::say(name, ToInit::Leave { seq, signal, deadline }, out);
    }

    /// Its processes end now, whatever they do.
    fn end_to_leave(&mut self, name: &AttemptRef, now: Now, out: &mut Vec<Effect>) {
        let seq = self.new_seq();
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        attempt.kills = 1;
        attempt.next_kill = Some(now.boot + Millis(150));
        self.set_leaving(name, Phase::Leaving { exited: false, reclaimed: false }, now, out);
        Self::say(name, ToInit::End { seq }, out);
        self.advance(name, now, out);
    }

    /// It ended by itself after it was told. True when that is how it leaves.
    pub(super) fn exited_to_leave(
        &mut self,
        name: &AttemptRef,
        exit: Exit,
        memory_limit: bool,
        now: Now,
        out: &mut Vec<Effect>,
    ) -> bool {
        let Some(attempt) = self.attempts.get_mut(name) else { return false };
        // Needing more memory than its spec allows is its member's to mend, whoever else leaves.
        if attempt.record.phase != Phase::Running || !attempt.is_told_to_leave() || memory_limit {
            return false;
        }
        // 128 and more is what a shell makes of a signal.
        attempt.leave.ended_well = matches!(exit, Exit::Code { code } if code < 128);
        self.set_leaving(name, Phase::Leaving { exited: true, reclaimed: false }, now, out);
        Self::say(name, ToInit::ExitSeen, out);
        true
    }

    /// No process of it is left, and nobody said why.
    pub(super) fn gone_to_leave(&mut self, name: &AttemptRef, now: Now, out: &mut Vec<Effect>) {
        self.set_leaving(name, Phase::Leaving { exited: false, reclaimed: false }, now, out);
    }

    /// Whatever is under way is dropped, but for a first pass: the second goes on from it.
    pub(super) fn set_leaving(&mut self, name: &AttemptRef, phase: Phase, now: Now, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        attempt.leave.still = Some(now.boot);
        let until = now.boot + attempt.at_stake(now).max(LAST_LEAST);
        attempt.leave.until.get_or_insert(until);
        attempt.checkpoints.drop_step();
        if attempt.op() != Some(Operation::PassOne) {
            attempt.give_up_op();
            out.push(Effect::GiveUp { attempt: name.clone() });
        }
        self.set_phase(name, phase, out);
    }

    /// An operation of an attempt that leaves brought something about.
    pub(super) fn leave_step(
        &mut self,
        name: &AttemptRef,
        outcome: Outcome,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        let last = std::mem::take(&mut attempt.leave.last);
        match (last, outcome) {
            (Last::ToTake { .. }, Outcome::PassOne) => attempt.leave.last = Last::ToTake { read: true },
            (Last::ToTake { .. }, Outcome::Taken(taken)) => self.last_taken(name, taken, now, out),
            (Last::Taken(whole), Outcome::Uploaded) => {
                out.push(whole.publish(name, now));
                if let Some(since) = attempt.leave.sending {
                    self.pace.sent(whole.checkpoint.new_bytes, now.boot - since);
                }
                attempt.leave.last = Last::Told(whole);
            }
            (last, _) => attempt.leave.last = last,
        }
    }

    fn last_taken(&mut self, name: &AttemptRef, taken: Taken, now: Now, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        attempt.succeeded();
        let exited = attempt.leave.ended_well;
        let still = attempt.leave.still.unwrap_or(now.boot);
        let before = (name.token, attempt.record.checkpoints);
        let whole = attempt.checkpoints.whole(&taken, before, Millis(0), still, exited, now);
        let at_stake = attempt.leave.at_stake;
        match whole.filter(|whole| self.is_worth_sending(at_stake, whole.checkpoint.new_bytes)) {
            Some(whole) => {
                if let Some(attempt) = self.attempts.get_mut(name) {
                    attempt.record.checkpoints = whole.checkpoint.number;
                    attempt.leave.last = Last::Taken(whole);
                    self.save_attempt(name);
                }
            }
            None => self.has_left(name, now, out),
        }
    }

    pub(super) fn last_published(
        &mut self,
        name: &AttemptRef,
        snapshot: SnapshotId,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let Some(attempt) = self.attempts.get_mut(name).filter(|a| a.leave.waits_for(snapshot)) else {
            return;
        };
        attempt.record.published = Some(snapshot);
        self.has_left(name, now, out);
    }

    /// It is sent again: where a newer attempt counts, or the job is final, the end is told too.
    pub(super) fn last_refused(&mut self, name: &AttemptRef, snapshot: SnapshotId, now: Now) {
        let Some(attempt) = self.attempts.get_mut(name).filter(|a| a.leave.waits_for(snapshot)) else {
            return;
        };
        if let Last::Told(whole) = std::mem::take(&mut attempt.leave.last) {
            attempt.leave.last = Last::Taken(whole);
        }
        attempt.retry_later(now);
    }

    pub(super) fn last_on_time(&mut self, name: &AttemptRef, now: Now, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        if !matches!(attempt.record.phase, Phase::Leaving { .. }) {
            return;
        }
        // After a restart of the agent nobody knows any more how much work there is to save.
        let until = *attempt.leave.until.get_or_insert(now.boot + LAST_LEAST);
        let forbidden = attempt.is_salvaged() && !self.wish.salvage;
        if !attempt.may_live() && (until <= now.boot || forbidden) {
            out.push(Effect::GiveUp { attempt: name.clone() });
            self.has_left(name, now, out);
        }
    }

    pub(super) fn has_left(&mut self, name: &AttemptRef, now: Now, out: &mut Vec<Effect>) {
        if let Some(cause) = self.attempts.get(name).map(Attempt::leaves_as) {
            self.over(name, cause, None, now, out);
        }
    }

    pub(super) fn leave_troubled(
        &mut self,
        name: &AttemptRef,
        what: Operation,
        trouble: &Trouble,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        attempt.retry_later(now);
        let refused = matches!(trouble, Trouble::Refused { .. });
        match what {
            Operation::Upload { .. } if !refused => {}
            // What a first pass had is gone with it; what can't be sent as it is, is taken anew.
            _ => attempt.leave.last = Last::ToTake { read: false },
        }
        attempt.leave.refusals += u32::from(refused);
        if attempt.leave.refusals >= LAST_TRIES {
            self.has_left(name, now, out);
        }
    }
}
