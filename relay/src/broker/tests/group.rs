//! Joining and leaving.

use gpunion_protocol::http::Role;
use gpunion_protocol::ids::{InviteId, MemberId};
use gpunion_protocol::job::{EndCause, JobState};
use gpunion_protocol::problem::Code;
use gpunion_protocol::session::ToRelay;
use gpunion_protocol::time::{Millis, WallMs};

use super::{World, offer};
use crate::broker::{By, Digest, Effect, Event, Reply};

#[test]
fn an_invite_is_used_once() {
    let mut w = World::new();
    assert!(w.broker.is_empty());
    let code = w.invite(Role::Operator, None);
    assert!(w.redeem(code, "ada").is_ok());
    assert_eq!(w.redeem(code, "eve").unwrap_err().code, Code::InviteGone);
    assert!(!w.broker.is_empty());
}

#[test]
fn an_expired_invite_is_gone() {
    let mut w = World::new();
    let code = w.invite(Role::Operator, None);
    w.wait(Millis::from_secs(3600));
    assert_eq!(w.redeem(code, "ada").unwrap_err().code, Code::InviteGone);
    assert!(w.disk.is_empty(), "it is deleted on disk too");
}

#[test]
fn a_member_invites_own_devices_and_nobody_else() {
    let mut w = World::new();
    w.join(Role::Operator, "ada");
    let (bob, _) = w.join(Role::Member, "bob");
    let try_it = |w: &mut World, member: Option<MemberId>| {
        let n = w.fresh();
        w.ask(|request| Event::NewInvite {
            request,
            by: By::Member(bob.clone()),
            invite: InviteId::new(n, [8; 10]),
            code: Digest::of(&n.to_be_bytes()),
            role: Role::Operator,
            member,
            expires: WallMs(i64::MAX),
        })
    };
    assert_eq!(try_it(&mut w, None).unwrap_err().code, Code::Forbidden);
    assert!(try_it(&mut w, Some(bob.clone())).is_ok());
    let code = Digest::of(&w.counter_before().to_be_bytes());
    let Ok(Reply::Joined { member, role, .. }) = w.redeem(code, "bob's laptop") else { panic!("not joined") };
    assert_eq!((member, role), (bob, Role::Member), "the role is the member's own, not the invite's");
}

#[test]
fn the_last_operator_can_not_be_removed() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let remove = |w: &mut World, member: &MemberId| {
        let member = member.clone();
        w.ask(|request| Event::RemoveMember { request, by: By::Relay, member })
    };
    assert_eq!(remove(&mut w, &ada).unwrap_err().code, Code::Conflict);
    w.join(Role::Operator, "bob");
    assert_eq!(remove(&mut w, &ada), Ok(Reply::Done));
    assert_eq!(remove(&mut w, &ada), Ok(Reply::Done), "twice is as good as once");
}

#[test]
fn a_removed_member_loses_tokens_sessions_and_jobs() {
    let mut w = World::new();
    w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let (bob, laptop) = w.join(Role::Member, "bob");
    let token = w.broker.devices[&laptop].token;
    w.connect(&laptop);
    let running = w.submit(&bob, |_| {});
    let waiting = w.submit(&bob, |_| {});
    let (device, attempt) = w.run(&running);
    assert_eq!(device, lab);
    assert!(w.broker.caller(&token).is_some());
    let request = crate::broker::RequestId(99_999);
    let effects = w.step(Event::RemoveMember { request, by: By::Relay, member: bob.clone() });
    assert!(effects.iter().any(|e| matches!(e, Effect::Disconnect { device, .. } if *device == laptop)));
    assert_eq!(super::ends(&effects, &lab), [(&attempt, &EndCause::Cancelled)]);
    assert_eq!(w.state(&running), JobState::Cancelled);
    assert_eq!(w.state(&waiting), JobState::Cancelled);
    assert_eq!(w.broker.caller(&token), None);
    w.restart();
    assert_eq!(w.broker.caller(&token), None);
}

#[test]
fn what_ran_on_a_revoked_device_goes_on_elsewhere_after_its_lease() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    w.run(&job);
    let other = w.provider("lab-2", &[8]);
    w.ask(|request| Event::RevokeDevice { request, by: By::Relay, device: lab.clone() }).unwrap();
    assert_eq!(w.state(&job), JobState::Running, "the lease decides");
    w.broker.jobs.get_mut(&job).unwrap().keys.push(gpunion_protocol::job::WrappedKey {
        device: other.clone(),
        wrapped: gpunion_protocol::job::Blob(vec![1]),
    });
    w.wait(Millis::from_secs(51));
    assert_eq!(w.newest(&job).0, other);
    assert!(w.connect(&lab).iter().any(|e| matches!(e, Effect::Disconnect { .. })));
    assert_eq!(w.say(&lab, ToRelay::Offer { offer: offer("lab-1", &[8]) }), []);
}

impl World {
    /// The number that was drawn before the last request's own.
    fn counter_before(&self) -> u64 {
        self.counter - 1
    }
}
