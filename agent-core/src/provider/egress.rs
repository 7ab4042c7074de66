//! What a guest with egress asks of the machine: an owner who allows it, a lease while it runs, and
//! the books of what it contacted.
//!
//! Such a guest has effects outside, so it may run only while its attempt surely counts: init holds
//! the lease's deadline, and so does the proxy. No lease is known of a guest that this run of the
//! agent has just found: it stands still until the relay has said that it counts.

use gpunion_protocol::egress::{Contacts, EgressRule};
use gpunion_protocol::guest::ToInit;
use gpunion_protocol::ids::AttemptRef;
use gpunion_protocol::spec::JobSpec;
use gpunion_protocol::time::{BootMs, Millis, Now};

use super::Provider;
use super::effect::Effect;
use super::record::{AttemptRecord, Phase};

/// Byte counts are written to disk no more often; who was contacted is written at once.
const SAVE_EVERY: Millis = Millis::from_secs(60);

impl AttemptRecord {
    pub fn has_egress(&self) -> bool {
        !self.assignment.spec.network.egress.is_empty()
    }
}

impl Provider {
    /// What the owner allows guests to reach.
    #[must_use]
    pub fn with_egress(mut self, rule: EgressRule) -> Self {
        self.egress = rule;
        self
    }

    pub(super) fn may_reach(&self, spec: &JobSpec) -> Result<(), String> {
        let asked = spec.network.names().map_err(|error| error.to_string())?;
        match self.egress.missing(&asked) {
            Some(name) => Err(format!("the owner of this machine does not let jobs reach {name}")),
            None => Ok(()),
        }
    }

    /// Tells a guest with egress until when it may run: before its first word, and with each lease.
    pub(super) fn tell_deadline(&mut self, name: &AttemptRef, now: Now, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        if !attempt.record.has_egress() || attempt.record.phase != Phase::Running {
            return;
        }
        let at = attempt.lease_until.unwrap_or(BootMs(0));
        Self::say(name, ToInit::Deadline { at }, out);
        if at <= now.boot {
            return self.renew_soon(now);
        }
        if std::mem::take(&mut attempt.lease_over) {
            self.tell_state(name, out);
        }
    }

    pub(super) fn deadline_passed(&mut self, name: &AttemptRef, out: &mut Vec<Effect>) {
        if let Some(attempt) = self.attempts.get_mut(name) {
            attempt.lease_over = true;
            self.tell_state(name, out);
        }
    }

    pub(super) fn contacted(&mut self, name: &AttemptRef, contacts: Contacts, now: Now) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        let places = |contacts: Option<&Contacts>| {
            let list = contacts.map(|contacts| contacts.list.as_slice()).unwrap_or_default();
            list.iter().map(|c| (c.name.clone(), c.port, c.refused.is_some())).collect::<Vec<_>>()
        };
        let new = places(attempt.record.contacts.as_ref()) != places(Some(&contacts));
        attempt.record.contacts = Some(contacts);
        if new || now.boot >= attempt.contacts_saved + SAVE_EVERY {
            attempt.contacts_saved = now.boot;
            self.save_attempt(name);
        }
    }
}
