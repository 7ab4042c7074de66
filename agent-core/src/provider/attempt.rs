//! One attempt on this provider: its record, and what is only worth knowing while the agent lives.

use gpunion_protocol::ids::AttemptRef;
use gpunion_protocol::job::{AttemptState, Image, PrepareStep, StopWhy};
use gpunion_protocol::session::ToRelay;
use gpunion_protocol::time::{BootMs, Millis, Now, WallMs};

use super::checkpoint::{Checkpoints, Whole};
use super::effect::Operation;
use super::event::OpId;
use super::interval::DEPARTS;
use super::leave::Leave;
use super::record::{AttemptRecord, Phase};

/// Whether processes of the guest may exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// Its container was never started, as far as we know: an init that is started while the workspace
    /// is filled says so itself.
    Unborn,
    /// Started, or an earlier run of the agent may have started it.
    MayLive,
    Gone,
}

#[derive(Debug)]
pub struct Attempt {
    pub record: AttemptRecord,
    pub(super) life: Life,
    pub(super) checkpoints: Checkpoints,
    pub(super) leave: Leave,
    pub(super) lease_until: Option<BootMs>,
    /// A guest with egress that stopped itself when its lease ended.
    pub(super) lease_over: bool,
    pub(super) contacts_saved: BootMs,
    /// Says that the guest's init is known to this run of the agent.
    pub(super) attached: bool,
    /// What is being prepared goes on from an older checkpoint than it is to.
    pub(super) overtaken: bool,
    /// Its program has been begun: nothing can be said any more against beginning it.
    pub(super) begun: bool,
    pub note: Option<String>,
    /// When the relay was told last how far its preparation is.
    pub(super) progress_told: Option<BootMs>,
    pub disk_used: Option<u64>,
    pub processes: Option<u32>,
    /// What goes on being tried to end it, and when next.
    pub(super) next_kill: Option<BootMs>,
    pub(super) kills: u32,
    /// The second way killed processes of it.
    pub(super) second_way: bool,
    op: Option<(OpId, Operation)>,
    retry_at: Option<BootMs>,
    tries: u32,
}

impl Attempt {
    pub(super) fn new(record: AttemptRecord, now: Now) -> Self {
        let every = record.assignment.spec.checkpoint.every.map(|every| every.0);
        Self {
            record,
            life: Life::Unborn,
            checkpoints: Checkpoints::new(every, DEPARTS, now.boot),
            leave: Leave::default(),
            lease_until: None,
            lease_over: false,
            contacts_saved: now.boot,
            attached: false,
            overtaken: false,
            begun: false,
            note: None,
            progress_told: None,
            disk_used: None,
            processes: None,
            next_kill: None,
            kills: 0,
            second_way: false,
            op: None,
            retry_at: None,
            tries: 0,
        }
    }

    /// After a restart: what was started may still live.
    pub(super) fn loaded(record: AttemptRecord, now: Now) -> Self {
        let mut attempt = Self::new(record, now);
        attempt.life = match attempt.record.phase {
            Phase::Pull => Life::Unborn,
            // Its init may have been started while its workspace was filled.
            Phase::Stage
            | Phase::Create
            | Phase::Start
            | Phase::Running
            | Phase::Finishing { .. }
            | Phase::Leaving { .. }
            | Phase::Ending { .. } => Life::MayLive,
            Phase::Over { .. } => Life::Gone,
        };
        if matches!(attempt.record.phase, Phase::Ending { .. } | Phase::Leaving { exited: false, .. }) {
            attempt.next_kill = Some(now.boot);
        }
        attempt
    }

    pub fn name(&self) -> &AttemptRef {
        &self.record.assignment.attempt
    }

    /// The container exists and its program may run.
    pub fn may_live(&self) -> bool {
        self.life == Life::MayLive
    }

    /// Its GPUs are set aside for it, or in use; not while only what it left is being saved.
    pub fn uses_gpus(&self) -> bool {
        match self.record.phase {
            Phase::Over { .. } => false,
            Phase::Leaving { .. } => self.may_live(),
            Phase::Pull
            | Phase::Stage
            | Phase::Create
            | Phase::Start
            | Phase::Running
            | Phase::Finishing { .. }
            | Phase::Ending { .. } => true,
        }
    }

    /// When the newest checkpoint of this attempt was accepted, and how long the job stood still.
    pub fn last_checkpoint(&self) -> Option<(WallMs, Millis)> {
        self.checkpoints.last
    }

    /// How long it is from one checkpoint to the next now.
    pub fn checkpoint_every(&self) -> Millis {
        self.checkpoints.every
    }

    /// What the spec says of that.
    pub(super) fn every_set(&self) -> Option<Millis> {
        self.record.assignment.spec.checkpoint.every.map(|every| every.0)
    }

    pub(super) fn begin_op(&mut self, op: OpId, what: Operation) {
        self.op = Some((op, what));
        self.retry_at = None;
        self.overtaken = false;
        if what == Operation::Start {
            self.life = Life::MayLive;
        }
    }

    /// This run of an operation is the one whose answer counts.
    pub(super) fn is_op(&self, op: OpId) -> bool {
        self.op.is_some_and(|(id, _)| id == op)
    }

    /// An answer of this run of an operation is waited for.
    pub fn awaits(&self, op: OpId) -> bool {
        self.is_op(op)
    }

    /// The step of the checkpoint that is under way, in words.
    pub fn checkpoint_step(&self) -> Option<&'static str> {
        self.checkpoints.step_word()
    }

    pub(super) fn op(&self) -> Option<Operation> {
        self.op.map(|(_, what)| what)
    }

    /// Takes the running operation when this is its answer.
    pub(super) fn take_op(&mut self, op: OpId) -> Option<Operation> {
        let (_, what) = self.op.take_if(|(id, _)| *id == op)?;
        Some(what)
    }

    pub(super) fn give_up_op(&mut self) {
        self.op = None;
        self.retry_at = None;
        self.tries = 0;
    }

    pub(super) fn succeeded(&mut self) {
        self.tries = 0;
        self.retry_at = None;
    }

    /// Back-off of 1 s, doubling up to 30 s; returns how often it was tried.
    pub(super) fn retry_later(&mut self, now: Now) -> u32 {
        self.retry_at = Some(now.boot + Millis(1_000 << self.tries.min(5)).min(Millis::from_secs(30)));
        self.tries += 1;
        self.tries
    }

    pub(super) fn is_idle(&self, now: Now) -> bool {
        self.op.is_none() && self.retry_at.is_none_or(|at| at <= now.boot)
    }

    pub(super) fn next_time(&self, may_operate: bool) -> Option<BootMs> {
        let retry = self.retry_at.filter(|_| self.op.is_none() && may_operate && self.has_work());
        let kill = self.next_kill.filter(|_| self.may_live());
        let checkpoint = self.checkpoints.next_time(self, may_operate);
        let given_up = self.given_up_at().filter(|_| !self.may_live());
        [retry, kill, checkpoint, self.leaves_by(), given_up, self.waits_until()].into_iter().flatten().min()
    }

    /// Its phase is one in which an operation can bring it further.
    fn has_work(&self) -> bool {
        match &self.record.phase {
            Phase::Start => !self.waits_for_go(),
            Phase::Pull | Phase::Stage | Phase::Create | Phase::Running => true,
            Phase::Finishing { .. } => !self.may_live(),
            Phase::Leaving { .. } => !self.may_live() && self.leave.operation().is_some(),
            Phase::Ending { .. } => false,
            Phase::Over { cleaned, .. } => !cleaned,
        }
    }

    /// A checkpoint that is at the relay and not yet accepted.
    pub(super) fn unpublished(&self) -> Option<&Whole> {
        self.checkpoints.unpublished().or(self.leave.unpublished())
    }

    /// Nobody answers it, so it goes along with whatever is said of the attempt.
    pub(super) fn digest_to_tell(&self) -> Option<ToRelay> {
        let Image::Registry { digest: Some(digest), .. } = &self.record.assignment.image else { return None };
        let attempt = self.name().clone();
        self.record.found_digest.then(|| ToRelay::ImageDigest { attempt, digest: digest.clone() })
    }

    pub(super) fn state_to_tell(&self) -> ToRelay {
        ToRelay::State { attempt: self.name().clone(), state: self.state(), note: self.note.clone() }
    }

    /// It was told to leave, and runs still.
    pub(super) fn leaving_to_tell(&self) -> Option<ToRelay> {
        let leaves = self.is_told_to_leave() && self.record.phase == Phase::Running;
        leaves.then(|| ToRelay::Leaving { attempt: self.name().clone() })
    }

    pub(super) fn end_to_tell(&self) -> Option<ToRelay> {
        match &self.record.phase {
            Phase::Over { cause, result, told: false, .. } => {
                Some(ToRelay::Ended { attempt: self.name().clone(), cause: cause.clone(), result: *result })
            }
            Phase::Over { told: true, .. }
            | Phase::Pull
            | Phase::Stage
            | Phase::Create
            | Phase::Start
            | Phase::Running
            | Phase::Finishing { .. }
            | Phase::Leaving { .. }
            | Phase::Ending { .. } => None,
        }
    }

    pub fn state(&self) -> AttemptState {
        match &self.record.phase {
            Phase::Pull => AttemptState::Preparing { step: PrepareStep::Pull },
            Phase::Stage | Phase::Create => AttemptState::Preparing { step: PrepareStep::Stage },
            Phase::Start => AttemptState::Ready,
            Phase::Running if self.checkpoints.stands_still() => {
                AttemptState::Stopped { why: StopWhy::Checkpoint }
            }
            Phase::Running if self.lease_over => AttemptState::Stopped { why: StopWhy::LeaseOver },
            Phase::Running => AttemptState::Running,
            Phase::Finishing { .. } | Phase::Leaving { .. } => AttemptState::Saving,
            Phase::Ending { .. } => AttemptState::Stopped { why: StopWhy::Reclaim },
            Phase::Over { cause, .. } => AttemptState::Ended { cause: cause.clone() },
        }
    }
}
