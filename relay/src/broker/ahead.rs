//! The next provider of a job that leaves, reserved and prepared while the job still runs, so that
//! the job stands still for as little as possible.
//!
//! An attempt made ahead counts for nothing: it writes no checkpoint, and its program does not
//! begin before `Go`. When the attempt before it is over, in whatever way, it takes its place and
//! goes on from the newest checkpoint. The job is never worse off for it: one that fails ahead is no
//! failure of the job, and one that went silent is passed over.

use std::collections::BTreeSet;

use gpunion_protocol::ids::{AttemptRef, DeviceId, JobId};
use gpunion_protocol::job::EndCause;
use gpunion_protocol::session::ToAgent;
use gpunion_protocol::time::{Now, WallMs};

use super::Broker;
use super::placement::{Need, Room, choices};
use super::record::Attempt;

/// Agents before this version of the wire would begin at once.
const WAITS_SINCE: u32 = 2;
/// Providers that are tried ahead for one departure.
const TRIES: usize = 2;

impl Broker {
    /// Its provider has told its program to leave.
    pub(super) fn leaving(&mut self, device: &DeviceId, named: &AttemptRef) {
        if !self.is_of(device, named) || !self.counts(named) {
            return;
        }
        if let Some(live) = self.live.get_mut(named)
            && !std::mem::replace(&mut live.leaving, true)
        {
            self.queue_changed = true;
        }
    }

    /// It is being prepared, or is ready, while the attempt before it still runs.
    pub(super) fn is_ahead(&self, named: &AttemptRef) -> bool {
        self.open.contains(&named.job)
            && self.courses.get(&named.job).is_some_and(|course| course.held.is_none())
            && self.ahead_of(&named.job).is_some_and(|attempt| attempt.token == named.token)
    }

    /// The attempt that is made ahead for this job, if one is.
    pub(super) fn ahead_of(&self, job: &JobId) -> Option<&Attempt> {
        let last = self.attempts.get(job)?.values().next_back()?;
        (last.ahead && !last.state.is_ended()).then_some(last)
    }

    /// It may begin, and has not said yet that it has.
    pub(super) fn waits_for_go(&self, named: &AttemptRef) -> bool {
        self.attempt(&named.job, named.token.attempt).is_some_and(|a| a.prepared && !a.ahead && !a.ran)
    }

    /// It is said to run, and says itself that it waits: whatever was heard before, it may begin.
    pub(super) fn goes_again(&mut self, named: &AttemptRef) {
        let known = self.attempt(&named.job, named.token.attempt);
        if let Some(attempt) = known.filter(|attempt| attempt.prepared && attempt.ran) {
            let (device, from) = (attempt.device.clone(), attempt.from);
            self.send(&device, ToAgent::Go { attempt: named.clone(), from });
        }
    }

    /// A place for each job that leaves, the one with most to lose first.
    pub(super) fn place_ahead(
        &mut self,
        rooms: &mut [Room],
        asked: &mut BTreeSet<(JobId, DeviceId)>,
        now: Now,
    ) {
        for job in self.leaving_jobs(now) {
            let Some(row) = self.jobs.get(&job) else { continue };
            let need = Need::of(&row.spec);
            // Whoever goes may have closed already without this side knowing.
            let options = choices(&need, rooms, |device| {
                let standing = self.standing(&job, device)?;
                let waits = self.presence.get(device).is_some_and(|p| p.wire >= WAITS_SINCE);
                (waits && standing.failures == 0 && !standing.just_left).then_some(standing)
            });
            let Some(choice) = options.into_iter().next() else { continue };
            let device = rooms[choice.room].device.clone();
            if choice.standing.keyless {
                asked.insert((job, device));
                continue;
            }
            let gpus: Vec<_> = choice.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
            rooms[choice.room].occupy(&gpus, &need);
            self.place(&job, device, choice.gpus, true, now);
        }
    }

    fn leaving_jobs(&self, now: Now) -> Vec<JobId> {
        let leaving = self.live.iter().filter(|(_, live)| live.leaving && !live.lapsed);
        let mut jobs: Vec<(i64, JobId)> = leaving
            .filter(|(named, _)| self.counts(named) && self.may_try_ahead(named))
            .map(|(named, _)| (self.at_stake(named, now), named.job.clone()))
            .collect();
        jobs.sort_by(|(a, of_a), (b, of_b)| b.cmp(a).then_with(|| of_a.cmp(of_b)));
        jobs.into_iter().map(|(_, job)| job).collect()
    }

    fn may_try_ahead(&self, named: &AttemptRef) -> bool {
        let Some(all) = self.attempts.get(&named.job) else { return false };
        let tried = all.values().rev().take_while(|attempt| attempt.token > named.token);
        let (mut count, mut one_is_there) = (0, false);
        for attempt in tried {
            count += 1;
            one_is_there |= !attempt.state.is_ended();
        }
        !one_is_there && count < TRIES
    }

    /// Milliseconds of work since its last checkpoint, or since it began.
    fn at_stake(&self, named: &AttemptRef, now: Now) -> i64 {
        let began = self.attempt(&named.job, named.token.attempt).and_then(|attempt| attempt.started);
        let saved = self.courses.get(&named.job).and_then(|course| course.chain.last());
        let saved = saved.filter(|checkpoint| checkpoint.token == named.token);
        let since = saved.and_then(|checkpoint| checkpoint.taken.or(checkpoint.at)).or(began);
        now.wall.0.saturating_sub(since.unwrap_or(WallMs(now.wall.0)).0)
    }

    /// It says nothing about the job, but it may about its provider.
    pub(super) fn ended_ahead(&mut self, attempt: &Attempt, cause: &EndCause, now: Now) {
        match cause {
            EndCause::CouldNotStart { reason } | EndCause::Broken { reason } => {
                self.starts_nothing(attempt, reason, 0, now);
            }
            EndCause::Left | EndCause::Reclaimed => self.departs(&attempt.device, now),
            EndCause::Exited { .. }
            | EndCause::Signalled { .. }
            | EndCause::MemoryLimit
            | EndCause::DiskLimit
            | EndCause::Cancelled
            | EndCause::Lost
            | EndCause::Stale => {}
        }
    }

    /// The attempt before it is over, or went silent for too long: it counts from now on. False
    /// when none is there that could.
    pub(super) fn go_ahead(&mut self, job: &JobId, now: Now) -> bool {
        let Some(ahead) = self.ahead_of(job) else { return false };
        let (named, device) = (ahead.named(), ahead.device.clone());
        if !self.is_reachable(&device) {
            self.close(&named, EndCause::Stale, now);
            return false;
        }
        if let Some(lapsed) = self.newest(job).filter(|attempt| !attempt.state.is_ended()) {
            let lapsed = lapsed.named();
            self.lost(&lapsed, now);
        }
        let from = self.courses.get(job).and_then(|course| course.next_from());
        if let Some(attempt) = self.attempt_mut(&named) {
            attempt.ahead = false;
            attempt.from = from;
        }
        self.touch(&named);
        let name = self.device_name(&device).unwrap_or("a provider").to_owned();
        self.note(job, format!("Attempt {} goes on at {name}, which is prepared", named.token.attempt), now);
        self.say_at_once(job);
        self.whys.remove(job);
        self.retries.remove(job);
        self.stirred.insert(job.clone());
        self.group_changed = true;
        true
    }
}
