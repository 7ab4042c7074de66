//! Providers that start nothing (F16). When three jobs in a row, not all of one member, could not
//! start on a provider and nothing else started there meanwhile, the provider is at fault and not
//! the jobs: it gets none for a while, and they are charged no strike. After that one job at a time
//! may try it, last among those that fit; a start clears it, and another failure doubles the while.
//!
//! A job that had failed there before proves nothing new: its failure is its own again, so that
//! jobs that can start nowhere come to be held. All of this is forgotten when the relay starts
//! anew, as offers and sessions are: three more failures tell it again.

use std::collections::{BTreeSet, VecDeque};

use gpunion_protocol::ids::{AttemptRef, DeviceId, JobId};
use gpunion_protocol::time::{BootMs, Millis, Now};
use gpunion_protocol::units::Span;

use super::placement::{Need, Room, Standing};
use super::record::Attempt;
use super::{Broker, Key};

/// So many jobs in a row that could not start tell that it is the provider.
const JOBS: usize = 3;
const FIRST: Millis = Millis::from_secs(5 * 60);
const LONGEST: Millis = Millis::from_secs(60 * 60);
/// Of more failed starts the oldest are forgotten.
const KEPT: usize = 16;

/// A provider where the last start failed.
#[derive(Debug, Clone, Default)]
pub(super) struct Aside {
    /// Jobs that could not start, since one did.
    failed: VecDeque<Failed>,
    /// How long nothing is placed there; zero: it was not put aside.
    length: Millis,
    /// Nothing is placed there until then.
    until: Option<BootMs>,
    /// Who tries it after that.
    trial: Option<AttemptRef>,
    reason: String,
}

#[derive(Debug, Clone)]
struct Failed {
    job: JobId,
    times: usize,
    /// Strikes that it cost the job and that were not taken back.
    strikes: u32,
}

impl Aside {
    fn add(&mut self, job: &JobId, strikes: u32) {
        match self.failed.iter_mut().find(|failed| failed.job == *job) {
            Some(failed) => {
                failed.times += 1;
                failed.strikes += strikes;
            }
            None => self.failed.push_back(Failed { job: job.clone(), times: 1, strikes }),
        }
        if self.failed.len() > KEPT {
            self.failed.pop_front();
        }
    }

    fn put(&mut self, length: Millis, now: Now) {
        self.length = length;
        self.until = Some(now.boot + length);
        self.trial = None;
    }

    fn is_put(&self) -> bool {
        self.length > Millis(0)
    }
}

impl Broker {
    /// The attempt ended before it ran, and its provider is to blame. `strikes`: what that cost its
    /// job.
    pub(super) fn starts_nothing(&mut self, attempt: &Attempt, reason: &str, strikes: u32, now: Now) {
        if attempt.ran {
            return;
        }
        let (device, job) = (&attempt.device, &attempt.job);
        let mut aside = self.asides.remove(device).unwrap_or_default();
        aside.add(job, strikes);
        reason.clone_into(&mut aside.reason);
        if !aside.is_put() {
            if self.blame_the_provider(&aside) {
                aside.put(FIRST, now);
                self.take_back_strikes(device, &mut aside);
            }
        } else {
            let new = self.failures(job, device) <= 1;
            if aside.trial.as_ref() == Some(&attempt.named()) {
                let length = if new { Millis(aside.length.0 * 2).min(LONGEST) } else { aside.length };
                aside.put(length, now);
            }
            if new {
                self.take_back_strikes(device, &mut aside);
            }
        }
        self.asides.insert(device.clone(), aside);
    }

    /// An attempt runs there.
    pub(super) fn starts_again(&mut self, device: &DeviceId) {
        if self.asides.remove(device).is_some_and(|aside| aside.is_put()) {
            self.queue_changed = true;
        }
    }

    /// An attempt was placed there.
    pub(super) fn is_tried(&mut self, device: &DeviceId, named: &AttemptRef) {
        if let Some(aside) = self.asides.get_mut(device).filter(|aside| aside.is_put()) {
            aside.trial = Some(named.clone());
        }
    }

    /// Whose time is over may be tried again.
    pub(super) fn end_asides(&mut self, now: Now) {
        for aside in self.asides.values_mut() {
            if aside.until.take_if(|at| *at <= now.boot).is_some() {
                self.queue_changed = true;
            }
        }
    }

    pub(super) fn asides_end(&self) -> impl Iterator<Item = BootMs> {
        self.asides.values().filter_map(|aside| aside.until)
    }

    /// Nothing may be placed there now.
    pub(super) fn is_barred(&self, device: &DeviceId) -> bool {
        let tries = |named: &AttemptRef| {
            let starting = self.attempt(&named.job, named.token.attempt).is_some_and(|a| !a.ran);
            let due = self.counts(named) || self.is_ahead(named);
            starting && due && self.live.get(named).is_some_and(|live| !live.lapsed)
        };
        let barred = |aside: &Aside| aside.until.is_some() || aside.trial.as_ref().is_some_and(tries);
        self.asides.get(device).is_some_and(barred)
    }

    /// It was put aside, and nothing has started there since.
    pub(super) fn is_on_trial(&self, device: &DeviceId) -> bool {
        self.asides.get(device).is_some_and(Aside::is_put)
    }

    /// For its owner: why the machine gets no jobs.
    pub(super) fn why_aside(&self, device: &DeviceId) -> Option<String> {
        let aside = self.asides.get(device).filter(|aside| aside.is_put())?;
        let (jobs, reason) = (aside.failed.len(), &aside.reason);
        let next = match aside.until {
            Some(_) => format!("It gets none for {}; then one may try again", Span(aside.length)),
            None => "The next one tries whether it works again".to_owned(),
        };
        Some(format!("{jobs} jobs in a row could not start here, the last because: {reason}. {next}"))
    }

    /// For the member of a job that would fit there now. What went wrong is not told: it may be
    /// about others' jobs.
    pub(super) fn waits_for_aside(&self, need: &Need, rooms: &[Room]) -> Option<String> {
        let fits = |room: &&Room| self.is_barred(&room.device) && room.take_now(need).is_some();
        let room = rooms.iter().find(fits)?;
        let aside = self.asides.get(&room.device)?;
        let next = match aside.until {
            Some(_) => format!("it is tried again after {} at most", Span(aside.length)),
            None => "another job tries it now".to_owned(),
        };
        Some(format!(
            "{} is put aside, since {} jobs in a row could not start there; {next}",
            room.name,
            aside.failed.len()
        ))
    }

    fn blame_the_provider(&self, aside: &Aside) -> bool {
        let members: BTreeSet<_> = aside.failed.iter().filter_map(|f| self.job_member(&f.job)).collect();
        aside.failed.len() >= JOBS && members.len() > 1
    }

    /// Of each job that failed there for the first time since its last checkpoint. One that was held
    /// for it waits again.
    fn take_back_strikes(&mut self, device: &DeviceId, aside: &mut Aside) {
        for failed in &mut aside.failed {
            let strikes = std::mem::take(&mut failed.strikes);
            let known = self.failures(&failed.job, device) as usize > failed.times;
            let Some(course) = self.courses.get_mut(&failed.job) else { continue };
            if known || strikes == 0 || course.end.is_some() {
                continue;
            }
            let held_for_it = course.strikes >= self.config.strikes_max;
            course.strikes = course.strikes.saturating_sub(strikes);
            if held_for_it && course.strikes < self.config.strikes_max {
                course.held = None;
            }
            self.touched.insert(Key::Course(failed.job.clone()));
            self.stirred.insert(failed.job.clone());
            self.queue_changed = true;
        }
    }
}

/// Jobs whose turn comes after all others, in one pass through the queue: they failed before where
/// one job may try it now, and one that did not would tell more.
#[derive(Debug, Default)]
pub(super) struct Late {
    waiting: VecDeque<JobId>,
    known: BTreeSet<JobId>,
}

impl Late {
    /// True once for each job.
    pub(super) fn put_off(&mut self, job: &JobId, best: Option<&Standing>) -> bool {
        let tells_nothing = best.is_some_and(|standing| standing.on_trial && standing.failures > 0);
        let put_off = tells_nothing && self.known.insert(job.clone());
        if put_off {
            self.waiting.push_back(job.clone());
        }
        put_off
    }

    pub(super) fn next(&mut self) -> Option<JobId> {
        self.waiting.pop_front()
    }
}
