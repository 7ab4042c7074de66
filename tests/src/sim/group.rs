//! Machines that leave the group and come back as another device; devices that the operator
//! revokes, whose owners leave when they see it, and join anew.
//!
//! Who leaves tells the relay if it can be told. What ran there has no member any more.

use gpunion_agent_core::provider::event::Event;
use gpunion_protocol::http::Role;
use gpunion_protocol::ids::{DeviceId, InviteId};
use gpunion_protocol::job::Blob;
use gpunion_protocol::time::WallMs;
use gpunion_relay::broker::{By, Digest, Event as ToBroker, Reply};

use super::world::{Due, World};

/// Whose call a reply answers, when it is not a job's.
#[derive(Debug, Clone)]
pub(super) enum OfGroup {
    Invite { host: usize, code: Digest },
    Join { host: usize, token: Digest },
    Revoke { device: DeviceId },
}

/// A call that was not answered is made again after so long, milliseconds.
const AGAIN: u64 = 5_000;

impl World {
    /// The owner leaves: the relay hears of it when it is there, the agent at once.
    pub(super) fn leaves_group(&mut self, host: usize) -> bool {
        if self.hosts[host].out_of_group || self.hosts[host].agent.is_none() {
            return false;
        }
        self.stats.leavings += 1;
        self.hosts[host].out_of_group = true;
        if let Some(session) = self.hosts[host].session.take() {
            self.cut(session, host);
        }
        // The relay is told, or the operator hears of it and does it by hand.
        let device = self.hosts[host].device.clone();
        let told = if self.chance.coin() { 1 } else { self.chance.mostly_short(1_000, 300_000) };
        self.after(told, Due::Revokes { device });
        let back = self.chance.mostly_short(1_000, 90_000);
        self.after(back, Due::Joins { host });
        self.agent(host, Event::GroupLeft);
        true
    }

    /// The operator takes it for lost; its owner does not know yet.
    pub(super) fn revoke(&mut self, host: usize) -> bool {
        if self.hosts[host].out_of_group {
            return false;
        }
        let device = self.hosts[host].device.clone();
        self.revokes(&device);
        let sees = self.chance.mostly_short(1_000, 90_000);
        self.after(sees, Due::OwnerLeaves { host });
        true
    }

    pub(super) fn revokes(&mut self, device: &DeviceId) {
        let is_done = self.relay.revoked.insert(device.clone(), false).unwrap_or(false);
        if is_done {
            self.relay.revoked.insert(device.clone(), true);
            return;
        }
        self.after(AGAIN, Due::Revokes { device: device.clone() });
        if self.relay.broker.is_none() {
            return;
        }
        self.stats.revoked += 1;
        let request = self.relay.request();
        self.relay.of_group.insert(request, OfGroup::Revoke { device: device.clone() });
        self.broker(ToBroker::RevokeDevice { request, by: By::Relay, device: device.clone() });
    }

    /// What the operator did since is to be done again.
    pub(super) fn revoke_again(&mut self) {
        let all: Vec<DeviceId> = self.relay.revoked.keys().cloned().collect();
        for device in all {
            self.relay.revoked.insert(device.clone(), false);
            self.after(AGAIN, Due::Revokes { device });
        }
    }

    /// Also one that a restored relay does not know any more.
    pub(super) fn owner_leaves(&mut self, host: usize) {
        if self.is_admitted(host) {
            return;
        }
        if self.relay.broker.is_none() || !self.leaves_group(host) {
            self.after(AGAIN, Due::OwnerLeaves { host });
        }
    }

    /// The relay takes its token.
    pub(super) fn is_admitted(&self, host: usize) -> bool {
        let seat = &self.hosts[host];
        let caller = self.relay.broker.as_ref().and_then(|broker| broker.caller(&seat.token));
        !seat.out_of_group && caller.is_some_and(|caller| caller.device == seat.device)
    }

    /// An invite, and with it a new device; the same again until it is one.
    pub(super) fn joins(&mut self, host: usize) {
        if !self.hosts[host].out_of_group {
            return;
        }
        self.after(AGAIN, Due::Joins { host });
        if self.relay.broker.is_none() || !self.hosts[host].net {
            return;
        }
        let code = Digest::of(&self.chance.bytes::<16>());
        let request = self.relay.request();
        self.relay.of_group.insert(request, OfGroup::Invite { host, code });
        let invite = InviteId::new(self.at, self.chance.bytes());
        let member = Some(self.hosts[host].member.clone());
        let (by, role, expires) = (By::Relay, Role::Operator, WallMs(i64::MAX));
        self.broker(ToBroker::NewInvite { request, by, invite, code, role, member, expires });
    }

    pub(super) fn group_answered(&mut self, call: OfGroup, reply: Result<Reply, String>) {
        match (call, reply) {
            (OfGroup::Invite { host, code }, Ok(Reply::Invited { .. })) => {
                let token = Digest::of(&self.chance.bytes::<16>());
                let request = self.relay.request();
                self.relay.of_group.insert(request, OfGroup::Join { host, token });
                let device = DeviceId::new(self.at, self.chance.bytes());
                self.hosts[host].drawn.push(device.clone());
                let member = self.hosts[host].member.clone();
                self.after(1, Due::Redeems(Redeeming { request, code, member, device, token }));
            }
            (OfGroup::Join { host, token }, Ok(Reply::Joined { device, .. })) => {
                let at = self.at;
                self.trace.say(at, || format!("machine {host} is {device} from here on"));
                // It may have been revoked before it came to be.
                self.relay.revoked.remove(&device);
                let seat = &mut self.hosts[host];
                if !seat.out_of_group && seat.device != device {
                    self.after(1, Due::Revokes { device });
                } else if std::mem::take(&mut seat.out_of_group) {
                    (seat.device, seat.token) = (device, token);
                    let run = seat.run;
                    self.after(1, Due::Dial { host, run });
                    self.nobody_else_is(host);
                }
            }
            (OfGroup::Revoke { device }, Ok(Reply::Done)) => {
                self.relay.revoked.insert(device, true);
            }
            // It never came to be, or the relay went back to an older state meanwhile.
            (OfGroup::Revoke { device }, Err(_)) => {
                self.relay.revoked.insert(device, true);
            }
            (OfGroup::Join { .. }, Err(_)) if self.stats.restores > 0 => {}
            (call, reply) => self.fail(format!("{call:?} is answered by {reply:?}")),
        }
    }

    /// A device whose answer was lost is nobody's, and would be waited for.
    fn nobody_else_is(&mut self, host: usize) {
        let seat = &mut self.hosts[host];
        let own = seat.device.clone();
        for device in std::mem::take(&mut seat.drawn).into_iter().filter(|device| *device != own) {
            self.after(1, Due::Revokes { device });
        }
    }

    pub(super) fn redeems(&mut self, due: Redeeming) {
        let Redeeming { request, code, member, device, token } = due;
        // Its machine has become another device meanwhile: whoever redeems now is nobody.
        if self.relay.revoked.contains_key(&device) {
            return;
        }
        self.broker(ToBroker::Redeem {
            request,
            code,
            member_name: "somebody".to_owned(),
            device_name: "a machine".to_owned(),
            public_key: Blob(vec![9; 32]),
            member,
            device,
            token,
        });
    }
}

/// All that an invite is redeemed with.
#[derive(Debug, Clone)]
pub(super) struct Redeeming {
    pub(super) request: gpunion_relay::broker::RequestId,
    pub(super) code: Digest,
    pub(super) member: gpunion_protocol::ids::MemberId,
    pub(super) device: DeviceId,
    pub(super) token: Digest,
}
