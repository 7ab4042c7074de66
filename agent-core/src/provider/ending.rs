//! The end of an attempt, whoever wants it: its processes gone, the relay told, nothing left.
//!
//! A guest that must end is told by init's word first, then by the file `end` and through its
//! cgroup, then by the engine as well, and all that again and again. What ended without a report of init is never the
//! program's own end.

use gpunion_protocol::guest::ToInit;
use gpunion_protocol::ids::{AttemptRef, SnapshotId};
use gpunion_protocol::job::EndCause;
use gpunion_protocol::receipt::HistoryEntry;
use gpunion_protocol::session::ToRelay;
use gpunion_protocol::time::{Millis, Now};

use super::Provider;
use super::attempt::Life;
use super::effect::Effect;
use super::record::Phase;

impl Provider {
    pub(super) fn guest_gone(
        &mut self,
        name: &AttemptRef,
        memory_limit: bool,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        if attempt.life != Life::MayLive {
            return;
        }
        attempt.life = Life::Gone;
        attempt.next_kill = None;
        attempt.record.gone = Some(now.wall);
        self.save_attempt(name);
        self.leave_vestiges(name, now);
        let Some(attempt) = self.attempts.get(name) else { return };
        match attempt.record.phase.clone() {
            // Whoever ended it: what it wrote until then is there.
            Phase::Running if attempt.is_told_to_leave() && !memory_limit => {
                self.gone_to_leave(name, now, out);
            }
            Phase::Start | Phase::Running => {
                if self.checkpoint_dropped(name) || self.attempts.get(name).is_some_and(|a| a.op().is_some())
                {
                    out.push(Effect::GiveUp { attempt: name.clone() });
                }
                let cause = if memory_limit {
                    EndCause::MemoryLimit
                } else {
                    EndCause::Broken {
                        reason: "it was ended from outside, without a report of its init".to_owned(),
                    }
                };
                self.over(name, cause, None, now, out);
            }
            Phase::Ending { cause } => {
                if !self.begins_salvage(name, now, out) {
                    self.over(name, cause, None, now, out);
                }
            }
            Phase::Pull
            | Phase::Stage
            | Phase::Create
            | Phase::Finishing { .. }
            | Phase::Leaving { .. }
            | Phase::Over { .. } => {}
        }
        self.reclaim_ended(name, now);
        self.advance(name, now, out);
    }

    /// The attempt must end for a reason of ours, whatever it does now. The first reason stands.
    pub(super) fn end(&mut self, name: &AttemptRef, cause: EndCause, now: Now, out: &mut Vec<Effect>) {
        let seq = self.new_seq();
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        match attempt.record.phase {
            Phase::Ending { .. } | Phase::Over { .. } => return,
            Phase::Pull
            | Phase::Stage
            | Phase::Create
            | Phase::Start
            | Phase::Running
            | Phase::Finishing { .. }
            | Phase::Leaving { .. } => {}
        }
        if attempt.may_live() {
            attempt.kills = 1;
            attempt.next_kill = Some(now.boot + Millis(150));
            self.drop_for(name, cause, out);
            Self::say(name, ToInit::End { seq }, out);
        } else {
            attempt.give_up_op();
            out.push(Effect::GiveUp { attempt: name.clone() });
            self.over(name, cause, None, now, out);
        }
    }

    /// Whatever is under way is dropped: a guest that lives is ending for this reason now.
    pub(super) fn drop_for(&mut self, name: &AttemptRef, cause: EndCause, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        attempt.give_up_op();
        attempt.checkpoints.drop_step();
        out.push(Effect::GiveUp { attempt: name.clone() });
        self.set_phase(name, Phase::Ending { cause }, out);
    }

    /// A reclaim stopped it and waits for nothing more.
    pub(super) fn end_what_stands_still(&mut self, name: &AttemptRef, now: Now, out: &mut Vec<Effect>) {
        if let Some(attempt) = self.attempts.get_mut(name)
            && attempt.kills == 0
            && attempt.next_kill.is_some()
        {
            attempt.next_kill = Some(now.boot);
            self.kill_if_due(name, now, out);
        }
    }

    pub(super) fn told_to_end(
        &mut self,
        name: &AttemptRef,
        cause: EndCause,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let ended = |cause, result| Effect::ToRelay(ToRelay::Ended { attempt: name.clone(), cause, result });
        match self.attempts.get(name).map(|attempt| &attempt.record.phase) {
            // Also when it was told: a mere state would be answered by this same word, for ever.
            Some(Phase::Over { cause, result, .. }) => out.push(ended(cause.clone(), *result)),
            Some(
                Phase::Pull
                | Phase::Stage
                | Phase::Create
                | Phase::Start
                | Phase::Running
                | Phase::Finishing { .. }
                | Phase::Leaving { .. }
                | Phase::Ending { .. },
            ) => self.end(name, cause, now, out),
            None => out.push(ended(cause, None)),
        }
    }

    pub(super) fn over(
        &mut self,
        name: &AttemptRef,
        cause: EndCause,
        result: Option<SnapshotId>,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        if attempt.record.phase.is_over() {
            return;
        }
        attempt.give_up_op();
        let record = &attempt.record;
        let from = record.started.unwrap_or(record.accepted);
        let until = record.gone.unwrap_or(now.wall);
        let entry = HistoryEntry {
            attempt: name.clone(),
            name: record.assignment.spec.name.clone(),
            member: record.assignment.member_name.clone(),
            gpus: record.assignment.gpus.clone(),
            from,
            until,
            lasted: Millis(until.0.saturating_sub(from.0).max(0) as u64),
            ended: cause.sentence(),
            cause: Some(cause.clone()),
            receipt: record.receipt.as_deref().cloned(),
            contacts: record.contacts.clone(),
        };
        self.remember(entry);
        self.set_phase(name, Phase::Over { cause, result, told: false, cleaned: false }, out);
        if self.attempts.get(name).is_some_and(|attempt| attempt.record.orphaned) {
            self.told(name, out);
        }
        // What was given up may still be done by the engine, after all has been cleaned away.
        self.list_soon(now);
        self.advance(name, now, out);
    }

    pub(super) fn end_seen(&mut self, name: &AttemptRef, now: Now, out: &mut Vec<Effect>) {
        self.told(name, out);
        self.renew_soon(now);
    }

    /// The relay does not have it any more: the word about it was too long on its way. The workspace is
    /// gone, so the job goes on from its last checkpoint; who kept telling of it would never be done.
    pub(super) fn result_refused(&mut self, name: &AttemptRef, snapshot: SnapshotId, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        if let Phase::Over { result, told: false, .. } = &mut attempt.record.phase
            && *result == Some(snapshot)
        {
            *result = None;
            self.save_attempt(name);
            self.tell_state(name, out);
        }
    }

    /// Who had to know of its end knows.
    fn told(&mut self, name: &AttemptRef, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        if let Phase::Over { told, .. } = &mut attempt.record.phase {
            *told = true;
            out.push(Effect::ForgetLog { attempt: name.clone() });
            self.save_attempt(name);
            self.forget_if_done(name);
        }
    }

    /// Its attempts have no member any more: each ends, and nobody is told.
    pub(super) fn group_left(&mut self, now: Now, out: &mut Vec<Effect>) {
        let names: Vec<AttemptRef> = self.attempts.keys().cloned().collect();
        for name in names {
            if let Some(attempt) = self.attempts.get_mut(&name) {
                attempt.record.orphaned = true;
            }
            self.save_attempt(&name);
            self.end(&name, EndCause::Left, now, out);
            self.told(&name, out);
        }
    }

    /// Its end is told, nothing of it is on disk, and its GPUs were seen free: a reclaim that comes
    /// after a crash must still know whose memory to look for.
    pub(super) fn forget_if_done(&mut self, name: &AttemptRef) {
        let done = self.attempts.get(name).is_some_and(|a| {
            matches!(a.record.phase, Phase::Over { told: true, cleaned: true, .. }) && !self.has_vestige(a)
        });
        if done {
            self.forget_attempt(name);
        }
    }

    /// A guest that must end and still lives: init's word first, then the file `end` and
    /// the second way, then the engine as well, again and again.
    pub(super) fn kill_if_due(&mut self, name: &AttemptRef, now: Now, out: &mut Vec<Effect>) {
        let seq = self.new_seq();
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        if !attempt.may_live() || attempt.next_kill.is_none_or(|at| at > now.boot) {
            return;
        }
        attempt.kills += 1;
        let kills = attempt.kills;
        attempt.next_kill = Some(now.boot + Millis(if kills <= 2 { 150 } else { 1_000 }));
        Self::say(name, ToInit::End { seq }, out);
        if kills >= 2 {
            out.push(Effect::EndFile { attempt: name.clone() });
            out.push(Effect::SecondWay { attempt: name.clone() });
        }
        if kills >= 3 {
            out.push(Effect::EngineKill { attempt: name.clone() });
        }
    }
}
