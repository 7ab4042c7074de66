//! When most providers vanish at once it is rather the network than each of them: the jobs that are
//! there wait longer before they are placed elsewhere, and their attempts count again if they return.
//!
//! Counted are providers that lent when their session ended, over the length of a lease. A relay
//! that was away itself waits a lease for everybody anyway and concludes nothing from what it
//! missed; after a restart it does not know who was there, and this is forgotten.

use std::collections::BTreeMap;

use gpunion_protocol::ids::{DeviceId, JobId};
use gpunion_protocol::time::{BootMs, Millis, Now};
use gpunion_protocol::units::Span;

use super::Broker;

/// Of fewer it may well be chance.
const LEAST: usize = 4;
const LEASES: u64 = 3;

#[derive(Debug, Clone, Default)]
pub(super) struct MassLoss {
    /// Providers that vanished of late, and when.
    gone: BTreeMap<DeviceId, BootMs>,
    /// Until when those are waited for that vanished with most others.
    waits: BTreeMap<DeviceId, BootMs>,
    /// What vanishes before then may be this relay's own doing.
    not_before: BootMs,
}

impl Broker {
    /// The session of a provider that lends has ended.
    pub(super) fn vanishes(&mut self, device: &DeviceId, now: Now) {
        let lease = self.config.terms.lease;
        let loss = &mut self.mass_loss;
        if self.settling_until.is_some() || now.boot < loss.not_before {
            return;
        }
        loss.gone.retain(|_, at| *at + lease > now.boot);
        loss.gone.insert(device.clone(), now.boot);
        let lending = |id: &DeviceId| self.presence.get(id).is_some_and(|presence| presence.lends());
        let gone = self.mass_loss.gone.keys().filter(|id| self.is_usable(id) && !lending(id)).count();
        let here = self.presence.keys().filter(|id| lending(id)).count();
        if gone + here >= LEAST && gone > here {
            let until = |at: &BootMs| *at + Millis(lease.0.saturating_mul(LEASES));
            let waits: Vec<_> = self.mass_loss.gone.iter().map(|(id, at)| (id.clone(), until(at))).collect();
            self.mass_loss.waits.extend(waits);
        }
    }

    /// What it has, it has told.
    pub(super) fn is_back(&mut self, device: &DeviceId) {
        self.mass_loss.gone.remove(device);
        if self.mass_loss.waits.remove(device).is_some() {
            self.queue_changed = true;
        }
    }

    /// This relay stood still: sessions may have ended for that alone.
    pub(super) fn forgives_vanishing(&mut self, now: Now) {
        self.mass_loss.not_before = now.boot + self.config.terms.lease;
    }

    pub(super) fn end_mass_loss(&mut self, now: Now) {
        let before = self.mass_loss.waits.len();
        self.mass_loss.waits.retain(|_, until| *until > now.boot);
        if self.mass_loss.waits.len() < before {
            self.queue_changed = true;
        }
    }

    pub(super) fn mass_loss_ends(&self) -> Option<BootMs> {
        self.mass_loss.waits.values().min().copied()
    }

    /// Its attempt is with one of those.
    pub(super) fn waits_for_return(&self, job: &JobId) -> Option<String> {
        let silent = self.newest(job).filter(|attempt| !attempt.state.is_ended())?;
        self.mass_loss.waits.get(&silent.device)?;
        let wait = Span(Millis(self.config.terms.lease.0.saturating_mul(LEASES)));
        Some(format!(
            "More than half of the providers vanished at once; it may be the network. The job waits up to \
             {wait} for its own to return"
        ))
    }
}
