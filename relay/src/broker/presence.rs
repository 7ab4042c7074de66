//! Which devices are connected, and what they lend. In memory only: agents tell it anew with each
//! session. A device that went keeps its last offer, so that "why" can name it (F82).

use gpunion_protocol::WIRE_VERSION;
use gpunion_protocol::ids::DeviceId;
use gpunion_protocol::offer::Offer;
use gpunion_protocol::session::ToAgent;
use gpunion_protocol::time::{BootMs, Millis, Now};

use super::{Broker, Effect, SessionId};

/// No machine has more; what is beyond is not looked at.
const GPUS_MAX: usize = 256;

#[derive(Debug, Clone, Default)]
pub(super) struct Presence {
    pub(super) session: Option<SessionId>,
    /// It was welcomed in this session: only then may it be told to do something.
    pub(super) greeted: bool,
    pub(super) greeted_at: BootMs,
    /// The version of the wire that it speaks.
    pub(super) wire: u32,
    pub(super) offer: Option<Offer>,
    /// The offer is of this session.
    pub(super) fresh: bool,
    pub(super) offered_at: BootMs,
    /// It holds attempts that this relay does not know (a restored backup): which GPUs those use
    /// can't be known, so nothing is placed there until they are gone.
    pub(super) holds_unknown: bool,
}

impl Presence {
    /// It is here, and new attempts may be placed on it.
    pub(super) fn lends(&self) -> bool {
        let open = self.offer.as_ref().is_some_and(|offer| offer.open);
        self.session.is_some() && self.greeted && self.fresh && open
    }

    /// How long the offer will still last; absent when no end is known.
    pub(super) fn time_left(&self, now: Now) -> Option<Millis> {
        let told = self.offer.as_ref()?.time_left?;
        Some(Millis(told.0.saturating_sub((now.boot - self.offered_at).0)))
    }
}

impl Broker {
    pub(super) fn connected(&mut self, device: &DeviceId, session: SessionId) {
        if self.devices.get(device).is_none_or(|d| d.revoked) {
            let why = "This device does not belong to the group any more".to_owned();
            self.out.push(Effect::Disconnect { device: device.clone(), why });
            return;
        }
        let presence = self.presence.entry(device.clone()).or_default();
        if presence.session == Some(session) {
            return;
        }
        presence.session = Some(session);
        presence.greeted = false;
        presence.fresh = false;
        presence.holds_unknown = false;
        self.group_changed = true;
        self.queue_changed = true;
    }

    pub(super) fn disconnected(&mut self, device: &DeviceId, session: SessionId, now: Now) {
        let Some(presence) = self.presence.get_mut(device) else { return };
        if presence.session != Some(session) {
            return;
        }
        let lent = presence.lends();
        presence.session = None;
        presence.greeted = false;
        presence.fresh = false;
        presence.holds_unknown = false;
        self.group_changed = true;
        self.queue_changed = true;
        if lent {
            self.vanishes(device, now);
        }
    }

    pub(super) fn hello(&mut self, device: &DeviceId, wire: u32, now: Now) {
        if wire.saturating_add(1) < WIRE_VERSION {
            let why = format!(
                "The agent speaks version {wire} of the wire; this relay needs {} or later: update the agent",
                WIRE_VERSION.saturating_sub(1)
            );
            self.out.push(Effect::Disconnect { device: device.clone(), why });
            return;
        }
        let message = ToAgent::Welcome {
            wire: WIRE_VERSION,
            relay: self.config.relay.clone(),
            epoch: self.epoch,
            terms: self.config.terms,
            device: device.clone(),
            addresses: self.config.addresses.clone(),
        };
        self.send(device, message);
        let Some(presence) = self.presence.get_mut(device) else { return };
        presence.wire = wire;
        if !presence.greeted {
            presence.greeted = true;
            presence.greeted_at = now.boot;
            self.queue_changed = true;
            for (named, live) in &mut self.live {
                let there = self
                    .attempts
                    .get(&named.job)
                    .and_then(|of_job| of_job.get(&named.token.attempt))
                    .is_some_and(|attempt| attempt.device == *device);
                if there {
                    live.say_at = now.boot;
                }
            }
            self.share_keys(device);
        }
    }

    pub(super) fn offered(&mut self, device: &DeviceId, mut offer: Offer, now: Now) {
        offer.gpus.truncate(GPUS_MAX);
        let mut seen = std::collections::BTreeSet::new();
        offer.gpus.retain(|gpu| seen.insert(gpu.uuid.clone()));
        let Some(presence) = self.presence.get_mut(device) else { return };
        presence.offered_at = now.boot;
        if presence.fresh && presence.offer.as_ref() == Some(&offer) {
            return;
        }
        let closes = presence.fresh && !offer.open && presence.offer.as_ref().is_some_and(|old| old.open);
        presence.offer = Some(offer);
        presence.fresh = true;
        if closes {
            self.departs(device, now);
        }
        self.group_changed = true;
        self.queue_changed = true;
    }

    /// It is connected and was welcomed.
    pub(super) fn is_reachable(&self, device: &DeviceId) -> bool {
        self.presence.get(device).is_some_and(|p| p.session.is_some() && p.greeted)
    }
}
