//! What a provider says about its attempts. Only the attempt that counts changes its job; all else
//! is answered so that the other side can stop saying it.

use gpunion_protocol::ids::{AttemptRef, DeviceId, SnapshotId};
use gpunion_protocol::job::{AttemptState, Checkpoint, EndCause, Image, PrepareStep, Whose};
use gpunion_protocol::session::ToAgent;
use gpunion_protocol::time::{Millis, Now, WallMs};
use gpunion_protocol::units::Bytes;

use super::chain::kept;
use super::record::{Attempt, JobEnd};
use super::{Broker, Key};

/// So many published snapshots are known again.
const PUBLISHED_KEPT: usize = 16;
/// Characters of a note or a reason that a device told.
const WORDS_MAX: usize = 300;

impl Broker {
    pub(super) fn attempt_state(
        &mut self,
        device: &DeviceId,
        named: AttemptRef,
        state: AttemptState,
        note: Option<String>,
        now: Now,
    ) {
        let ahead = self.is_ahead(&named);
        if !self.is_of(device, &named) || !(ahead || self.counts(&named)) {
            self.tell_end(device, named);
            return;
        }
        if let Some(live) = self.live.get_mut(&named) {
            live.heard = true;
        }
        // Nobody told it to go: it has nothing to say of a program.
        if ahead && rank(&state) >= RUNNING {
            return;
        }
        if rank(&state) < RUNNING {
            self.goes_again(&named);
        }
        self.quits(&named, &state, now);
        let Some(attempt) = self.attempt_mut(&named) else { return };
        let mut runs = false;
        // The end comes as `Ended`, with its result; a word that was overtaken changes nothing.
        let changed = !state.is_ended() && rank(&state) >= rank(&attempt.state) && attempt.state != state;
        if changed {
            if rank(&state) == RUNNING && !attempt.ran {
                attempt.ran = true;
                attempt.started = Some(now.wall);
                runs = true;
            }
            attempt.state = state;
            self.touch(&named);
            self.stirred.insert(named.job.clone());
        }
        if runs {
            self.starts_again(device);
            self.has_moved(&named, now);
        }
        let note = note.map(clip);
        let told = self.live.get_mut(&named).map(|live| std::mem::replace(&mut live.note, note.clone()));
        if let Some(text) = note
            && told != Some(Some(text.clone()))
        {
            self.note(&named.job, text, now);
        }
    }

    /// The first preparation fixes it for all later attempts.
    pub(super) fn image_digest(&mut self, device: &DeviceId, named: &AttemptRef, digest: String) {
        let well_formed = digest
            .strip_prefix("sha256:")
            .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()));
        let due = self.counts(named) || self.is_ahead(named);
        if !well_formed || !self.is_of(device, named) || !due {
            return;
        }
        let Some(job) = self.jobs.get_mut(&named.job) else { return };
        if let Image::Registry { digest: fixed @ None, .. } = &mut job.image {
            *fixed = Some(digest);
            self.touched.insert(Key::Job(named.job.clone()));
        }
    }

    pub(super) fn publish(
        &mut self,
        device: &DeviceId,
        named: AttemptRef,
        mut checkpoint: Checkpoint,
        age: Millis,
        now: Now,
    ) {
        let snapshot = checkpoint.snapshot;
        let known = self.known(device, &named).is_some_and(|a| a.published.contains(&snapshot));
        if known {
            self.send(device, ToAgent::Published { attempt: named, snapshot });
            return;
        }
        if self.is_of(device, &named) && self.is_ahead(&named) {
            // It is said again, and by then it may count: a restored backup can be behind.
            return;
        }
        if !self.is_of(device, &named) || !self.counts(&named) {
            let reason = self.refusal(&named);
            self.send(device, ToAgent::PublishRefused { attempt: named.clone(), snapshot, reason });
            self.tell_end(device, named);
            return;
        }
        if self.is_overtaken(&named, checkpoint.number) {
            self.send(device, ToAgent::Published { attempt: named, snapshot });
            return;
        }
        checkpoint.token = named.token;
        checkpoint.at = Some(now.wall);
        let age = i64::try_from(age.0).unwrap_or(i64::MAX);
        checkpoint.taken = Some(WallMs(now.wall.0.saturating_sub(age)));
        let size = Bytes(checkpoint.new_bytes);
        if let Some(course) = self.courses.get_mut(&named.job) {
            if let Some(doubted) = course.doubted.take() {
                course.chain.retain(|c| c.snapshot != doubted);
            }
            course.chain.push(checkpoint);
            course.chain = kept(std::mem::take(&mut course.chain));
            course.strikes = 0;
            self.touched.insert(Key::Course(named.job.clone()));
        }
        if let Some(attempt) = self.attempt_mut(&named) {
            attempt.published.push(snapshot);
            let over = attempt.published.len().saturating_sub(PUBLISHED_KEPT);
            attempt.published.drain(..over);
        }
        self.touch(&named);
        self.note(&named.job, format!("Checkpoint saved ({size} new)"), now);
        self.send(device, ToAgent::Published { attempt: named, snapshot });
    }

    /// The attempt has published a later one: this word was on its way for long.
    fn is_overtaken(&self, named: &AttemptRef, number: u64) -> bool {
        let chain = self.courses.get(&named.job).map_or(&[][..], |course| course.chain.as_slice());
        number > 0 && chain.iter().any(|c| c.token == named.token && c.number > number)
    }

    pub(super) fn ended(
        &mut self,
        device: &DeviceId,
        named: AttemptRef,
        cause: EndCause,
        result: Option<SnapshotId>,
        now: Now,
    ) {
        if let Some(attempt) = self.known(device, &named).cloned() {
            let cause = clip_cause(cause);
            let (counted, ahead) = (self.counts(&named), self.is_ahead(&named));
            if ahead && cause.whose() != Whose::Provider {
                // A restored backup is behind: it has run. It is said again, and by then it counts.
                return;
            }
            if !attempt.state.is_ended() {
                self.close(&named, cause.clone(), now);
            }
            self.release(&named);
            if ahead {
                self.ended_ahead(&attempt, &cause, now);
            } else if counted {
                let text = format!(
                    "Attempt {} on {} ended: {}",
                    named.token.attempt,
                    self.device_name(device).unwrap_or("a provider"),
                    cause.sentence()
                );
                self.note(&named.job, text, now);
                self.judge(&attempt, cause, result, now);
            }
        }
        self.send(device, ToAgent::EndSeen { attempt: named });
    }

    /// The attempt of this full name, if it was placed on this device.
    pub(super) fn known(&self, device: &DeviceId, named: &AttemptRef) -> Option<&Attempt> {
        self.attempt(&named.job, named.token.attempt)
            .filter(|a| a.token == named.token && a.device == *device)
    }

    pub(super) fn is_of(&self, device: &DeviceId, named: &AttemptRef) -> bool {
        self.known(device, named).is_some()
    }

    pub(super) fn attempt_mut(&mut self, named: &AttemptRef) -> Option<&mut Attempt> {
        self.attempts
            .get_mut(&named.job)?
            .get_mut(&named.token.attempt)
            .filter(|attempt| attempt.token == named.token)
    }

    pub(super) fn touch(&mut self, named: &AttemptRef) {
        self.touched.insert(Key::Attempt(named.job.clone(), named.token.attempt));
    }

    /// The attempt's own final state. Whether its device still has something of it is apart.
    pub(super) fn close(&mut self, named: &AttemptRef, cause: EndCause, now: Now) {
        self.settle(named, now);
        let quit = self.quit_at(named, &cause, now);
        if let Some(attempt) = self.attempt_mut(named) {
            attempt.quit.get_or_insert(quit);
            attempt.state = AttemptState::Ended { cause };
            attempt.ended = Some(now.wall);
            self.touch(named);
        }
        self.say_at_once(&named.job);
        self.stirred.insert(named.job.clone());
        self.queue_changed = true;
    }

    /// Nothing of it is left on its device.
    pub(super) fn release(&mut self, named: &AttemptRef) {
        self.live.remove(named);
        if let Some(attempt) = self.attempt_mut(named)
            && !attempt.released
        {
            attempt.released = true;
            self.touch(named);
            self.queue_changed = true;
            self.group_changed = true;
        }
    }

    /// Why an attempt that its device may still have has to end; absent when it counts.
    pub(super) fn end_wanted(&self, named: &AttemptRef) -> Option<EndCause> {
        if self.counts(named) || self.is_ahead(named) {
            return None;
        }
        let cancelled =
            self.courses.get(&named.job).is_some_and(|course| course.end == Some(JobEnd::Cancelled));
        Some(if cancelled { EndCause::Cancelled } else { EndCause::Stale })
    }

    /// Answers a word of an attempt that does not count.
    fn tell_end(&mut self, device: &DeviceId, named: AttemptRef) {
        let cause = self.end_wanted(&named).filter(|_| self.is_of(device, &named));
        let cause = cause.unwrap_or(EndCause::Stale);
        self.send(device, ToAgent::End { attempt: named, cause });
    }

    fn refusal(&self, named: &AttemptRef) -> String {
        match self.courses.get(&named.job).map(|course| course.end.is_some()) {
            None => "This relay does not know the job".to_owned(),
            Some(true) => "The job is final".to_owned(),
            Some(false) => "A newer attempt of the job counts".to_owned(),
        }
    }
}

const RUNNING: u8 = 4;

/// Up to `running` an attempt only goes forward.
fn rank(state: &AttemptState) -> u8 {
    match state {
        AttemptState::Reserved => 0,
        AttemptState::Preparing { step: PrepareStep::Pull } => 1,
        AttemptState::Preparing { step: PrepareStep::Stage } => 2,
        AttemptState::Ready => 3,
        AttemptState::Running | AttemptState::Stopped { .. } | AttemptState::Saving => RUNNING,
        AttemptState::Ended { .. } => 5,
    }
}

fn clip(text: String) -> String {
    if text.chars().count() <= WORDS_MAX { text } else { text.chars().take(WORDS_MAX).collect() }
}

fn clip_cause(cause: EndCause) -> EndCause {
    match cause {
        EndCause::CouldNotStart { reason } => EndCause::CouldNotStart { reason: clip(reason) },
        EndCause::Broken { reason } => EndCause::Broken { reason: clip(reason) },
        EndCause::Exited { .. }
        | EndCause::Signalled { .. }
        | EndCause::MemoryLimit
        | EndCause::DiskLimit
        | EndCause::Cancelled
        | EndCause::Reclaimed
        | EndCause::Left
        | EndCause::Lost
        | EndCause::Stale => cause,
    }
}
