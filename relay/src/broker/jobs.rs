//! Jobs from submit to their final state. Final states are final, whatever comes later.

use gpunion_protocol::http::Submit;
use gpunion_protocol::ids::{AttemptRef, JobId, MemberId, SnapshotId};
use gpunion_protocol::job::{EndCause, JobState, Whose};
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::time::Now;

use super::keys::WRAPPED_MAX;
use super::record::{Attempt, Course, Job, JobEnd};
use super::{Broker, Digest, Key};

/// Bytes of what is sealed with a job's key: it travels in each assignment.
const SEALED_MAX: usize = 256 << 10;
const KEYS_MAX: usize = 1000;
const DATA_MAX: usize = 64;
/// Bytes of the spec as JSON: with all else it fits into one message of a session.
const SPEC_MAX: usize = 256 << 10;
/// Characters of an idempotency key.
const KEY_MAX: usize = 200;

impl Course {
    pub(super) fn new(job: JobId) -> Self {
        Self {
            job,
            chain: Vec::new(),
            doubted: None,
            strikes: 0,
            held: None,
            result: None,
            end: None,
            finished: 0,
        }
    }

    /// Where the next attempt goes on from; absent: the job's input.
    pub(super) fn next_from(&self) -> Option<SnapshotId> {
        self.chain.iter().rev().map(|c| c.snapshot).find(|snapshot| Some(*snapshot) != self.doubted)
    }
}

impl Broker {
    /// Accepts a job, or knows one again that was accepted already.
    pub(super) fn submit(
        &mut self,
        member: &MemberId,
        key: String,
        body: Digest,
        submit: Submit,
        now: Now,
    ) -> Result<JobId, Problem> {
        self.present_member(member)
            .map_err(|_| Problem::new(Code::Unauthorized, "You are not a member any more"))?;
        if let Some(id) = self.submits.get(&(member.clone(), key.clone())) {
            let same = self.jobs.get(id).is_some_and(|job| job.body == body);
            return if same {
                Ok(id.clone())
            } else {
                Err(Problem::new(Code::KeyReused, "This idempotency key came with another request before"))
            };
        }
        if let Some(there) = self.jobs.get(&submit.job) {
            return if there.member == *member && there.body == body {
                Ok(submit.job)
            } else {
                Err(Problem::new(Code::Conflict, "A job with this id exists already"))
            };
        }
        check_submit(&key, &submit)?;
        if !submit.keys.iter().any(|k| self.is_usable(&k.device)) {
            return Err(Problem::new(Code::BadRequest, "keys: none is for a device of this group"));
        }
        if self.open_of.get(member).is_some_and(|open| *open >= self.config.jobs_max) {
            return Err(Problem::new(Code::Busy, "You have too many unfinished jobs")
                .with_detail("Wait for some to finish, or cancel some"));
        }
        let job = Job {
            id: submit.job.clone(),
            member: member.clone(),
            number: self.next_number,
            submitted: now.wall,
            spec: submit.spec,
            image: submit.image,
            input: submit.input,
            data: submit.data,
            keys: submit.keys,
            sealed: submit.sealed,
            idempotency_key: key.clone(),
            body,
        };
        let id = submit.job;
        self.next_number = self.next_number.saturating_add(1);
        self.submits.insert((member.clone(), key), id.clone());
        self.jobs.insert(id.clone(), job);
        self.courses.insert(id.clone(), Course::new(id.clone()));
        self.count_open(&id);
        self.touched.insert(Key::Job(id.clone()));
        self.touched.insert(Key::Course(id.clone()));
        self.stirred.insert(id.clone());
        self.newcomers.push(id.clone());
        Ok(id)
    }

    /// Final at once, also when a provider that is away still runs it: that one is told to end it
    /// as soon as it can be told, and nothing it says changes the job any more.
    pub(super) fn cancel(&mut self, by: &MemberId, job: &JobId) -> Result<(), Problem> {
        if !self.may_see(by, job) {
            return Err(Problem::new(Code::NotFound, "There is no such job"));
        }
        self.finish_job(job, JobEnd::Cancelled);
        Ok(())
    }

    /// The one place where a job becomes final.
    pub(super) fn finish_job(&mut self, job: &JobId, end: JobEnd) {
        let Some(course) = self.courses.get_mut(job) else { return };
        if course.end.is_some() {
            return;
        }
        course.end = Some(end);
        course.held = None;
        course.finished = self.next_finished;
        self.next_finished = self.next_finished.saturating_add(1);
        self.touched.insert(Key::Course(job.clone()));
        self.count_no_longer_open(job);
        self.whys.remove(job);
        self.retries.remove(job);
        self.wraps.retain(|(of, _), _| of != job);
        self.say_at_once(job);
        self.count_finished(job);
        self.stirred.insert(job.clone());
        self.queue_changed = true;
    }

    /// The job is not final: it counts among those of its member.
    pub(super) fn count_open(&mut self, job: &JobId) {
        if self.open.insert(job.clone())
            && let Some(row) = self.jobs.get(job)
        {
            *self.open_of.entry(row.member.clone()).or_default() += 1;
        }
    }

    fn count_no_longer_open(&mut self, job: &JobId) {
        if self.open.remove(job)
            && let Some(row) = self.jobs.get(job)
            && let Some(count) = self.open_of.get_mut(&row.member)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.open_of.remove(&row.member);
            }
        }
    }

    /// What the end of the attempt that counted means for its job.
    pub(super) fn judge(&mut self, attempt: &Attempt, cause: EndCause, result: Option<SnapshotId>, now: Now) {
        let job = &attempt.job;
        match cause.whose() {
            Whose::Program if cause == (EndCause::Exited { code: 0 }) => match result {
                Some(result) => {
                    self.keep_result(job, result);
                    self.finish_job(job, JobEnd::Succeeded);
                }
                None => self.unsaved(attempt, now),
            },
            Whose::Program => {
                let untried = self.courses.get(job).is_some_and(|course| course.doubted.is_none());
                match attempt.from {
                    Some(from) if untried && attempt.published.is_empty() => {
                        self.doubt(job, from);
                        let text = format!(
                            "{}, before its first new checkpoint; trying once from the one before",
                            cause.sentence()
                        );
                        self.note(job, text, now);
                    }
                    Some(_) | None => {
                        if let Some(result) = result {
                            self.keep_result(job, result);
                        }
                        self.finish_job(job, JobEnd::Failed { cause });
                    }
                }
            }
            Whose::Member if cause == EndCause::Cancelled => {
                // Nobody asked for it (a cancelled job is final already and comes not here).
                self.strike(attempt, "the provider cancelled it unasked", now);
            }
            Whose::Member => self.finish_job(job, JobEnd::Failed { cause }),
            Whose::Provider => match &cause {
                EndCause::CouldNotStart { reason } | EndCause::Broken { reason } => {
                    self.strike(attempt, reason, now);
                    self.starts_nothing(attempt, reason, 1, now);
                }
                EndCause::Reclaimed | EndCause::Left => {
                    self.departs(&attempt.device, now);
                    self.fruitless(attempt, &cause);
                }
                EndCause::Lost => self.fruitless(attempt, &cause),
                EndCause::Exited { .. }
                | EndCause::Signalled { .. }
                | EndCause::MemoryLimit
                | EndCause::DiskLimit
                | EndCause::Cancelled
                | EndCause::Stale => {}
            },
        }
        self.stirred.insert(job.clone());
        self.queue_changed = true;
    }

    fn keep_result(&mut self, job: &JobId, result: SnapshotId) {
        if let Some(course) = self.courses.get_mut(job) {
            course.result = Some(result);
            self.touched.insert(Key::Course(job.clone()));
        }
    }

    /// It is not placed any more; whoever looks at it reads why.
    pub(super) fn hold(&mut self, job: &JobId, why: String) {
        let Some(course) = self.courses.get_mut(job) else { return };
        course.held = Some(why);
        self.touched.insert(Key::Course(job.clone()));
        self.retries.remove(job);
        self.whys.remove(job);
        self.stirred.insert(job.clone());
    }

    /// A function of the job's attempts and its course.
    pub fn job_state(&self, job: &JobId) -> Option<JobState> {
        let course = self.courses.get(job)?;
        match &course.end {
            Some(JobEnd::Succeeded) => return Some(JobState::Succeeded),
            Some(JobEnd::Failed { cause }) => return Some(JobState::Failed { cause: cause.clone() }),
            Some(JobEnd::Cancelled) => return Some(JobState::Cancelled),
            None => {}
        }
        if let Some(why) = &course.held {
            return Some(JobState::Held { why: why.clone() });
        }
        if self.is_waiting(job) {
            let why = self.whys.get(job).map_or("It waits for its turn", String::as_str);
            return Some(JobState::Queued { why: why.to_owned() });
        }
        let newest = self.newest(job)?;
        Some(if !newest.state.is_before_running() {
            JobState::Running
        } else if self.attempts.get(job).is_some_and(|all| all.values().any(|a| a.ran)) {
            JobState::Moving
        } else {
            JobState::Placed
        })
    }

    /// Not final, not held, and nobody has it: the next attempt may be placed. One whose lease ran
    /// out does not stand in the way, but counts again if it returns before another is placed.
    pub fn is_waiting(&self, job: &JobId) -> bool {
        let free = match self.newest(job) {
            None => true,
            Some(attempt) => {
                attempt.state.is_ended() || self.live.get(&attempt.named()).is_none_or(|l| l.lapsed)
            }
        };
        free && self.courses.get(job).is_some_and(|course| course.end.is_none() && course.held.is_none())
    }

    /// Those that are only prepared ahead left out.
    pub fn newest(&self, job: &JobId) -> Option<&Attempt> {
        self.attempts.get(job)?.values().rev().find(|attempt| !attempt.ahead)
    }

    /// Its writes are taken: it has not ended, nobody newer exists, the job is not final.
    pub(super) fn counts(&self, named: &AttemptRef) -> bool {
        self.open.contains(&named.job)
            && self.newest(&named.job).is_some_and(|a| a.token == named.token && !a.state.is_ended())
    }
}

fn check_submit(key: &str, submit: &Submit) -> Result<(), Problem> {
    let bad = |what: &str| Err(Problem::new(Code::BadRequest, what));
    submit
        .spec
        .check()
        .map_err(|e| Problem::new(Code::BadSpec, "The spec can't be run").with_detail(e.to_string()))?;
    if key.is_empty() || key.chars().count() > KEY_MAX {
        return bad("The idempotency key must have 1 to 200 characters");
    }
    if submit.keys.len() > KEYS_MAX || submit.keys.iter().any(|k| k.wrapped.0.len() > WRAPPED_MAX) {
        return bad("keys: too many, or one is too long");
    }
    if submit.sealed.0.len() > SEALED_MAX {
        return bad("sealed must be under 256 KiB");
    }
    if serde_json::to_vec(&submit.spec).map_or(usize::MAX, |json| json.len()) > SPEC_MAX {
        return Err(Problem::new(Code::BadSpec, "The spec must be under 256 KiB")
            .with_detail("put long values into files of the job's folder"));
    }
    if submit.data.len() > DATA_MAX {
        return bad("data: at most 64 inputs");
    }
    if submit.image.reference().len() > 512 {
        return bad("image: the reference is too long");
    }
    Ok(())
}
