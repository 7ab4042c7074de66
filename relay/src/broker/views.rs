//! What may be asked of the broker without changing it.

use std::collections::BTreeMap;

use gpunion_protocol::http::{DeviceView, Me, MemberView, Role};
use gpunion_protocol::ids::{AttemptRef, DeviceId, JobId, MemberId};
use gpunion_protocol::job::{AttemptView, JobView};

use super::record::{Attempt, Device, Job};
use super::{Broker, Digest};

/// Whose token it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    pub device: DeviceId,
    pub member: MemberId,
    pub role: Role,
}

/// Which jobs are asked for; absent: any.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Jobs {
    pub member: Option<MemberId>,
    /// Not final, or final.
    pub open: Option<bool>,
    pub name: Option<String>,
    /// Only those submitted before this one.
    pub before: Option<JobId>,
    pub limit: usize,
}

impl Broker {
    /// The device of a token's hash, unless it is revoked.
    pub fn caller(&self, token: &Digest) -> Option<Caller> {
        let device = self.devices.get(self.tokens.get(token)?).filter(|d| !d.revoked)?;
        let member = self.members.get(&device.member).filter(|m| !m.removed)?;
        Some(Caller { device: device.id.clone(), member: member.id.clone(), role: member.role })
    }

    pub fn me(&self, device: &DeviceId) -> Option<Me> {
        let device = self.devices.get(device)?;
        let member = self.members.get(&device.member)?;
        Some(Me {
            group: self.config.group.clone(),
            member: member.id.clone(),
            member_name: member.name.clone(),
            role: member.role,
            device: device.id.clone(),
            device_name: device.name.clone(),
        })
    }

    /// Without removed ones.
    pub fn members(&self) -> Vec<MemberView> {
        let present = self.members.values().filter(|m| !m.removed);
        present
            .map(|member| MemberView {
                id: member.id.clone(),
                name: member.name.clone(),
                role: member.role,
                devices: self.views_where(|d| d.member == member.id),
            })
            .collect()
    }

    /// Every device, revoked ones too.
    pub fn devices(&self) -> Vec<DeviceView> {
        self.views_where(|_| true)
    }

    /// Devices that are connected and told an offer, open or not.
    pub fn providers(&self) -> Vec<DeviceView> {
        self.views_where(|d| self.presence.get(&d.id).is_some_and(|p| p.fresh && p.offer.is_some()))
    }

    /// With what is sealed and wrapped for its own member alone.
    pub fn job_view(&self, job: &JobId, for_member: &MemberId) -> Option<JobView> {
        let row = self.jobs.get(job)?;
        let course = self.courses.get(job)?;
        let own = row.member == *for_member;
        let usable = |device: &DeviceId| self.devices.get(device).is_some_and(|d| !d.revoked);
        Some(JobView {
            id: row.id.clone(),
            member: row.member.clone(),
            member_name: self.members.get(&row.member).map(|m| m.name.clone()).unwrap_or_default(),
            spec: row.spec.clone(),
            image: row.image.clone(),
            state: self.job_state(job)?,
            submitted: row.submitted,
            attempts: self
                .attempts
                .get(job)
                .into_iter()
                .flat_map(|all| all.values())
                .map(|a| self.attempt_view(a))
                .collect(),
            checkpoints: course.chain.clone(),
            result: course.result,
            sealed: own.then(|| row.sealed.clone()),
            wrapped: row.keys.iter().filter(|k| own && usable(&k.device)).cloned().collect(),
        })
    }

    /// Newest first. `None` when `before` names a job that is not there.
    pub fn jobs_where(&self, wanted: &Jobs, for_member: &MemberId) -> Option<Vec<JobView>> {
        let before = match &wanted.before {
            Some(job) => self.jobs.get(job)?.number,
            None => u64::MAX,
        };
        let fits = |job: &&Job| {
            job.number < before
                && wanted.member.as_ref().is_none_or(|member| job.member == *member)
                && wanted.open.is_none_or(|open| self.open.contains(&job.id) == open)
                && wanted.name.as_ref().is_none_or(|name| job.spec.name == *name)
        };
        let mut rows: Vec<_> = self.jobs.values().filter(fits).map(|job| (job.number, &job.id)).collect();
        rows.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
        // Views are large: only those are made that are shown.
        Some(
            rows.into_iter()
                .take(wanted.limit)
                .filter_map(|(_, job)| self.job_view(job, for_member))
                .collect(),
        )
    }

    /// Of how many jobs the state has this word; attempts ever placed of them, and those not ended.
    pub fn tally(&self) -> (BTreeMap<&'static str, u64>, u64, u64) {
        let mut words = BTreeMap::new();
        for state in self.jobs.keys().filter_map(|job| self.job_state(job)) {
            *words.entry(state.word()).or_default() += 1;
        }
        let (mut attempts, mut unended) = (0, 0);
        for attempt in self.all_attempts() {
            attempts += 1;
            unended += u64::from(!attempt.state.is_ended());
        }
        (words, attempts, unended)
    }

    pub fn knows(&self, job: &JobId) -> bool {
        self.jobs.contains_key(job)
    }

    /// Final, and no attempt of it goes on; also one that is not known.
    pub fn is_over(&self, job: &JobId) -> bool {
        let ended = |all: &BTreeMap<_, Attempt>| all.values().all(|attempt| attempt.state.is_ended());
        !self.open.contains(job) && self.attempts.get(job).is_none_or(ended)
    }

    pub fn job_member(&self, job: &JobId) -> Option<&MemberId> {
        self.jobs.get(job).map(|row| &row.member)
    }

    /// Its own member, or an operator: may see the job and its log, and cancel it.
    pub fn may_see(&self, member: &MemberId, job: &JobId) -> bool {
        let own = self.job_member(job) == Some(member) && self.present_member(member).is_ok();
        own || (self.jobs.contains_key(job) && self.is_operator(member))
    }

    /// May fetch the job's snapshots and packs: its member's devices, and the provider of an
    /// attempt that has not ended.
    pub fn may_read(&self, device: &DeviceId, job: &JobId) -> bool {
        self.is_of_member(device, job) || self.runs(device, job)
    }

    /// May store snapshots for the job: its member's devices, and the provider of the attempt that
    /// counts.
    pub fn may_write(&self, device: &DeviceId, job: &JobId) -> bool {
        let counts = self.newest(job).is_some_and(|a| a.device == *device && self.counts(&a.named()));
        self.is_of_member(device, job) || (counts && self.is_usable(device))
    }

    /// Whether a piece of log of this attempt may come from this device. A later attempt does not
    /// shut out the last words of an earlier one; but once the job is final and the device has said
    /// that it is done with the attempt, the log is closed.
    pub fn log_accepts(&self, device: &DeviceId, attempt: &AttemptRef) -> bool {
        let ongoing = self.open.contains(&attempt.job) || self.live.contains_key(attempt);
        ongoing && self.is_usable(device) && self.is_of(device, attempt)
    }

    /// The device's name, for the log's marks.
    pub fn device_name(&self, device: &DeviceId) -> Option<&str> {
        self.devices.get(device).map(|d| d.name.as_str())
    }

    pub fn is_operator(&self, member: &MemberId) -> bool {
        self.members.get(member).is_some_and(|m| !m.removed && m.role == Role::Operator)
    }

    /// Nobody has joined yet: the first start makes an invite for an operator.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn is_usable(&self, device: &DeviceId) -> bool {
        self.devices.get(device).is_some_and(|d| !d.revoked)
    }

    pub(super) fn is_of_member(&self, device: &DeviceId, job: &JobId) -> bool {
        let owner = self.devices.get(device).filter(|d| !d.revoked).map(|d| &d.member);
        owner.is_some() && owner == self.job_member(job)
    }

    fn runs(&self, device: &DeviceId, job: &JobId) -> bool {
        let attempts = self.attempts.get(job).into_iter().flat_map(|all| all.values());
        self.is_usable(device)
            && attempts.filter(|a| !a.state.is_ended()).any(|attempt| attempt.device == *device)
    }

    fn attempt_view(&self, attempt: &Attempt) -> AttemptView {
        AttemptView {
            number: attempt.token.attempt,
            device: attempt.device.clone(),
            device_name: self.device_name(&attempt.device).unwrap_or("unknown").to_owned(),
            state: attempt.state.clone(),
            note: self
                .live
                .get(&attempt.named())
                .and_then(|live| live.note.clone())
                .filter(|_| !attempt.state.is_ended()),
            started: attempt.started,
            ended: attempt.ended,
            standin: attempt.standin,
            moved: attempt.moved.clone(),
        }
    }

    fn views_where(&self, wanted: impl Fn(&Device) -> bool) -> Vec<DeviceView> {
        self.devices.values().filter(|d| wanted(d)).map(|d| self.device_view(d)).collect()
    }

    fn device_view(&self, device: &Device) -> DeviceView {
        let presence = self.presence.get(&device.id);
        let offer = presence.filter(|p| p.fresh).and_then(|p| p.offer.clone());
        let used = |uuid| {
            self.live
                .keys()
                .filter_map(|named| self.known(&device.id, named))
                .any(|attempt| attempt.gpus.contains(uuid))
        };
        let free = offer.iter().flat_map(|o| &o.gpus).filter(|gpu| gpu.free_for_guests && !used(&gpu.uuid));
        let gpus_free = u32::try_from(free.count()).unwrap_or(u32::MAX);
        DeviceView {
            id: device.id.clone(),
            member: device.member.clone(),
            name: device.name.clone(),
            public_key: device.public_key.clone(),
            connected: presence.is_some_and(|p| p.session.is_some()),
            offer,
            gpus_free,
            revoked: device.revoked,
        }
    }
}
