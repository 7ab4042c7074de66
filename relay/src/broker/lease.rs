//! Leases, and all that is said again until it is answered. Boot time only.
//!
//! A lease that ran out ends nothing by itself: it only lets the next attempt be placed. Until
//! that happens, an attempt that returns counts again.

use std::collections::BTreeSet;

use gpunion_protocol::ids::{AttemptNo, AttemptRef, DeviceId, JobId};
use gpunion_protocol::job::{AttemptState, EndCause};
use gpunion_protocol::session::{Assignment, ToAgent};
use gpunion_protocol::time::{BootMs, Millis, Now};

use super::Broker;
use super::record::Attempt;

/// Attempts that one renewal may name; no machine has so many GPUs.
const NAMED_MAX: usize = 1024;

/// An attempt that its device may still have something of, in this run of the relay.
#[derive(Debug, Clone)]
pub(super) struct Live {
    /// Margin included.
    pub(super) lease_until: BootMs,
    pub(super) lapsed: bool,
    pub(super) placed_at: BootMs,
    /// A state or a renewal of it came: the assignment arrived.
    pub(super) heard: bool,
    /// When `Assign` or `End` is said again, if one of them is to be said.
    pub(super) say_at: BootMs,
    /// What was used before is settled already.
    pub(super) used_from: BootMs,
    /// What its device said of it last, in words.
    pub(super) note: Option<String>,
    /// Its program was told to leave.
    pub(super) leaving: bool,
}

impl Live {
    pub(super) fn new(lease_until: BootMs, now: Now) -> Self {
        Self {
            lease_until,
            lapsed: false,
            placed_at: now.boot,
            heard: false,
            say_at: now.boot,
            used_from: now.boot,
            note: None,
            leaving: false,
        }
    }
}

impl Broker {
    pub(super) fn lease_end(&self, now: Now) -> BootMs {
        now.boot + self.config.terms.lease + self.config.terms.margin
    }

    pub(super) fn renew(&mut self, device: &DeviceId, seq: u64, mut named: Vec<AttemptRef>, now: Now) {
        named.truncate(NAMED_MAX);
        let (mut counting, mut stale) = (Vec::new(), Vec::new());
        let mut unknown = false;
        let held: BTreeSet<AttemptRef> = named.into_iter().collect();
        for attempt in &held {
            if !self.is_of(device, attempt) {
                unknown = true;
            } else if self.counts(attempt) || self.is_ahead(attempt) {
                self.extend(attempt, now);
                counting.push(attempt.clone());
            } else {
                self.hold_again(attempt, now);
                stale.push(attempt.clone());
            }
        }
        self.release_unnamed(device, &held, now);
        self.is_back(device);
        if let Some(presence) = self.presence.get_mut(device)
            && presence.holds_unknown != unknown
        {
            presence.holds_unknown = unknown;
            self.queue_changed = true;
        }
        let put_aside = self.why_aside(device);
        self.send(device, ToAgent::Renewed { seq, counting, stale, put_aside });
    }

    fn extend(&mut self, named: &AttemptRef, now: Now) {
        let until = self.lease_end(now);
        let Some(live) = self.live.get_mut(named) else { return };
        live.lease_until = until;
        live.heard = true;
        if std::mem::take(&mut live.lapsed) {
            live.used_from = now.boot;
            self.stirred.insert(named.job.clone());
            self.whys.remove(&named.job);
            self.queue_changed = true;
        }
    }

    /// While this relay did nothing, nobody could renew or answer: whoever had time left has a
    /// whole lease again, and an assignment a whole wait.
    pub(super) fn stood_still(&mut self, now: Now) {
        let until = self.lease_end(now);
        for live in self.live.values_mut().filter(|live| !live.lapsed) {
            live.lease_until = live.lease_until.max(until);
            if !live.heard {
                live.placed_at = now.boot;
            }
        }
        self.settling_until = self.settling_until.map(|at| at.max(until));
    }

    /// The device still has what was thought gone: its GPUs are not free.
    fn hold_again(&mut self, named: &AttemptRef, now: Now) {
        let until = self.lease_end(now);
        let Some(attempt) = self.attempt_mut(named) else { return };
        if attempt.released {
            attempt.released = false;
            self.touch(named);
            self.live.insert(named.clone(), Live { lapsed: true, ..Live::new(until, now) });
            self.queue_changed = true;
        }
    }

    /// Ended attempts that the device does not name are gone from it. One that has not ended is
    /// left to its lease: the assignment may not have arrived yet. When that is over too, the device
    /// knows nothing of it (a relay that was restored from a backup, an agent that lost its records),
    /// and it must not fill the room that the job itself waits for.
    fn release_unnamed(&mut self, device: &DeviceId, held: &BTreeSet<AttemptRef>, now: Now) {
        for named in self.ended_on(device) {
            if !held.contains(&named) {
                self.release(&named);
            }
        }
        for named in self.lapsed_on(device) {
            if !held.contains(&named) {
                self.lost(&named, now);
                self.release(&named);
            }
        }
    }

    fn lapsed_on(&self, device: &DeviceId) -> Vec<AttemptRef> {
        let lapsed = self.live.iter().filter(|(_, live)| live.lapsed).map(|(named, _)| named);
        lapsed.filter(|n| self.is_of(device, n) && self.is_unended(n)).cloned().collect()
    }

    pub(super) fn release_all_ended_on(&mut self, device: &DeviceId) {
        for named in self.ended_on(device) {
            self.release(&named);
        }
    }

    fn ended_on(&self, device: &DeviceId) -> Vec<AttemptRef> {
        let ended = |n: &&AttemptRef| self.known(device, n).is_some_and(|a| a.state.is_ended());
        self.live.keys().filter(ended).cloned().collect()
    }

    /// A lease that ran out lets the next attempt be placed. It ends the attempt itself only when
    /// nobody can return to it any more.
    pub(super) fn let_leases_lapse(&mut self, now: Now) {
        let over: Vec<(AttemptRef, bool)> = self
            .live
            .iter()
            .filter(|(named, live)| live.lease_until <= now.boot && self.is_unended(named))
            .map(|(named, live)| (named.clone(), live.lapsed))
            .collect();
        for (named, known) in over {
            self.settle(&named, now);
            if let Some(live) = self.live.get_mut(&named) {
                live.lapsed = true;
            }
            let revoked = self.device_of(&named).is_none_or(|id| !self.is_usable(id));
            if self.is_ahead(&named) {
                // Nothing is lost with one that has not begun, and its place is wanted.
                self.close(&named, EndCause::Lost, now);
            } else if revoked || !self.open.contains(&named.job) {
                self.lost(&named, now);
            }
            if revoked {
                self.release(&named);
            }
            if !known {
                self.stirred.insert(named.job.clone());
                self.queue_changed = true;
            }
        }
    }

    /// A connected device that leaves an assignment unanswered: the job tries another one. No
    /// strike: silence says nothing about the job.
    pub(super) fn let_answers_lapse(&mut self, now: Now) {
        let due: Vec<AttemptRef> = self
            .live
            .keys()
            .filter(|named| self.answer_due(named).is_some_and(|at| at <= now.boot))
            .cloned()
            .collect();
        for named in due {
            let seconds = self.config.answer_within.0 / 1000;
            let reason = format!("the provider did not answer for {seconds} s");
            self.close(&named, EndCause::CouldNotStart { reason: reason.clone() }, now);
            if let Some(attempt) = self.attempt(&named.job, named.token.attempt).cloned() {
                self.starts_nothing(&attempt, &reason, 0, now);
            }
            self.retries.insert(named.job.clone(), now.boot + self.config.answer_within);
        }
    }

    fn answer_due(&self, named: &AttemptRef) -> Option<BootMs> {
        let live = self.live.get(named)?;
        let attempt = self.attempt(&named.job, named.token.attempt)?;
        let due = self.counts(named) || self.is_ahead(named);
        let waits = attempt.state == AttemptState::Reserved && !live.heard && due;
        let presence = self.presence.get(&attempt.device).filter(|p| p.session.is_some() && p.greeted)?;
        waits.then(|| live.placed_at.max(presence.greeted_at) + self.config.answer_within)
    }

    /// Says `Assign` and `End` again where they are due, on connected devices.
    pub(super) fn say_again(&mut self, now: Now) {
        let due: Vec<AttemptRef> = self
            .live
            .iter()
            .filter(|(named, live)| live.say_at <= now.boot && self.has_to_be_said(named))
            .map(|(named, _)| named.clone())
            .collect();
        for named in due {
            let Some(device) = self.device_of(&named).cloned() else { continue };
            let message = match self.end_wanted(&named) {
                Some(cause) => Some(ToAgent::End { attempt: named.clone(), cause }),
                None if self.is_answered(&named) => self
                    .attempt(&named.job, named.token.attempt)
                    .map(|attempt| ToAgent::Go { attempt: named.clone(), from: attempt.from }),
                None => self.assignment(&named).map(|a| ToAgent::Assign(Box::new(a))),
            };
            if let Some(message) = message {
                self.send(&device, message);
            }
            if let Some(live) = self.live.get_mut(&named) {
                live.say_at = now.boot + self.config.repeat.max(Millis(1));
            }
        }
    }

    /// What is to be said of the job's attempts changed: not only at the next repetition.
    pub(super) fn say_at_once(&mut self, job: &JobId) {
        for (_, live) in self.live.iter_mut().filter(|(named, _)| named.job == *job) {
            live.say_at = BootMs(0);
        }
    }

    fn has_to_be_said(&self, named: &AttemptRef) -> bool {
        let Some(attempt) = self.attempt(&named.job, named.token.attempt) else { return false };
        let to_begin = !self.is_answered(named) || self.waits_for_go(named);
        self.is_reachable(&attempt.device) && (to_begin || self.end_wanted(named).is_some())
    }

    /// Its device has said something of it: the assignment arrived.
    fn is_answered(&self, named: &AttemptRef) -> bool {
        let reserved =
            self.attempt(&named.job, named.token.attempt).is_some_and(|a| a.state == AttemptState::Reserved);
        !reserved || self.live.get(named).is_some_and(|live| live.heard)
    }

    fn assignment(&self, named: &AttemptRef) -> Option<Assignment> {
        let attempt = self.attempt(&named.job, named.token.attempt)?;
        let job = self.jobs.get(&named.job)?;
        let key = job.keys.iter().find(|k| k.device == attempt.device)?.wrapped.clone();
        Some(Assignment {
            attempt: named.clone(),
            member_name: self.members.get(&job.member).map(|m| m.name.clone()).unwrap_or_default(),
            spec: job.spec.clone(),
            image: job.image.clone(),
            gpus: attempt.gpus.clone(),
            input: job.input,
            from: attempt.from,
            data: job.data.clone(),
            key,
            sealed: job.sealed.clone(),
            resumed: named.token.attempt.0 > 1,
            previous: self.attempt_before(attempt),
            wait: attempt.ahead,
        })
    }

    fn attempt_before(&self, attempt: &Attempt) -> Option<AttemptNo> {
        self.attempts.get(&attempt.job)?.range(..attempt.token.attempt).next_back().map(|(number, _)| *number)
    }

    /// When `Event::Timeout` is wanted next, if nothing else happens.
    pub fn poll_timeout(&self) -> Option<BootMs> {
        let leases = self
            .live
            .iter()
            .filter(|(named, live)| !live.lapsed && self.is_unended(named))
            .map(|(_, live)| live.lease_until);
        let words = self.live.iter().filter(|(n, _)| self.has_to_be_said(n)).map(|(_, live)| live.say_at);
        let answers = self.live.keys().filter_map(|named| self.answer_due(named));
        let queue = self.wraps.values().chain(self.retries.values()).copied();
        let asides = self.asides_end().chain(self.pause_ends()).chain(self.mass_loss_ends());
        leases
            .chain(words)
            .chain(answers)
            .chain(queue)
            .chain(asides)
            .chain(self.settling_until)
            .chain(self.look_at)
            .min()
    }

    pub(super) fn is_unended(&self, named: &AttemptRef) -> bool {
        self.attempt(&named.job, named.token.attempt).is_some_and(|a| !a.state.is_ended())
    }

    pub(super) fn device_of(&self, named: &AttemptRef) -> Option<&DeviceId> {
        self.attempt(&named.job, named.token.attempt).map(|a| &a.device)
    }
}
