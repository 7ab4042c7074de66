//! Jobs that get no further. Progress is a published checkpoint and nothing else.
//!
//! No end that a provider brought about fails a job, but one that four of them in a row brought no
//! further is held, with the reason, until somebody looks at it. Two kinds of attempt count: one
//! that failed to start or broke off, and one that ran, saved nothing, and lost its provider.
//! Whoever left before it ran says nothing about the job.

use gpunion_protocol::ids::{AttemptRef, JobId, SnapshotId};
use gpunion_protocol::job::{AttemptState, EndCause};
use gpunion_protocol::time::{Millis, Now};

use super::record::Attempt;
use super::{Broker, Key};

/// First wait before a job is tried again where it failed to start; doubled with each failure.
const RETRY_FIRST: Millis = Millis::from_secs(10);

impl Broker {
    /// A provider failed it before it got any further.
    pub(super) fn strike(&mut self, attempt: &Attempt, reason: &str, now: Now) {
        let job = &attempt.job;
        let Some(strikes) = self.count_strike(attempt) else { return };
        let wait = RETRY_FIRST.0.saturating_mul(1 << strikes.saturating_sub(1).min(6));
        if strikes < self.config.strikes_max {
            self.retries.insert(job.clone(), now.boot + Millis(wait));
            return;
        }
        // The checkpoint itself may be what can't be restored.
        let undoubted = self.courses.get(job).is_some_and(|course| course.doubted.is_none());
        if let (Some(from), true) = (attempt.from, undoubted) {
            self.doubt(job, from);
            self.retries.insert(job.clone(), now.boot + Millis(wait));
            return;
        }
        let why = format!(
            "It got no further in {strikes} attempts in a row; the last time: {reason}. When that is \
             mended, cancel it and submit it again"
        );
        self.hold(job, why);
    }

    /// The owner took the GPU back, left or vanished. Of an attempt that had run and saved nothing
    /// all is lost; a job that this happens to again and again would use GPUs for ever.
    pub(super) fn fruitless(&mut self, attempt: &Attempt, cause: &EndCause) {
        if !attempt.ran {
            return;
        }
        let Some(strikes) = self.count_strike(attempt) else { return };
        if strikes < self.config.strikes_max {
            return;
        }
        let saved = self.courses.get(&attempt.job).is_some_and(|course| !course.chain.is_empty());
        let kept = if saved { " (`gpunion fetch --checkpoint` has its last checkpoint)" } else { "" };
        let why = format!(
            "It saved nothing new in {strikes} attempts in a row; the last one ended: {}. Let it save \
             more often (checkpoint.every), then cancel it and submit it again{kept}",
            cause.sentence()
        );
        self.hold(&attempt.job, why);
    }

    /// Its lease is over, and nobody waits for it any more.
    pub(super) fn lost(&mut self, named: &AttemptRef, now: Now) {
        let attempt = self.attempt(&named.job, named.token.attempt).filter(|_| self.counts(named)).cloned();
        self.close(named, EndCause::Lost, now);
        if let Some(attempt) = attempt {
            self.fruitless(&attempt, &EndCause::Lost);
        }
    }

    /// Another attempt is about to be placed in the stead of one that went silent. True when that
    /// one was the last of so many: the job is held, and none is placed.
    pub(super) fn gives_up(&mut self, job: &JobId, now: Now) -> bool {
        let last = |attempt: &&Attempt| {
            let strikes = self.courses.get(job).map_or(0, |course| course.strikes);
            let counts = attempt.ran && attempt.published.is_empty() && !attempt.state.is_ended();
            counts && strikes.saturating_add(1) >= self.config.strikes_max
        };
        let Some(silent) = self.newest(job).filter(last).map(Attempt::named) else { return false };
        self.lost(&silent, now);
        true
    }

    /// The program finished, but no result came. Counted over the whole job, since such attempts
    /// may well have published on their way.
    pub(super) fn unsaved(&mut self, attempt: &Attempt, now: Now) {
        const REASON: &str = "its program finished, but the provider could not save the workspace";
        let done = AttemptState::Ended { cause: EndCause::Exited { code: 0 } };
        let times =
            self.attempts.get(&attempt.job).map_or(0, |all| all.values().filter(|a| a.state == done).count());
        if times < self.config.strikes_max as usize {
            self.strike(attempt, REASON, now);
        } else {
            self.hold(&attempt.job, format!("In {times} attempts {REASON}"));
        }
    }

    /// The next attempt goes on from the checkpoint before this one.
    pub(super) fn doubt(&mut self, job: &JobId, from: SnapshotId) {
        if let Some(course) = self.courses.get_mut(job) {
            course.doubted = Some(from);
            course.strikes = 0;
            self.touched.insert(Key::Course(job.clone()));
        }
    }

    /// How many there are now; absent when it got further, and so is none.
    fn count_strike(&mut self, attempt: &Attempt) -> Option<u32> {
        let course = self.courses.get_mut(&attempt.job).filter(|_| attempt.published.is_empty())?;
        course.strikes = course.strikes.saturating_add(1);
        let strikes = course.strikes;
        self.touched.insert(Key::Course(attempt.job.clone()));
        Some(strikes)
    }
}
