//! Joining and leaving.

use gpunion_protocol::http::Role;
use gpunion_protocol::ids::{DeviceId, InviteId, MemberId};
use gpunion_protocol::job::{Blob, EndCause, JobState};
use gpunion_protocol::problem::{Code, Problem};
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

fn remove(w: &mut World, by: By, member: &MemberId) -> Result<Reply, Problem> {
    let member = member.clone();
    w.ask(|request| Event::RemoveMember { request, by, member })
}

fn revoke(w: &mut World, by: By, device: &DeviceId) -> Result<Reply, Problem> {
    let device = device.clone();
    w.ask(|request| Event::RevokeDevice { request, by, device })
}

/// An invite of this id and code, for a new member or another device of this one.
fn invite(w: &mut World, by: By, id: u64, code: u64, member: Option<&MemberId>) -> Result<Reply, Problem> {
    let (invite, code) = (InviteId::new(id, [8; 10]), Digest::of(&code.to_be_bytes()));
    let (member, expires) = (member.cloned(), WallMs(1_764_000_000_000 + 60_000));
    let role = Role::Member;
    w.ask(|request| Event::NewInvite { request, by, invite, code, role, member, expires })
}

#[test]
fn who_counts_as_another_operator() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let (bob, _) = w.join(Role::Member, "bob");
    assert_eq!(remove(&mut w, By::Relay, &ada).unwrap_err().code, Code::Conflict, "bob is none");
    let (carol, _) = w.join(Role::Operator, "carol");
    assert_eq!(remove(&mut w, By::Member(ada.clone()), &carol), Ok(Reply::Done));
    assert_eq!(remove(&mut w, By::Relay, &ada).unwrap_err().code, Code::Conflict, "carol is gone");
    assert_eq!(remove(&mut w, By::Relay, &bob), Ok(Reply::Done), "who is none may always go");
    w.join(Role::Operator, "dan");
    assert_eq!(remove(&mut w, By::Member(ada.clone()), &ada), Ok(Reply::Done));

    let mut w = World::new();
    let (bob, _) = w.join(Role::Member, "bob");
    assert_eq!(remove(&mut w, By::Relay, &bob), Ok(Reply::Done), "where nobody is one yet");
}

#[test]
fn members_remove_themselves_and_their_devices_and_nobody_else_s() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let (bob, laptop) = w.join(Role::Member, "bob");
    let (carol, phone) = w.join(Role::Member, "carol");
    let by = |member: &MemberId| By::Member(member.clone());
    assert_eq!(remove(&mut w, by(&bob), &carol).unwrap_err().code, Code::Forbidden);
    assert_eq!(revoke(&mut w, by(&bob), &phone).unwrap_err().code, Code::Forbidden);
    assert_eq!(revoke(&mut w, by(&bob), &laptop), Ok(Reply::Done));
    assert_eq!(revoke(&mut w, by(&ada), &phone), Ok(Reply::Done));
    assert_eq!(remove(&mut w, by(&bob), &bob), Ok(Reply::Done));
    assert_eq!(invite(&mut w, by(&bob), 1, 1, Some(&bob)).unwrap_err().code, Code::NotFound);
}

#[test]
fn what_goes_with_a_member_is_their_own() {
    let mut w = World::new();
    let (ada, desk) = w.join(Role::Operator, "ada");
    let (bob, _) = w.join(Role::Member, "bob");
    let (adas, bobs) = (w.submit(&ada, |_| {}), w.submit(&bob, |_| {}));
    invite(&mut w, By::Relay, 1, 1, Some(&ada)).unwrap();
    invite(&mut w, By::Relay, 2, 2, Some(&bob)).unwrap();
    invite(&mut w, By::Relay, 3, 3, None).unwrap();
    w.connect(&desk);
    let request = crate::broker::RequestId(77_777);
    let effects = w.step(Event::RemoveMember { request, by: By::Relay, member: bob });
    assert!(!effects.iter().any(|e| matches!(e, Effect::Disconnect { .. })), "bob had no session");
    assert_eq!((w.state(&adas).is_final(), w.state(&bobs)), (false, JobState::Cancelled));
    assert!(!w.broker.devices[&desk].revoked);
    let left: Vec<_> = w.broker.invites.keys().cloned().collect();
    assert_eq!(left, [1, 3].map(|id| InviteId::new(id, [8; 10])));
}

#[test]
fn an_invite_said_twice_is_one_and_two_of_a_kind_are_none() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let (bob, _) = w.join(Role::Member, "bob");
    assert!(invite(&mut w, By::Relay, 1, 1, None).is_ok());
    assert!(invite(&mut w, By::Relay, 1, 1, None).is_ok());
    assert_eq!(w.broker.invites.len(), 1);
    assert_eq!(invite(&mut w, By::Relay, 1, 2, None).unwrap_err().code, Code::Conflict, "another code");
    assert_eq!(invite(&mut w, By::Relay, 2, 1, None).unwrap_err().code, Code::Conflict, "another id");
    let by = |member: &MemberId| By::Member(member.clone());
    assert_eq!(invite(&mut w, by(&bob), 3, 3, Some(&ada)).unwrap_err().code, Code::Forbidden);
    assert!(invite(&mut w, by(&ada), 4, 4, Some(&bob)).is_ok());
}

#[test]
fn a_thousand_invites_may_wait_and_each_until_its_end() {
    let mut w = World::new();
    for n in 0..1_000 {
        assert!(invite(&mut w, By::Relay, n, n, None).is_ok(), "{n}");
    }
    assert_eq!(invite(&mut w, By::Relay, 1_000, 1_000, None).unwrap_err().code, Code::Busy);
    w.wait(Millis(59_999));
    assert!(w.redeem(Digest::of(&7_u64.to_be_bytes()), "ada").is_ok(), "a millisecond before");
    w.wait(Millis(1));
    assert_eq!(w.redeem(Digest::of(&8_u64.to_be_bytes()), "eve").unwrap_err().code, Code::InviteGone);
    assert!(w.broker.invites.is_empty());
}

#[test]
fn a_name_has_one_to_eighty_printable_characters() {
    let mut w = World::new();
    for (name, good) in [
        ("ä".repeat(80), true),
        ("ä".repeat(81), false),
        (String::new(), false),
        ("  ".to_owned(), false),
        ("a\tb".to_owned(), false),
    ] {
        let code = w.invite(Role::Member, None);
        assert_eq!(w.redeem(code, &name).is_ok(), good, "{name:?}");
    }
    let code = w.invite(Role::Member, None);
    let Ok(Reply::Joined { member_name, .. }) = w.redeem(code, " ada ") else { panic!("not joined") };
    assert_eq!(member_name, "ada");
}

#[test]
fn a_newcomer_brings_a_key_and_ids_that_nobody_has() {
    let mut w = World::new();
    let (ada, desk) = w.join(Role::Operator, "ada");
    let token = w.broker.devices[&desk].token;
    let mut join = |key: usize, member: &MemberId, device: &DeviceId, token: Digest| {
        let code = w.invite(Role::Member, None);
        let event = w.ask(|request| Event::Redeem {
            request,
            code,
            member_name: "bob".to_owned(),
            device_name: "laptop".to_owned(),
            public_key: Blob(vec![7; key]),
            member: member.clone(),
            device: device.clone(),
            token,
        });
        event.map_err(|problem| problem.code)
    };
    let (bob, laptop) = (MemberId::new(900, [2; 10]), DeviceId::new(900, [3; 10]));
    let fresh = Digest::of(b"fresh");
    assert_eq!(join(31, &bob, &laptop, fresh), Err(Code::BadRequest));
    assert_eq!(join(33, &bob, &laptop, fresh), Err(Code::BadRequest));
    assert_eq!(join(32, &ada, &laptop, fresh), Err(Code::Conflict));
    assert_eq!(join(32, &bob, &desk, fresh), Err(Code::Conflict));
    assert_eq!(join(32, &bob, &laptop, token), Err(Code::Conflict));
    assert!(join(32, &bob, &laptop, fresh).is_ok());
}

#[test]
fn a_device_is_revoked_once() {
    let mut w = World::new();
    let (_, desk) = w.join(Role::Operator, "ada");
    w.connect(&desk);
    let revoke = |w: &mut World, n| {
        let request = crate::broker::RequestId(n);
        w.step(Event::RevokeDevice { request, by: By::Relay, device: desk.clone() })
    };
    let effects = revoke(&mut w, 90_001);
    assert!(effects.iter().any(|e| matches!(e, Effect::Disconnect { .. })));
    let effects = revoke(&mut w, 90_002);
    assert!(matches!(effects[..], [Effect::Reply { result: Ok(Reply::Done), .. }]), "no news: {effects:?}");
}

impl World {
    /// The number that was drawn before the last request's own.
    fn counter_before(&self) -> u64 {
        self.counter - 1
    }
}
