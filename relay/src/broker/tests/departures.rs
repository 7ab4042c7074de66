//! Departures seconds apart make one move.

use gpunion_protocol::http::Role;
use gpunion_protocol::ids::{DeviceId, JobId, MemberId};
use gpunion_protocol::job::{EndCause, JobState};
use gpunion_protocol::offer::Offer;
use gpunion_protocol::session::ToRelay;
use gpunion_protocol::time::Millis;

use super::{Reply, World, offer};

fn lends(w: &mut World, device: &DeviceId, change: impl FnOnce(&mut Offer)) {
    let name = w.broker.device_name(device).unwrap().to_owned();
    let mut offer = offer(&name, &[8, 8]);
    change(&mut offer);
    w.say(device, ToRelay::Offer { offer });
}

/// Another machine of this member's.
fn machine_of(w: &mut World, member: &MemberId, name: &str) -> DeviceId {
    let code = w.invite(Role::Member, Some(member.clone()));
    let Ok(Reply::Joined { device, .. }) = w.redeem(code, name) else { panic!("{name} did not join") };
    w.connect(&device);
    lends(w, &device, |_| {});
    device
}

fn leave(w: &mut World, job: &JobId, cause: EndCause) {
    let (device, attempt) = w.run(job);
    w.publish(&device, &attempt, 1);
    w.end(&device, &attempt, cause, None);
}

#[test]
fn f91_machines_of_one_owner_that_go_seconds_apart_make_one_move() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let (kim, _) = w.join(Role::Member, "kim");
    let lab1 = machine_of(&mut w, &kim, "lab-1");
    let lab2 = machine_of(&mut w, &kim, "lab-2");
    let elsewhere = w.provider("far-away", &[80]);
    let job = w.submit(&ada, |_| {});
    assert_eq!(w.newest(&job).0, lab1);
    leave(&mut w, &job, EndCause::Left);
    assert_eq!(w.newest(&job).0, elsewhere, "at once, and not to what may go too: {lab2}");
    assert_eq!(w.broker.poll_timeout().map(|at| (at - w.now.boot).0 <= 5_000), Some(true), "it looks again");
    w.wait(Millis::from_secs(5));
    let next = w.submit(&ada, |_| {});
    assert_eq!(w.newest(&next).0, lab1, "it stayed");
}

#[test]
fn f91_after_a_second_departure_within_seconds_jobs_wait_until_it_is_seen_who_stays() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let labs: Vec<DeviceId> = (1..5).map(|n| w.provider(&format!("lab-{n}"), &[8])).collect();
    let job = w.submit(&ada, |_| {});
    leave(&mut w, &job, EndCause::Reclaimed);
    let (second, attempt) = w.newest(&job);
    assert_ne!(second, labs[0], "one departure costs no delay");
    w.wait(Millis::from_secs(4));
    w.end(&second, &attempt, EndCause::Left, None);
    assert_eq!(w.why(&job), "Several providers left within seconds; it waits a moment to see who stays");
    let new = w.submit(&ada, |_| {});
    assert_eq!(w.state(&new), JobState::Placed, "who lost nobody does not wait");
    w.wait(Millis(2_999));
    assert_eq!(w.newest(&job).1, attempt);
    w.wait(Millis(1));
    assert_ne!(w.newest(&job).1, attempt);
}

#[test]
fn departures_that_are_no_neighbours_in_time_cost_no_delay() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8]);
    w.provider("lab-2", &[8]);
    let job = w.submit(&ada, |_| {});
    for _ in 0..6 {
        leave(&mut w, &job, EndCause::Left);
        assert_eq!(w.state(&job), JobState::Moving);
        w.wait(Millis::from_secs(5));
    }
}

#[test]
fn however_many_go_nobody_waits_longer_than_fifteen_seconds() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let labs: Vec<DeviceId> = (0..12).map(|n| w.provider(&format!("lab-{n}"), &[8, 8])).collect();
    let job = w.submit(&ada, |_| {});
    lends(&mut w, &labs[11], |offer| offer.open = false);
    let attempt = w.newest(&job).1;
    leave(&mut w, &job, EndCause::Left);
    for lab in &labs[1..8] {
        w.wait(Millis::from_secs(2));
        assert_eq!(w.newest(&job).1, attempt);
        lends(&mut w, lab, |offer| offer.open = false);
    }
    w.wait(Millis::from_secs(1));
    assert_ne!(w.newest(&job).1, attempt);
}

#[test]
fn f91_who_ends_within_the_hour_is_taken_only_when_nobody_else_fits() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let soon = w.provider("lab-1", &[8, 8]);
    let (later, large) = (w.provider("lab-2", &[8, 8]), w.provider("lab-3", &[80]));
    let ends = |w: &mut World, lab: &DeviceId, minutes: u64| {
        lends(w, lab, |offer| offer.time_left = Some(Millis::from_secs(minutes * 60)));
    };
    ends(&mut w, &soon, 59);
    ends(&mut w, &later, 61);
    let taken: Vec<DeviceId> = (0..5)
        .map(|_| {
            let job = w.submit(&ada, |_| {});
            w.newest(&job).0
        })
        .collect();
    assert_eq!(taken, [later.clone(), later, large, soon.clone(), soon], "61 min are as good as for ever");
}
