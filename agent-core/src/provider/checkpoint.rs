//! Checkpoints of a running attempt: when one is due, and the steps of taking one.
//!
//! Pass one reads while the job computes; then init stops it, pass two reads what changed since,
//! and it goes on. The packs travel after that. One is due each `every` of the spec, else when
//! `interval.rs` says, and soon when the program says that it saved: what it says so of is worth
//! more. A stop longer than the spec's `stop_max` is cut, and the next try reads more beforehand.

use gpunion_protocol::guest::ToInit;
use gpunion_protocol::ids::{AttemptRef, SnapshotId, Token};
use gpunion_protocol::job::{Checkpoint, Quality};
use gpunion_protocol::session::ToRelay;
use gpunion_protocol::time::{BootMs, Millis, Now, WallMs};

use super::Provider;
use super::attempt::Attempt;
use super::effect::{Effect, Operation};
use super::event::{Outcome, Taken};
use super::interval::{Costs, LONGEST};
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
    costs: Costs,
    /// How long it is from one to the next now.
    pub(super) every: Millis,
    /// Stops in a row that were cut.
    cuts: u32,
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
    Uploading(Whole),
    Publishing(Whole),
}

/// A checkpoint that was taken, on its way to the relay.
#[derive(Debug, Clone)]
pub(super) struct Whole {
    pub(super) checkpoint: Checkpoint,
    newest_ns: i64,
    /// When its content was complete.
    complete: BootMs,
}

impl Whole {
    pub(super) fn publish(&self, attempt: &AttemptRef, now: Now) -> Effect {
        Effect::ToRelay(ToRelay::Publish {
            attempt: attempt.clone(),
            checkpoint: self.checkpoint.clone(),
            age: now.boot - self.complete,
        })
    }
}

impl Checkpoints {
    /// `set` by the spec, or this provider departs after so long.
    pub(super) fn new(set: Option<Millis>, departs: Millis, now: BootMs) -> Self {
        let mut checkpoints = Self {
            step: Step::Idle,
            due: now,
            saved_ns: None,
            saved_news: false,
            rested: BootMs(0),
            began: BootMs(0),
            costs: Costs::new(now),
            every: Millis(0),
            cuts: 0,
            accepted: None,
            last: None,
            result: None,
        };
        checkpoints.plan(set, departs, now);
        checkpoints
    }

    /// When the next is due, if nobody says `saved`.
    fn plan(&mut self, set: Option<Millis>, departs: Millis, now: BootMs) {
        self.every = set.unwrap_or_else(|| self.costs.interval(departs));
        // One that does not fit into its stop now will hardly fit in a moment.
        let later = Millis(self.every.0.saturating_mul(1 << self.cuts.min(10)));
        self.due = now + later.min(LONGEST.max(self.every));
        if set.is_none() {
            self.due = self.due.max(self.costs.not_before());
        }
    }

    /// It is over, taken or not.
    fn rest(&mut self, set: Option<Millis>, departs: Millis, now: BootMs) {
        let took = now - self.began;
        self.step = Step::Idle;
        self.costs.is_over(now);
        self.rested = (now + Millis(took.0.saturating_mul(REST))).max(self.costs.not_before());
        self.plan(set, departs, now);
    }

    /// One round more of the first pass leaves less to the second. After a stop that was cut, a round
    /// must be shorter to be the last.
    fn reads_again(&self, round: u32, took: Millis, stop_max: Millis) -> bool {
        let cuts = self.cuts.min(ROUNDS);
        round < ROUNDS + cuts && took.0 > stop_max.0 >> cuts
    }

    pub(super) fn saved(&mut self, at_ns: i64) {
        self.saved_ns = Some(self.saved_ns.map_or(at_ns, |old| old.max(at_ns)));
        self.saved_news = true;
    }

    /// The next one is due at once.
    pub(super) fn hurry(&mut self, now: BootMs) {
        self.due = self.due.min(now);
    }

    pub(super) fn stands_still(&self) -> bool {
        match self.step {
            Step::Stopping { .. } | Step::PassTwo { .. } => true,
            Step::Idle | Step::PassOne { .. } | Step::Uploading(_) | Step::Publishing(_) => false,
        }
    }

    pub(super) fn step_word(&self) -> Option<&'static str> {
        match self.step {
            Step::Idle => None,
            Step::PassOne { .. } => Some("pass one"),
            Step::Stopping { .. } => Some("stopping"),
            Step::PassTwo { .. } => Some("pass two"),
            Step::Uploading(_) => Some("uploading"),
            Step::Publishing(_) => Some("publishing"),
        }
    }

    pub(super) fn unpublished(&self) -> Option<&Whole> {
        match &self.step {
            Step::Publishing(whole) => Some(whole),
            Step::Idle
            | Step::PassOne { .. }
            | Step::Stopping { .. }
            | Step::PassTwo { .. }
            | Step::Uploading(_) => None,
        }
    }

    /// What was taken of a workspace that stood still since `still`, unless the relay has it already.
    /// What a program computed after it had saved is in no file, and so its content is as old as that.
    pub(super) fn whole(
        &self,
        taken: &Taken,
        (token, before): (Token, u64),
        stopped: Millis,
        still: BootMs,
        exited: bool,
        now: Now,
    ) -> Option<Whole> {
        let newest_ns = taken.newest_change_ns;
        let saved = self.saved_ns.filter(|saved| *saved >= newest_ns);
        let quality = if saved.is_some() || exited { Quality::Quiet } else { Quality::Running };
        if self.accepted.is_some_and(|(newest, had)| newest == newest_ns && had >= quality) {
            return None;
        }
        let since_saved = saved.filter(|_| !exited).map(|ns| now.wall.0.saturating_sub(ns / 1_000_000));
        let since_saved = since_saved.and_then(|ms| u64::try_from(ms).ok()).map(Millis);
        let age = since_saved.unwrap_or_default().max(now.boot - still);
        let checkpoint = Checkpoint {
            snapshot: taken.snapshot,
            number: before + 1,
            quality,
            token,
            bytes: taken.bytes,
            new_bytes: taken.new_bytes,
            stopped,
            at: None,
            taken: None,
        };
        let complete = BootMs(now.boot.0.saturating_sub(age.0));
        Some(Whole { checkpoint, newest_ns, complete })
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
            Step::Idle | Step::PassOne { .. } | Step::Uploading(_) | Step::Publishing(_) => None,
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
        checkpoints.costs.begins(now.boot);
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
                if attempt.checkpoints.reads_again(round, now.boot - since, stop_max(attempt)) =>
            {
                attempt.checkpoints.step = Step::PassOne { round: round + 1, since: now.boot };
                self.run(name, Operation::PassOne, out);
            }
            (Step::PassOne { .. }, Outcome::PassOne) => {
                attempt.checkpoints.step = Step::Stopping { seq, since: now.boot };
                attempt.checkpoints.costs.stops(now.boot);
                Self::say(name, ToInit::Stop { seq }, out);
            }
            (Step::PassTwo { since }, Outcome::Taken(taken)) => {
                Self::say(name, ToInit::GoOn { seq }, out);
                attempt.checkpoints.costs.goes_on(now.boot);
                attempt.checkpoints.cuts = 0;
                self.checkpoint_taken(name, taken, now.boot - since, now, out);
            }
            (Step::Uploading(whole), Outcome::Uploaded) => {
                out.push(whole.publish(name, now));
                attempt.checkpoints.costs.is_sent(now.boot);
                attempt.checkpoints.step = Step::Publishing(whole);
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
        let still = BootMs(now.boot.0.saturating_sub(stood.0));
        let before = (name.token, attempt.record.checkpoints);
        let Some(whole) = checkpoints.whole(&taken, before, stood, still, false, now) else {
            self.checkpoint_rest(name, now);
            return;
        };
        let snapshot = whole.checkpoint.snapshot;
        attempt.record.checkpoints = whole.checkpoint.number;
        checkpoints.step = Step::Uploading(whole);
        self.save_attempt(name);
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
            Step::Publishing(whole) if whole.checkpoint.snapshot == snapshot => {
                let Whole { checkpoint, newest_ns, .. } = whole;
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
        if attempt.checkpoints.unpublished().is_some_and(|whole| whole.checkpoint.snapshot == snapshot) {
            attempt.note = Some(format!("the relay did not take a checkpoint: {reason}"));
            self.checkpoint_rest(name, now);
            self.tell_state(name, out);
        }
    }

    fn checkpoint_rest(&mut self, name: &AttemptRef, now: Now) {
        let departs = self.departs_after(now);
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        attempt.checkpoints.rest(attempt.every_set(), departs, now.boot);
        attempt.succeeded();
    }

    /// Its program begins: all is counted from now.
    pub(super) fn plan_checkpoints(&mut self, name: &AttemptRef, now: Now) {
        let departs = self.departs_after(now);
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        attempt.checkpoints = Checkpoints::new(attempt.every_set(), departs, now.boot);
    }

    /// Something about it failed: the job goes on, the next one is tried when it is due.
    pub(super) fn checkpoint_failed(
        &mut self,
        name: &AttemptRef,
        why: &str,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        if matches!(attempt.checkpoints.step, Step::Uploading(_)) {
            // The snapshot is whole and still here: only its way to the relay is tried again.
            let every = attempt.checkpoints.every;
            if now.boot - attempt.checkpoints.began < every.max(Millis::from_secs(60)) {
                attempt.note = Some(why.to_owned());
                attempt.retry_later(now);
                return self.tell_state(name, out);
            }
        }
        self.checkpoint_given_up(name, why.to_owned(), now, out);
        self.tell_state(name, out);
    }

    fn checkpoint_given_up(&mut self, name: &AttemptRef, why: String, now: Now, out: &mut Vec<Effect>) {
        let seq = self.new_seq();
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        attempt.note = Some(why);
        if attempt.checkpoints.stands_still() {
            Self::say(name, ToInit::GoOn { seq }, out);
        }
        out.push(Effect::GiveUp { attempt: name.clone() });
        self.checkpoint_rest(name, now);
    }

    /// The job stood still for as long as it may, and not all was read: it goes on. Told once, until
    /// one is taken.
    fn checkpoint_takes_too_long(&mut self, name: &AttemptRef, now: Now, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        attempt.give_up_op();
        let most = stop_max(attempt);
        let first = attempt.checkpoints.cuts == 0;
        attempt.checkpoints.cuts = attempt.checkpoints.cuts.saturating_add(1);
        let why = match attempt.checkpoints.step {
            Step::Stopping { .. } => "not every process stood still in time",
            Step::Idle
            | Step::PassOne { .. }
            | Step::PassTwo { .. }
            | Step::Uploading(_)
            | Step::Publishing(_) => "too much changes while it computes",
        };
        let why = format!(
            "a checkpoint was given up: {why} (checkpoint.stop_max is {} ms); it is tried again later, after \
             reading more while it computes",
            most.0
        );
        self.checkpoint_given_up(name, why, now, out);
        if first {
            self.tell_state(name, out);
        }
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
            Step::Uploading(whole) => {
                let snapshot = whole.checkpoint.snapshot;
                if attempt.is_idle(now) && attempt.record.phase == Phase::Running {
                    self.run(name, Operation::Upload { snapshot }, out);
                }
            }
            Step::Idle | Step::PassOne { .. } | Step::Publishing(_) => {}
        }
    }
}
