//! Checkpoints of a running attempt: when one is due, and the steps of taking one.
//!
//! Pass one reads while the job computes; then init stops it, pass two reads what changed since,
//! and it goes on. The packs travel after that. One is due each `every` of the spec, and when
//! the program says that it saved. A stop longer than the spec's `stop_max` is given up.

use gpunion_protocol::guest::ToInit;
use gpunion_protocol::ids::{AttemptRef, SnapshotId};
use gpunion_protocol::job::{Checkpoint, Quality};
use gpunion_protocol::session::ToRelay;
use gpunion_protocol::time::{BootMs, Millis, Now, WallMs};

use super::Provider;
use super::attempt::Attempt;
use super::effect::{Effect, Operation};
use super::event::{Outcome, Taken};
use super::record::Phase;

/// After one that followed the word `saved`, the next waits so many times what it took: a
/// program that says it all the time must not keep the owner's disk busy.
const REST: u64 = 3;
/// A first pass that took longer than the job may stand still is repeated so often at most: each
/// reads only what changed during the one before it, and leaves less to the second pass.
const ROUNDS: u32 = 3;

#[derive(Debug)]
pub(super) struct Checkpoints {
    step: Step,
    due: BootMs,
    /// The program's newest word that it saved: wall-clock nanoseconds, and whether it is news.
    saved_ns: Option<i64>,
    saved_news: bool,
    /// No sooner than this for the sake of `saved` alone.
    rested: BootMs,
    began: BootMs,
    /// What the newest accepted checkpoint held, to tell whether anything changed since.
    accepted: Option<(i64, Quality)>,
    pub(super) last: Option<(WallMs, Millis)>,
    result: Option<SnapshotId>,
}

#[derive(Debug)]
enum Step {
    Idle,
    PassOne { round: u32, since: BootMs },
    Stopping { seq: u64, since: BootMs },
    PassTwo { since: BootMs },
    Uploading { checkpoint: Checkpoint, newest_ns: i64 },
    Publishing { checkpoint: Checkpoint, newest_ns: i64 },
}

impl Checkpoints {
    pub(super) fn new(due: BootMs) -> Self {
        Self {
            step: Step::Idle,
            due,
            saved_ns: None,
            saved_news: false,
            rested: BootMs(0),
            began: BootMs(0),
            accepted: None,
            last: None,
            result: None,
        }
    }

    pub(super) fn restart(&mut self, due: BootMs) {
        *self = Self::new(due);
    }

    pub(super) fn saved(&mut self, at_ns: i64) {
        self.saved_ns = Some(self.saved_ns.map_or(at_ns, |old| old.max(at_ns)));
        self.saved_news = true;
    }

    /// The next one is due at once.
    pub(super) fn hurry(&mut self, now: BootMs) {
        self.due = self.due.min(now);
    }

    /// How far a snapshot of a workspace that changed last then can be trusted.
    pub(super) fn quality(&self, newest_change_ns: i64) -> Quality {
        let quiet = self.saved_ns.is_some_and(|saved| saved >= newest_change_ns);
        if quiet { Quality::Quiet } else { Quality::Running }
    }

    /// The relay has accepted one of the same content that is as good.
    pub(super) fn is_known(&self, newest_change_ns: i64, quality: Quality) -> bool {
        self.accepted.is_some_and(|(newest, had)| newest == newest_change_ns && had >= quality)
    }

    pub(super) fn stands_still(&self) -> bool {
        match self.step {
            Step::Stopping { .. } | Step::PassTwo { .. } => true,
            Step::Idle | Step::PassOne { .. } | Step::Uploading { .. } | Step::Publishing { .. } => false,
        }
    }

    pub(super) fn step_word(&self) -> Option<&'static str> {
        match self.step {
            Step::Idle => None,
            Step::PassOne { .. } => Some("pass one"),
            Step::Stopping { .. } => Some("stopping"),
            Step::PassTwo { .. } => Some("pass two"),
            Step::Uploading { .. } => Some("uploading"),
            Step::Publishing { .. } => Some("publishing"),
        }
    }

    pub(super) fn unpublished(&self) -> Option<&Checkpoint> {
        match &self.step {
            Step::Publishing { checkpoint, .. } => Some(checkpoint),
            Step::Idle
            | Step::PassOne { .. }
            | Step::Stopping { .. }
            | Step::PassTwo { .. }
            | Step::Uploading { .. } => None,
        }
    }

    pub(super) fn result(&self) -> Option<SnapshotId> {
        self.result
    }

    pub(super) fn result_taken(&mut self, snapshot: SnapshotId) {
        self.result = Some(snapshot);
    }

    pub(super) fn forget_result(&mut self) {
        self.result = None;
    }

    pub(super) fn drop_step(&mut self) {
        self.step = Step::Idle;
    }

    fn next_wanted(&self) -> BootMs {
        if self.saved_news { self.due.min(self.rested) } else { self.due }
    }

    pub(super) fn next_time(&self, attempt: &Attempt, may_operate: bool) -> Option<BootMs> {
        if attempt.record.phase != Phase::Running {
            return None;
        }
        match &self.step {
            Step::Idle if attempt.op().is_none() && may_operate && attempt.attached => {
                Some(self.next_wanted())
            }
            Step::Stopping { since, .. } | Step::PassTwo { since } => Some(*since + stop_max(attempt)),
            Step::Idle | Step::PassOne { .. } | Step::Uploading { .. } | Step::Publishing { .. } => None,
        }
    }
}

fn stop_max(attempt: &Attempt) -> Millis {
    attempt.record.assignment.spec.checkpoint.stop_max.0
}

impl Provider {
    pub(super) fn checkpoint_if_due(&mut self, name: &AttemptRef, now: Now, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        let ready_to_leave = attempt.is_told_to_leave() && attempt.is_ready_to_leave(now);
        let checkpoints = &mut attempt.checkpoints;
        let idle = matches!(checkpoints.step, Step::Idle);
        if !idle || !attempt.attached || ready_to_leave || checkpoints.next_wanted() > now.boot {
            return;
        }
        checkpoints.step = Step::PassOne { round: 1, since: now.boot };
        checkpoints.saved_news = false;
        checkpoints.began = now.boot;
        self.run(name, Operation::PassOne, out);
    }

    /// An operation of a running attempt brought something about.
    pub(super) fn checkpoint_step(
        &mut self,
        name: &AttemptRef,
        outcome: Outcome,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let seq = self.new_seq();
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        attempt.succeeded();
        let step = std::mem::replace(&mut attempt.checkpoints.step, Step::Idle);
        match (step, outcome) {
            (Step::PassOne { round, since }, Outcome::PassOne)
                if round < ROUNDS && now.boot - since > stop_max(attempt) =>
            {
                attempt.checkpoints.step = Step::PassOne { round: round + 1, since: now.boot };
                self.run(name, Operation::PassOne, out);
            }
            (Step::PassOne { .. }, Outcome::PassOne) => {
                attempt.checkpoints.step = Step::Stopping { seq, since: now.boot };
                Self::say(name, ToInit::Stop { seq }, out);
            }
            (Step::PassTwo { since }, Outcome::Taken(taken)) => {
                Self::say(name, ToInit::GoOn { seq }, out);
                self.checkpoint_taken(name, taken, now.boot - since, now, out);
            }
            (Step::Uploading { checkpoint, newest_ns }, Outcome::Uploaded) => {
                let attempt_name = name.clone();
                out.push(Effect::ToRelay(ToRelay::Publish {
                    attempt: attempt_name,
                    checkpoint: checkpoint.clone(),
                }));
                attempt.checkpoints.step = Step::Publishing { checkpoint, newest_ns };
            }
            // What was not asked for in this step changes nothing.
            (step, _) => attempt.checkpoints.step = step,
        }
    }

    fn checkpoint_taken(
        &mut self,
        name: &AttemptRef,
        taken: Taken,
        stood: Millis,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        let checkpoints = &mut attempt.checkpoints;
        let quality = checkpoints.quality(taken.newest_change_ns);
        if checkpoints.is_known(taken.newest_change_ns, quality) {
            self.checkpoint_rest(name, now);
            return;
        }
        let checkpoint = Checkpoint {
            snapshot: taken.snapshot,
            quality,
            token: name.token,
            bytes: taken.bytes,
            new_bytes: taken.new_bytes,
            stopped: stood,
            at: None,
        };
        let snapshot = checkpoint.snapshot;
        checkpoints.step = Step::Uploading { checkpoint, newest_ns: taken.newest_change_ns };
        self.run(name, Operation::Upload { snapshot }, out);
    }

    /// Every process stands still: pass two may read.
    pub(super) fn checkpoint_stopped(&mut self, name: &AttemptRef, seq: u64, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        if let Step::Stopping { seq: wanted, since } = attempt.checkpoints.step
            && wanted == seq
            && attempt.record.phase == Phase::Running
        {
            attempt.checkpoints.step = Step::PassTwo { since };
            self.run(name, Operation::PassTwo, out);
        }
    }

    pub(super) fn published(&mut self, name: &AttemptRef, snapshot: SnapshotId, now: Now) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        let step = std::mem::replace(&mut attempt.checkpoints.step, Step::Idle);
        match step {
            Step::Publishing { checkpoint, newest_ns } if checkpoint.snapshot == snapshot => {
                attempt.checkpoints.accepted = Some((newest_ns, checkpoint.quality));
                attempt.checkpoints.last = Some((now.wall, checkpoint.stopped));
                attempt.record.published = Some(snapshot);
                self.save_attempt(name);
                self.checkpoint_rest(name, now);
            }
            step => attempt.checkpoints.step = step,
        }
    }

    pub(super) fn publish_refused(
        &mut self,
        name: &AttemptRef,
        snapshot: SnapshotId,
        reason: &str,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        if attempt.checkpoints.unpublished().is_some_and(|c| c.snapshot == snapshot) {
            attempt.note = Some(format!("the relay did not take a checkpoint: {reason}"));
            self.checkpoint_rest(name, now);
            self.tell_state(name, out);
        }
    }

    fn checkpoint_rest(&mut self, name: &AttemptRef, now: Now) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        let every = attempt.record.assignment.spec.checkpoint.every.0;
        let checkpoints = &mut attempt.checkpoints;
        let took = now.boot - checkpoints.began;
        checkpoints.step = Step::Idle;
        checkpoints.due = now.boot + every;
        checkpoints.rested = now.boot + Millis(took.0.saturating_mul(REST));
        attempt.succeeded();
    }

    /// Something about it failed: the job goes on, the next one is tried when it is due.
    pub(super) fn checkpoint_failed(
        &mut self,
        name: &AttemptRef,
        why: &str,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let seq = self.new_seq();
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        attempt.note = Some(why.to_owned());
        if matches!(attempt.checkpoints.step, Step::Uploading { .. }) {
            // The snapshot is whole and still here: only its way to the relay is tried again.
            let every = attempt.record.assignment.spec.checkpoint.every.0;
            if now.boot - attempt.checkpoints.began < every.max(Millis::from_secs(60)) {
                attempt.retry_later(now);
                return self.tell_state(name, out);
            }
        }
        if attempt.checkpoints.stands_still() {
            Self::say(name, ToInit::GoOn { seq }, out);
        }
        out.push(Effect::GiveUp { attempt: name.clone() });
        self.checkpoint_rest(name, now);
        self.tell_state(name, out);
    }

    /// The job stood still for as long as it may, and not all was read: it goes on.
    fn checkpoint_takes_too_long(&mut self, name: &AttemptRef, now: Now, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        attempt.give_up_op();
        let most = stop_max(attempt);
        let why = match attempt.checkpoints.step {
            Step::Stopping { .. } => "not every process stood still in time",
            Step::Idle
            | Step::PassOne { .. }
            | Step::PassTwo { .. }
            | Step::Uploading { .. }
            | Step::Publishing { .. } => "too much changes while it computes",
        };
        let why = format!("a checkpoint was given up: {why} (checkpoint.stop_max is {} ms)", most.0);
        self.checkpoint_failed(name, &why, now, out);
    }

    /// Drops what is under way; true when an operation runs that must be given up.
    pub(super) fn checkpoint_dropped(&mut self, name: &AttemptRef) -> bool {
        let Some(attempt) = self.attempts.get_mut(name) else { return false };
        let under_way = !matches!(attempt.checkpoints.step, Step::Idle);
        attempt.checkpoints.step = Step::Idle;
        if under_way {
            attempt.give_up_op();
        }
        under_way
    }

    pub(super) fn checkpoint_on_time(&mut self, name: &AttemptRef, now: Now, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get(name) else { return };
        match &attempt.checkpoints.step {
            Step::Stopping { since, .. } | Step::PassTwo { since } => {
                if now.boot >= *since + stop_max(attempt) {
                    self.checkpoint_takes_too_long(name, now, out);
                }
            }
            Step::Uploading { checkpoint, .. } => {
                let snapshot = checkpoint.snapshot;
                if attempt.is_idle(now) && attempt.record.phase == Phase::Running {
                    self.run(name, Operation::Upload { snapshot }, out);
                }
            }
            Step::Idle | Step::PassOne { .. } | Step::Publishing { .. } => {}
        }
    }
}
