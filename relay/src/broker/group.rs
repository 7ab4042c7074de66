//! Members, devices, invites: who belongs to the group and how they leave it.

use gpunion_protocol::http::Role;
use gpunion_protocol::ids::{DeviceId, InviteId, JobId, MemberId};
use gpunion_protocol::job::Blob;
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::time::Now;

use super::record::{Device, Invite, JobEnd, Member};
use super::{Broker, By, Digest, Effect, Key, Reply};

/// Invites that wait to be used.
const INVITES_MAX: usize = 1000;
/// Characters of a name.
const NAME_MAX: usize = 80;
/// Bytes of an X25519 public key.
const PUBLIC_KEY: usize = 32;

/// Who redeems an invite.
pub(super) struct Newcomer {
    pub(super) member_name: String,
    pub(super) device_name: String,
    pub(super) public_key: Blob,
    pub(super) member: MemberId,
    pub(super) device: DeviceId,
    pub(super) token: Digest,
}

impl Broker {
    pub(super) fn new_invite(&mut self, by: By, mut invite: Invite, now: Now) -> Result<Reply, Problem> {
        let own = match (&by, &invite.member) {
            (By::Member(asking), Some(member)) => asking == member,
            (By::Relay | By::Member(_), _) => false,
        };
        if !own {
            self.demand_operator(&by)?;
        }
        if let Some(member) = &invite.member {
            let member = self.present_member(member)?;
            invite.role = member.role;
        }
        if let Some(there) = self.invites.get(&invite.id) {
            return if *there == invite {
                Ok(Reply::Invited { id: invite.id, expires: invite.expires })
            } else {
                Err(Problem::new(Code::Conflict, "An invite with this id exists already"))
            };
        }
        self.forget_expired(now);
        if self.invites.len() >= INVITES_MAX {
            return Err(Problem::new(Code::Busy, "Too many invites wait to be used")
                .with_detail("They expire by themselves; try again later"));
        }
        if self.invites.values().any(|other| other.code == invite.code) {
            return Err(Problem::new(Code::Conflict, "An invite with this code exists already"));
        }
        let reply = Reply::Invited { id: invite.id.clone(), expires: invite.expires };
        self.touched.insert(Key::Invite(invite.id.clone()));
        self.invites.insert(invite.id.clone(), invite);
        Ok(reply)
    }

    pub(super) fn redeem(&mut self, code: Digest, who: Newcomer, now: Now) -> Result<Reply, Problem> {
        self.forget_expired(now);
        let gone = || {
            Problem::new(Code::InviteGone, "This invite is used, expired or unknown")
                .with_detail("Ask an operator of the group for a new one")
        };
        let invite = self.invites.values().find(|i| i.code == code).ok_or_else(gone)?.clone();
        let member = match &invite.member {
            Some(id) => self.present_member(id).map_err(|_| gone())?.clone(),
            None => Member {
                id: who.member.clone(),
                name: name("member_name", &who.member_name)?,
                role: invite.role,
                removed: false,
            },
        };
        let device = Device {
            id: who.device,
            member: member.id.clone(),
            name: name("device_name", &who.device_name)?,
            public_key: who.public_key,
            token: who.token,
            revoked: false,
        };
        if device.public_key.0.len() != PUBLIC_KEY {
            return Err(Problem::new(Code::BadRequest, "public_key must have 32 bytes"));
        }
        let taken = (invite.member.is_none() && self.members.contains_key(&member.id))
            || self.devices.contains_key(&device.id)
            || self.devices.values().any(|other| other.token == device.token);
        if taken {
            return Err(Problem::new(Code::Conflict, "An id that was drawn is in use already; try again"));
        }
        self.drop_invite(&invite.id);
        let reply = Reply::Joined {
            member: member.id.clone(),
            member_name: member.name.clone(),
            role: member.role,
            device: device.id.clone(),
        };
        self.touched.insert(Key::Member(member.id.clone()));
        self.members.insert(member.id.clone(), member);
        self.touched.insert(Key::Device(device.id.clone()));
        self.tokens.insert(device.token, device.id.clone());
        self.devices.insert(device.id.clone(), device);
        self.group_changed = true;
        Ok(reply)
    }

    /// Their jobs are cancelled, their devices revoked. The last operator can't go: nobody could
    /// invite or remove anybody then.
    pub(super) fn remove_member(&mut self, by: &By, id: &MemberId) -> Result<Reply, Problem> {
        if *by != By::Member(id.clone()) {
            self.demand_operator(by)?;
        }
        let member =
            self.members.get(id).ok_or_else(|| Problem::new(Code::NotFound, "There is no such member"))?;
        if member.removed {
            return Ok(Reply::Done);
        }
        let another = self.members.values().any(|m| m.id != *id && !m.removed && m.role == Role::Operator);
        if member.role == Role::Operator && !another {
            return Err(Problem::new(Code::Conflict, "The last operator can't be removed")
                .with_detail("Invite another operator first: gpunion relay invite --role operator"));
        }
        if let Some(member) = self.members.get_mut(id) {
            member.removed = true;
            self.touched.insert(Key::Member(id.clone()));
        }
        let jobs: Vec<JobId> =
            self.open.iter().filter(|job| self.job_member(job) == Some(id)).cloned().collect();
        for job in jobs {
            self.finish_job(&job, JobEnd::Cancelled);
        }
        let invites: Vec<InviteId> =
            self.invites.values().filter(|i| i.member.as_ref() == Some(id)).map(|i| i.id.clone()).collect();
        for invite in invites {
            self.drop_invite(&invite);
        }
        let devices: Vec<DeviceId> =
            self.devices.values().filter(|d| d.member == *id).map(|d| d.id.clone()).collect();
        for device in devices {
            self.revoke(&device, "You were removed from the group");
        }
        self.group_changed = true;
        Ok(Reply::Done)
    }

    pub(super) fn revoke_device(&mut self, by: &By, id: &DeviceId) -> Result<Reply, Problem> {
        let device =
            self.devices.get(id).ok_or_else(|| Problem::new(Code::NotFound, "There is no such device"))?;
        if *by != By::Member(device.member.clone()) {
            self.demand_operator(by)?;
        }
        self.revoke(id, "This device was revoked");
        Ok(Reply::Done)
    }

    /// Its token dies at once. What ran there is not ended here: its lease runs out like that of
    /// any provider that went, and then the next attempt may be placed.
    fn revoke(&mut self, id: &DeviceId, why: &str) {
        let Some(device) = self.devices.get_mut(id) else { return };
        if device.revoked {
            return;
        }
        device.revoked = true;
        self.tokens.remove(&device.token);
        self.touched.insert(Key::Device(id.clone()));
        if self.presence.remove(id).is_some_and(|p| p.session.is_some()) {
            self.out.push(Effect::Disconnect { device: id.clone(), why: why.to_owned() });
        }
        self.release_all_ended_on(id);
        self.group_changed = true;
        self.queue_changed = true;
    }

    pub(super) fn present_member(&self, id: &MemberId) -> Result<&Member, Problem> {
        self.members
            .get(id)
            .filter(|m| !m.removed)
            .ok_or_else(|| Problem::new(Code::NotFound, "There is no such member"))
    }

    fn demand_operator(&self, by: &By) -> Result<(), Problem> {
        let may = match by {
            By::Relay => true,
            By::Member(id) => self.is_operator(id),
        };
        may.then_some(()).ok_or_else(|| Problem::new(Code::Forbidden, "Only an operator may do this"))
    }

    /// By the relay's own wall clock: an invite's end is a promise to people.
    fn forget_expired(&mut self, now: Now) {
        let expired: Vec<InviteId> =
            self.invites.values().filter(|i| i.expires <= now.wall).map(|i| i.id.clone()).collect();
        for invite in expired {
            self.drop_invite(&invite);
        }
    }

    fn drop_invite(&mut self, id: &InviteId) {
        if self.invites.remove(id).is_some() {
            self.touched.insert(Key::Invite(id.clone()));
        }
    }
}

fn name(field: &str, text: &str) -> Result<String, Problem> {
    let text = text.trim();
    if text.is_empty() || text.chars().count() > NAME_MAX || text.chars().any(char::is_control) {
        return Err(Problem::new(
            Code::BadRequest,
            format!("{field} must have 1 to {NAME_MAX} printable characters"),
        ));
    }
    Ok(text.to_owned())
}
