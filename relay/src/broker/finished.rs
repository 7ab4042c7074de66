//! What is kept of finished jobs: the latest of each member. More would grow without end, in memory
//! and on disk, with each job that is submitted and cancelled.
//!
//! Forgotten is the job's record with its attempts, its idempotency key and its log; never one
//! that is not final, and never one of which a device may still have something.

use std::collections::BTreeMap;

use gpunion_protocol::ids::{JobId, MemberId};

use super::record::Job;
use super::{Broker, Effect, Key};

/// One member's finished jobs, by the order in which they finished.
#[derive(Debug, Clone, Default)]
pub(super) struct Finished {
    jobs: BTreeMap<(u64, JobId), usize>,
    bytes: usize,
}

impl Broker {
    /// The job is final: it counts among those of its member from here on.
    pub(super) fn count_finished(&mut self, job: &JobId) {
        let (Some(row), Some(course)) = (self.jobs.get(job), self.courses.get(job)) else { return };
        let (member, key, weight) = (row.member.clone(), (course.finished, job.clone()), weigh(row));
        let finished = self.finished.entry(member.clone()).or_default();
        if finished.jobs.insert(key, weight).is_none() {
            finished.bytes = finished.bytes.saturating_add(weight);
        }
        if self.has_too_many(&member) {
            self.crowded.insert(member);
        }
    }

    fn has_too_many(&self, member: &MemberId) -> bool {
        self.finished.get(member).is_some_and(|finished| {
            // The latest one is kept however large it is.
            let many = finished.jobs.len() > self.config.finished_max.max(1);
            many || (finished.bytes > self.config.finished_bytes && finished.jobs.len() > 1)
        })
    }

    /// Forgets those that finished first, where there are too many.
    pub(super) fn forget_finished(&mut self) {
        let mut still = Vec::new();
        while let Some(member) = self.crowded.pop_first() {
            while self.has_too_many(&member) {
                let Some(job) = self.first_to_forget(&member) else {
                    still.push(member);
                    break;
                };
                self.forget(&member, &job);
            }
        }
        self.crowded.extend(still);
    }

    /// The latest of all is not looked at.
    fn first_to_forget(&self, member: &MemberId) -> Option<(u64, JobId)> {
        let finished = self.finished.get(member)?;
        let older = finished.jobs.keys().take(finished.jobs.len().saturating_sub(1));
        older.into_iter().find(|(_, job)| self.is_released(job)).cloned()
    }

    /// No device has anything of it.
    fn is_released(&self, job: &JobId) -> bool {
        self.attempts.get(job).is_none_or(|all| all.values().all(|attempt| attempt.released))
    }

    fn forget(&mut self, member: &MemberId, key: &(u64, JobId)) {
        let (_, job) = key;
        if let Some(finished) = self.finished.get_mut(member)
            && let Some(weight) = finished.jobs.remove(key)
        {
            finished.bytes = finished.bytes.saturating_sub(weight);
        }
        if let Some(row) = self.jobs.remove(job) {
            self.submits.remove(&(row.member, row.idempotency_key));
            self.touched.insert(Key::Job(job.clone()));
        }
        if self.courses.remove(job).is_some() {
            self.touched.insert(Key::Course(job.clone()));
        }
        for number in self.attempts.remove(job).unwrap_or_default().into_keys() {
            self.touched.insert(Key::Attempt(job.clone(), number));
        }
        self.out.push(Effect::Forget { job: job.clone() });
    }

    /// Each finished job is counted once, and no other.
    pub(super) fn check_finished(&self) -> Result<(), String> {
        let counted: usize = self.finished.values().map(|finished| finished.jobs.len()).sum();
        if counted + self.open.len() != self.jobs.len() {
            return Err(format!(
                "{counted} finished and {} open of {} jobs",
                self.open.len(),
                self.jobs.len()
            ));
        }
        let bytes = |f: &Finished| f.jobs.values().sum::<usize>() == f.bytes;
        match self.finished.iter().find(|(_, finished)| !bytes(finished)) {
            Some((member, _)) => Err(format!("the finished jobs of {member} are not weighed right")),
            None => Ok(()),
        }
    }
}

/// About the bytes of memory that a job takes.
fn weigh(job: &Job) -> usize {
    const RECORDS: usize = 4 << 10;
    let keys: usize = job.keys.iter().map(|key| key.wrapped.0.len() + 100).sum();
    let spec = serde_json::to_vec(&job.spec).map_or(0, |json| json.len());
    RECORDS + spec + keys + job.sealed.0.len() + job.data.len() * 600 + job.idempotency_key.len()
}
