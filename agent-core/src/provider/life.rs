//! The life of an attempt up to its end: accepted, prepared, started, run, finished.
//!
//! Each phase has one operation that may be run again after any crash. The engine's silence
//! makes an operation wait; only a refusal ends the attempt, and that is the provider's fault.

use std::collections::BTreeMap;

use gpunion_protocol::gpu::GpuState;
use gpunion_protocol::guest::{Exit, FromInit, ToInit};
use gpunion_protocol::ids::AttemptRef;
use gpunion_protocol::job::{EndCause, Image};
use gpunion_protocol::session::{Assignment, ToRelay};
use gpunion_protocol::time::{Millis, Now};

use super::Provider;
use super::attempt::{Attempt, Life};
use super::effect::{Effect, Operation, Word};
use super::event::{OpId, Outcome, Trouble};
use super::record::{AttemptRecord, Phase};
use crate::gpu::verify::GuestTraces;

/// A result that can't be read so often is given up; the job goes on from its last checkpoint.
const RESULT_TRIES: u32 = 5;
/// So often at most the relay is told how far a preparation is.
const TELL_EACH: Millis = Millis(2_000);

impl Provider {
    pub(super) fn assigned(&mut self, assignment: Assignment, now: Now, out: &mut Vec<Effect>) {
        let name = assignment.attempt.clone();
        if self.attempts.contains_key(&name) {
            // The word to go is in an assignment too, where nothing was heard of the first.
            return if assignment.wait {
                self.tell_state(&name, out)
            } else {
                self.go(&name, assignment.from, now, out)
            };
        }
        // An owner who has just closed is no failure of the job: it costs it nothing.
        let refusal = match self.can_take(&assignment) {
            _ if !self.is_open() || assignment.gpus.iter().any(|gpu| self.is_kept(gpu)) => {
                Some(EndCause::Left)
            }
            Err(reason) => Some(EndCause::CouldNotStart { reason }),
            Ok(()) => None,
        };
        if let Some(cause) = refusal {
            out.push(Effect::ToRelay(ToRelay::Ended { attempt: name, cause, result: None }));
            return;
        }
        let before = assignment.gpus.iter().filter_map(|gpu| self.before_guest(gpu));
        let record = AttemptRecord {
            before: before.collect(),
            assignment,
            phase: Phase::Pull,
            accepted: now.wall,
            started: None,
            container: None,
            process: None,
            found_digest: false,
            orphaned: false,
            traces: GuestTraces::default(),
            published: None,
            told_to_leave: None,
            gone: None,
            receipt: None,
            checkpoints: 0,
            contacts: None,
        };
        self.attempts.insert(name.clone(), Attempt::new(record, now));
        self.save_attempt(&name);
        self.tell_state(&name, out);
        self.advance(&name, now, out);
    }

    /// The wish, the facts and the caps decide; the broker may have an old picture of them.
    fn can_take(&self, assignment: &Assignment) -> Result<(), String> {
        assignment.spec.check().map_err(|e| e.to_string())?;
        self.may_reach(&assignment.spec)?;
        if assignment.spec.resources.gpus as usize != assignment.gpus.len() {
            return Err("the assignment names another number of GPUs than the spec".to_owned());
        }
        let working = || self.attempts.values().filter(|a| !a.record.phase.is_over());
        for gpu in &assignment.gpus {
            if working().any(|a| a.record.assignment.gpus.contains(gpu)) {
                return Err(format!("{gpu} is lent to another attempt"));
            }
            if !self.is_shared(gpu) {
                return Err(format!("{gpu} is not lent now"));
            }
            if self.gpus.gpus.get(gpu).is_none_or(|sample| sample.state != GpuState::Ok) {
                return Err(format!("{gpu} does not answer now"));
            }
        }
        let used = || working().map(|a| &a.record.assignment).chain([assignment]);
        let (mut cpus, mut memory, mut disk) = (0u64, 0u64, 0u64);
        for r in used().map(|a| &a.spec.resources) {
            cpus += u64::from(r.cpus);
            memory = memory.saturating_add(r.memory.0);
            disk = disk.saturating_add(r.disk.0);
        }
        // Inputs lie here once, however many attempts read them.
        let inputs: BTreeMap<_, _> =
            used().flat_map(|a| &a.data).map(|data| (data.snapshot, data.bytes)).collect();
        disk = inputs.values().fold(disk, |disk, bytes| disk.saturating_add(*bytes));
        let caps = &self.wish.caps;
        if cpus > u64::from(caps.cpus) || memory > caps.memory.0 || disk > caps.disk.0 {
            return Err("the owner's caps leave too little CPU, memory or disk".to_owned());
        }
        Ok(())
    }

    pub(super) fn tell_state(&mut self, name: &AttemptRef, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get(name).filter(|a| !a.record.orphaned) else { return };
        out.extend(attempt.digest_to_tell().map(Effect::ToRelay));
        let message = attempt.end_to_tell().unwrap_or_else(|| attempt.state_to_tell());
        out.push(Effect::ToRelay(message));
        out.extend(attempt.leaving_to_tell().map(Effect::ToRelay));
    }

    pub(super) fn set_phase(&mut self, name: &AttemptRef, phase: Phase, out: &mut Vec<Effect>) {
        if let Some(attempt) = self.attempts.get_mut(name) {
            attempt.record.phase = phase;
            attempt.succeeded();
            self.save_attempt(name);
            self.tell_state(name, out);
        }
    }

    /// Runs the operation that the phase wants, when nothing of the attempt runs.
    pub(super) fn advance(&mut self, name: &AttemptRef, now: Now, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get(name) else { return };
        if !attempt.is_idle(now) || !self.may_operate() {
            return;
        }
        let may_live = attempt.may_live();
        let what = match &attempt.record.phase {
            Phase::Pull => Operation::Image,
            Phase::Stage => Operation::Stage,
            Phase::Create => Operation::Create,
            Phase::Start if attempt.waits_for_go() => return,
            Phase::Start => Operation::Start,
            Phase::Running => return self.checkpoint_if_due(name, now, out),
            // Init still holds its report, or the last processes are going.
            Phase::Finishing { .. } if may_live => return,
            Phase::Finishing { .. } => match attempt.checkpoints.result() {
                Some(snapshot) => Operation::Upload { snapshot },
                None => Operation::Whole,
            },
            Phase::Leaving { .. } if may_live => return,
            Phase::Leaving { .. } => match attempt.leave.operation() {
                Some(operation) => operation,
                None => return,
            },
            Phase::Ending { .. } => return,
            Phase::Over { cleaned: false, .. } => Operation::Clean,
            Phase::Over { cleaned: true, .. } => return,
        };
        if let (Operation::Upload { .. }, Some(attempt)) = (what, self.attempts.get_mut(name)) {
            attempt.leave.sends_now(now.boot);
        }
        self.run(name, what, out);
    }

    pub(super) fn done(
        &mut self,
        name: &AttemptRef,
        op: OpId,
        outcome: Result<Outcome, Trouble>,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let Some(what) = self.attempts.get_mut(name).and_then(|attempt| attempt.take_op(op)) else { return };
        match outcome {
            Ok(outcome) => self.succeeded(name, outcome, now, out),
            Err(trouble) => self.troubled(name, what, trouble, now, out),
        }
        self.advance(name, now, out);
    }

    /// For people: told now and then, and not at all once the preparation is over.
    pub(super) fn progress(&mut self, name: &AttemptRef, note: String, now: Now, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        if !matches!(attempt.record.phase, Phase::Pull | Phase::Stage) || attempt.op().is_none() {
            return;
        }
        attempt.note = Some(note);
        if attempt.progress_told.is_none_or(|at| now.boot - at >= TELL_EACH) {
            attempt.progress_told = Some(now.boot);
            self.tell_state(name, out);
        }
    }

    fn succeeded(&mut self, name: &AttemptRef, outcome: Outcome, now: Now, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        attempt.note = None;
        match (attempt.record.phase.clone(), outcome) {
            (Phase::Pull, Outcome::Image { digest }) => {
                // From here on the image is the one that was found, whatever its name comes to mean.
                if let (Some(found), Image::Registry { digest: fixed @ None, .. }) =
                    (digest, &mut attempt.record.assignment.image)
                {
                    *fixed = Some(found);
                    attempt.record.found_digest = true;
                }
                self.set_phase(name, Phase::Stage, out);
            }
            (Phase::Stage, Outcome::Staged) => {
                if !self.stages_again(name, out) {
                    self.set_phase(name, Phase::Create, out);
                }
            }
            (Phase::Create, Outcome::Created { container }) => {
                attempt.record.traces = GuestTraces::new(Some(container.clone()));
                attempt.record.container = Some(container);
                self.set_phase(name, Phase::Start, out);
            }
            (Phase::Start, Outcome::Started { process }) => {
                attempt.record.process = Some(process);
                attempt.record.started = Some(now.wall);
                attempt.attached = true;
                attempt.life = Life::MayLive;
                self.plan_checkpoints(name, now);
                self.set_phase(name, Phase::Running, out);
                self.tell_deadline(name, now, out);
                out.push(Effect::Say { attempt: name.clone(), word: Word::Begin });
            }
            (Phase::Running, outcome) => self.checkpoint_step(name, outcome, now, out),
            (Phase::Leaving { .. }, outcome) => self.leave_step(name, outcome, now, out),
            (Phase::Finishing { .. }, Outcome::Taken(taken)) => {
                attempt.checkpoints.result_taken(taken.snapshot);
                attempt.succeeded();
            }
            (Phase::Finishing { exit, memory_limit }, Outcome::Uploaded) => {
                let result = attempt.checkpoints.result();
                self.over(name, cause_of(exit, memory_limit), result, now, out);
            }
            (Phase::Over { cause, result, told, .. }, Outcome::Cleaned) => {
                attempt.record.phase = Phase::Over { cause, result, told, cleaned: true };
                self.save_attempt(name);
                self.forget_if_done(name);
            }
            // An answer that no longer fits what was asked: the phase has moved on.
            (
                Phase::Pull
                | Phase::Stage
                | Phase::Create
                | Phase::Start
                | Phase::Finishing { .. }
                | Phase::Ending { .. }
                | Phase::Over { .. },
                _,
            ) => {}
        }
    }

    fn troubled(
        &mut self,
        name: &AttemptRef,
        what: Operation,
        trouble: Trouble,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        let (reason, final_) = match trouble.clone() {
            Trouble::Away { why } => (why, false),
            Trouble::Refused { reason } => (reason, true),
        };
        let news = attempt.note.replace(reason.clone()).is_none_or(|old| old != reason);
        match &attempt.record.phase {
            Phase::Pull | Phase::Stage | Phase::Create | Phase::Start if final_ => {
                self.end(name, EndCause::CouldNotStart { reason }, now, out);
            }
            Phase::Running => {
                self.checkpoint_failed(name, &format!("a checkpoint could not be taken: {reason}"), now, out);
            }
            Phase::Finishing { .. } => {
                let tries = attempt.retry_later(now);
                if final_ && matches!(what, Operation::Upload { .. }) {
                    attempt.checkpoints.forget_result();
                }
                if final_ && tries >= RESULT_TRIES {
                    let cause = EndCause::Broken { reason: format!("its result can't be read: {reason}") };
                    self.over(name, cause, None, now, out);
                } else if news {
                    self.tell_state(name, out);
                }
            }
            Phase::Pull | Phase::Stage | Phase::Create | Phase::Start => {
                attempt.retry_later(now);
                // Who waits for it may know what it waits for.
                if news {
                    self.tell_state(name, out);
                }
            }
            Phase::Leaving { .. } => {
                if news {
                    self.tell_state(name, out);
                }
                if !self.salvage_troubled(name, what, now, out) {
                    self.leave_troubled(name, what, &trouble, now, out);
                }
            }
            Phase::Ending { .. } | Phase::Over { .. } => {
                attempt.retry_later(now);
            }
        }
    }

    pub(super) fn init_says(
        &mut self,
        name: &AttemptRef,
        word: FromInit,
        memory_limit: bool,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        match word {
            FromInit::Hello { begun, .. } => self.hello(name, begun, now, out),
            FromInit::DeadlinePassed => self.deadline_passed(name, out),
            FromInit::Started { .. } => {
                attempt.begun = true;
                self.tell_state(name, out);
            }
            FromInit::GoingOn { .. } => self.tell_state(name, out),
            FromInit::NotStarted { reason } => {
                attempt.note = Some(reason);
                self.exited(name, Exit::Code { code: 127 }, false, now, out);
            }
            FromInit::Exited(exit) => self.exited(name, exit, memory_limit, now, out),
            FromInit::Stopped { seq, processes, running, .. } => {
                attempt.processes = Some(processes);
                // Some that did not stop in init's own limit: neither a reclaim nor pass two may
                // take them for standing still.
                if running == 0 {
                    self.reclaim_stopped(name, processes, now);
                    self.end_what_stands_still(name, now, out);
                    self.checkpoint_stopped(name, seq, out);
                }
            }
            FromInit::Saved { at_ns } => {
                attempt.checkpoints.saved(at_ns);
                attempt.leave.saved(at_ns, attempt.record.told_to_leave);
            }
            FromInit::Usage { bytes, .. } => {
                attempt.disk_used = Some(bytes);
                if bytes > attempt.record.assignment.spec.resources.disk.0 {
                    self.end(name, EndCause::DiskLimit, now, out);
                }
            }
            FromInit::Pong { processes, .. } => attempt.processes = Some(processes),
            FromInit::Signalled { .. } | FromInit::Confused { .. } => {}
        }
        self.advance(name, now, out);
    }

    fn hello(&mut self, name: &AttemptRef, begun: bool, now: Now, out: &mut Vec<Effect>) {
        let seq = self.new_seq();
        self.tell_deadline(name, now, out);
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        attempt.attached = true;
        attempt.begun |= begun;
        let say = |word| Effect::Say { attempt: name.clone(), word };
        match &attempt.record.phase {
            // Started early; what may live must be ended by whoever ends the attempt.
            Phase::Stage | Phase::Create => attempt.life = Life::MayLive,
            // The first Hello of a guest is the driver's sign that it started.
            Phase::Pull | Phase::Start => {}
            // Nothing has been computed yet, and it must go.
            Phase::Running if !begun && attempt.is_told_to_leave() => {
                self.end(name, EndCause::Left, now, out);
            }
            Phase::Running if !begun => out.push(say(Word::Begin)),
            Phase::Running => {
                out.push(say(Word::Adopt));
                // An agent that died while the guest stood still left it so.
                if !attempt.checkpoints.stands_still() {
                    out.push(say(Word::Plain(ToInit::GoOn { seq })));
                }
                if attempt.is_told_to_leave() {
                    self.say_leave(name, now, out);
                }
            }
            Phase::Finishing { .. } | Phase::Leaving { exited: true, .. } => {
                out.push(say(Word::Plain(ToInit::ExitSeen)));
            }
            Phase::Leaving { exited: false, .. } | Phase::Ending { .. } | Phase::Over { .. } => {
                out.push(say(Word::Plain(ToInit::End { seq })))
            }
        }
    }

    /// Asked for twice, the first answer may have begun it.
    pub(super) fn cannot_begin(
        &mut self,
        name: &AttemptRef,
        reason: String,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        if self.attempts.get(name).is_some_and(|attempt| !attempt.begun) {
            self.end(name, EndCause::CouldNotStart { reason }, now, out);
        }
    }

    fn exited(&mut self, name: &AttemptRef, exit: Exit, memory_limit: bool, now: Now, out: &mut Vec<Effect>) {
        if self.exited_to_leave(name, exit, memory_limit, now, out) {
            return self.advance(name, now, out);
        }
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        match &attempt.record.phase {
            Phase::Start | Phase::Running => {
                let starting = attempt.op().is_some();
                if self.checkpoint_dropped(name) || starting {
                    out.push(Effect::GiveUp { attempt: name.clone() });
                }
                if let Some(attempt) = self.attempts.get_mut(name) {
                    attempt.give_up_op();
                }
                self.set_phase(name, Phase::Finishing { exit, memory_limit }, out);
                Self::say(name, ToInit::ExitSeen, out);
            }
            Phase::Finishing { .. } | Phase::Leaving { .. } => Self::say(name, ToInit::ExitSeen, out),
            Phase::Ending { .. } => {
                let seq = self.new_seq();
                Self::say(name, ToInit::End { seq }, out);
            }
            Phase::Pull | Phase::Stage | Phase::Create | Phase::Over { .. } => {}
        }
        self.advance(name, now, out);
    }

    /// Everything that time alone brings about.
    pub(super) fn on_time(&mut self, now: Now, out: &mut Vec<Effect>) {
        self.expire_wishes(now);
        self.renew_if_due(now, out);
        self.list_if_due(now, out);
        self.reclaim_on_time(now, out);
        self.forget_vestiges(now);
        let names: Vec<AttemptRef> = self.attempts.keys().cloned().collect();
        for name in names {
            self.kill_if_due(&name, now, out);
            self.wait_on_time(&name, now, out);
            self.leave_on_time(&name, now, out);
            self.last_on_time(&name, now, out);
            self.checkpoint_on_time(&name, now, out);
            self.advance(&name, now, out);
            self.forget_if_done(&name);
        }
    }
}

fn cause_of(exit: Exit, memory_limit: bool) -> EndCause {
    match exit {
        Exit::Code { code: 0 } => EndCause::Exited { code: 0 },
        _ if memory_limit => EndCause::MemoryLimit,
        Exit::Code { code } => EndCause::Exited { code },
        Exit::Signal { signal } => EndCause::Signalled { signal },
    }
}
