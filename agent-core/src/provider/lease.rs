//! The session with the relay as the machine sees it: terms, renewals, and what counts.
//!
//! An attempt's deadline counts from when the renewal was sent that was answered, never from the
//! answer. A guest without egress has no effect outside: it computes on without a lease and is
//! told on return whether it still counts. A guest with egress hears its new deadline with each
//! lease.

use std::collections::BTreeMap;

use gpunion_protocol::ids::{AttemptRef, Epoch};
use gpunion_protocol::job::EndCause;
use gpunion_protocol::session::{Terms, ToAgent, ToRelay};
use gpunion_protocol::time::{BootMs, Millis, Now, WallMs};

use super::Provider;
use super::effect::Effect;

/// The offer is told again with each so many renewals.
const OFFER_EACH: u64 = 6;
/// Renewals whose answer may still come.
const OPEN_RENEWALS: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Link {
    up: Option<(Terms, Epoch)>,
    sent: BTreeMap<u64, BootMs>,
    next_renew: Option<BootMs>,
    seq: u64,
    /// Why the relay sends no jobs here, in its words.
    put_aside: Option<String>,
    /// When the machine last looked at the time at all.
    pub(super) looked: BootMs,
    pub(super) looked_wall: WallMs,
}

impl Link {
    pub(super) fn is_up(&self) -> bool {
        self.up.is_some()
    }

    pub(super) fn down(&mut self) {
        self.up = None;
        self.next_renew = None;
        self.put_aside = None;
    }

    pub(super) fn put_aside(&self) -> Option<&str> {
        self.put_aside.as_deref()
    }

    pub(super) fn next_time(&self) -> Option<BootMs> {
        self.next_renew
    }
}

impl Provider {
    pub(super) fn link_up(&mut self, terms: Terms, epoch: Epoch, now: Now, out: &mut Vec<Effect>) {
        self.link.up = Some((terms, epoch));
        self.link.sent.clear();
        self.link.next_renew = Some(now.boot);
        self.offered = None;
        let names: Vec<AttemptRef> = self.attempts.keys().cloned().collect();
        for name in names {
            self.tell_state(&name, out);
        }
    }

    pub(super) fn renew_if_due(&mut self, now: Now, out: &mut Vec<Effect>) {
        self.link.looked = now.boot;
        self.link.looked_wall = now.wall;
        let (Some((terms, _)), Some(at)) = (self.link.up, self.link.next_renew) else { return };
        if now.boot < at {
            return;
        }
        self.link.next_renew = Some(now.boot + terms.renew);
        self.link.seq += 1;
        // An offer is not answered: it is repeated, so that an old one that came late does not stay.
        if self.link.seq.is_multiple_of(OFFER_EACH) {
            self.offered = None;
        }
        self.link.sent.insert(self.link.seq, now.boot);
        while self.link.sent.len() > OPEN_RENEWALS {
            self.link.sent.pop_first();
        }
        let counting = self.attempts.values().filter(|a| !a.record.phase.is_over() && !a.record.orphaned);
        let attempts = counting.map(|a| a.name().clone()).collect();
        out.push(Effect::ToRelay(ToRelay::Renew { seq: self.link.seq, attempts }));
        self.repeat_unanswered(now, out);
    }

    /// What the relay has not answered is said again with each renewal.
    fn repeat_unanswered(&mut self, now: Now, out: &mut Vec<Effect>) {
        for attempt in self.attempts.values().filter(|attempt| !attempt.record.orphaned) {
            if attempt.end_to_tell().is_some() || !attempt.record.phase.is_over() {
                out.extend(attempt.digest_to_tell().map(Effect::ToRelay));
            }
            if attempt.waits_for_go() {
                out.push(Effect::ToRelay(attempt.state_to_tell()));
            }
            out.extend(attempt.leaving_to_tell().map(Effect::ToRelay));
            if let Some(whole) = attempt.unpublished() {
                out.push(whole.publish(attempt.name(), now));
            }
            if let Some(ended) = attempt.end_to_tell() {
                out.push(Effect::ToRelay(ended));
            }
        }
    }

    pub(super) fn renewed(
        &mut self,
        seq: u64,
        counting: &[AttemptRef],
        stale: &[AttemptRef],
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let (Some((terms, _)), Some(sent)) = (self.link.up, self.link.sent.remove(&seq)) else { return };
        for name in counting {
            if let Some(attempt) = self.attempts.get_mut(name) {
                attempt.lease_until = Some(sent + terms.lease);
            }
            self.tell_deadline(name, now, out);
        }
        for name in stale {
            self.end(name, EndCause::Stale, now, out);
        }
    }

    pub(super) fn relay_says(&mut self, message: ToAgent, now: Now, out: &mut Vec<Effect>) {
        match message {
            ToAgent::Assign(assignment) => self.assigned(*assignment, now, out),
            ToAgent::Go { attempt, from } => self.go(&attempt, from, now, out),
            ToAgent::Renewed { seq, counting, stale, put_aside } => {
                self.link.put_aside = put_aside;
                self.renewed(seq, &counting, &stale, now, out);
            }
            ToAgent::End { attempt, cause } => self.told_to_end(&attempt, cause, now, out),
            ToAgent::Published { attempt, snapshot } => {
                self.published(&attempt, snapshot, now);
                self.last_published(&attempt, snapshot, now, out);
            }
            ToAgent::PublishRefused { attempt, snapshot, reason } => {
                self.publish_refused(&attempt, snapshot, &reason, now, out);
                self.last_refused(&attempt, snapshot, now);
                self.result_refused(&attempt, snapshot, out);
            }
            ToAgent::EndSeen { attempt } => self.end_seen(&attempt, now, out),
            // Keys, logs and heartbeats are the driver's and the session's.
            ToAgent::Welcome { .. } | ToAgent::WrapFor { .. } | ToAgent::LogKept { .. } | ToAgent::Beat => {}
        }
    }

    pub(super) fn renew_soon(&mut self, now: Now) {
        if let (Some((terms, _)), Some(at)) = (self.link.up, self.link.next_renew) {
            let soon = now.boot + Millis(terms.renew.0 / 20);
            self.link.next_renew = Some(at.min(soon));
        }
    }
}
