//! From records to a broker and back. Product and simulation use this same code, so a simulated
//! crash keeps exactly what was committed.

use gpunion_protocol::ids::{AttemptNo, Epoch, JobId};
use gpunion_protocol::time::Now;

use super::lease::Live;
use super::record::{Attempt, Course};
use super::usage::Ledger;
use super::{Broker, Change, Config, Effect, Key, Record};

impl Broker {
    /// The broker of an older run. `epoch` is larger than any before, and already saved. Every
    /// attempt that had not ended gets a whole lease from now before anybody takes its place.
    pub fn load(
        config: Config,
        records: impl IntoIterator<Item = Record>,
        epoch: Epoch,
        now: Now,
    ) -> (Self, Vec<Effect>) {
        let mut broker = Self::new(config);
        broker.epoch = epoch;
        for record in records {
            broker.take_in(record, now);
        }
        broker.forget_orphans();
        let jobs: Vec<JobId> = broker.jobs.keys().cloned().collect();
        for job in jobs {
            let course = broker.courses.entry(job.clone()).or_insert_with(|| Course::new(job.clone()));
            if course.end.is_none() {
                broker.count_open(&job);
            } else {
                broker.next_finished = broker.next_finished.max(course.finished.saturating_add(1));
                broker.count_finished(&job);
            }
        }
        let live: Vec<_> = broker.all_attempts().filter(|a| !a.released).map(Attempt::named).collect();
        for attempt in live {
            let at = broker.lease_end(now);
            broker.live.insert(attempt, Live::new(at, now));
        }
        broker.settling_until = Some(broker.lease_end(now));
        broker.queue_changed = true;
        let effects = broker.finish(now);
        (broker, effects)
    }

    /// What the steps since the last call changed, each row once.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.touched).into_iter().map(|key| self.change(key)).collect()
    }

    pub(super) fn change(&self, key: Key) -> Change {
        let record = match &key {
            Key::Member(id) => self.members.get(id).cloned().map(Record::Member),
            Key::Device(id) => self.devices.get(id).cloned().map(Record::Device),
            Key::Invite(id) => self.invites.get(id).cloned().map(Record::Invite),
            Key::Job(id) => self.jobs.get(id).map(|job| Record::Job(Box::new(job.clone()))),
            Key::Course(id) => self.courses.get(id).cloned().map(Record::Course),
            Key::Attempt(job, number) => {
                self.attempt(job, *number).map(|attempt| Record::Attempt(Box::new(attempt.clone())))
            }
            Key::Usage(id) => self.usage.get(id).map(|ledger| Record::Usage(ledger.record(id.clone()))),
        };
        record.map_or(Change::Delete(key), Change::Put)
    }

    fn take_in(&mut self, record: Record, now: Now) {
        match record {
            Record::Member(row) => {
                self.members.insert(row.id.clone(), row);
            }
            Record::Device(row) => {
                if !row.revoked {
                    self.tokens.insert(row.token, row.id.clone());
                }
                self.devices.insert(row.id.clone(), row);
            }
            Record::Invite(row) => {
                self.invites.insert(row.id.clone(), row);
            }
            Record::Job(row) => {
                self.next_number = self.next_number.max(row.number.saturating_add(1));
                self.submits.insert((row.member.clone(), row.idempotency_key.clone()), row.id.clone());
                self.jobs.insert(row.id.clone(), *row);
            }
            Record::Course(row) => {
                self.courses.insert(row.job.clone(), row);
            }
            Record::Attempt(row) => {
                self.attempts.entry(row.job.clone()).or_default().insert(row.token.attempt, *row);
            }
            Record::Usage(row) => {
                self.usage.insert(row.member.clone(), Ledger::new(row.gpu_ms, now));
            }
        }
    }

    /// A row whose job is not there can't be acted upon; a damaged store must not stop the rest.
    fn forget_orphans(&mut self) {
        let jobs = &self.jobs;
        self.courses.retain(|job, _| jobs.contains_key(job));
        self.attempts.retain(|job, _| jobs.contains_key(job));
    }

    pub fn all_attempts(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.values().flat_map(|of_job| of_job.values())
    }

    pub fn attempt(&self, job: &JobId, number: AttemptNo) -> Option<&Attempt> {
        self.attempts.get(job)?.get(&number)
    }
}
