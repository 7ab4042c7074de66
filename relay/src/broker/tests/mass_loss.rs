//! Most providers vanish at once: their jobs wait to see whether they return.

use gpunion_protocol::http::Role;
use gpunion_protocol::ids::{DeviceId, JobId, MemberId};
use gpunion_protocol::job::JobState;
use gpunion_protocol::session::ToRelay;
use gpunion_protocol::time::Millis;

use super::{Event, World, offer};

const LEASE: Millis = Millis::from_secs(45);
/// With its margin.
const LAPSE: Millis = Millis::from_secs(50);
const WHY: &str = "More than half of the providers vanished at once; it may be the network. The job waits up to \
                   135 s for its own to return";

/// A provider of two GPUs each, and a job that runs on the first.
fn campus(labs: usize) -> (World, MemberId, Vec<DeviceId>, JobId) {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let labs: Vec<DeviceId> = (0..labs).map(|n| w.provider(&format!("lab-{n}"), &[8, 8])).collect();
    let job = w.submit(&ada, |_| {});
    w.run(&job);
    (w, ada, labs, job)
}

fn return_to(w: &mut World, lab: &DeviceId) {
    w.connect(lab);
    let name = w.broker.device_name(lab).unwrap().to_owned();
    w.say(lab, ToRelay::Offer { offer: offer(&name, &[8, 8]) });
}

/// These vanish now; when the first's lease is over its job is placed anew, or is not.
fn is_placed_after_its_lease(w: &mut World, job: &JobId, vanishing: &[DeviceId]) -> bool {
    let (_, attempt) = w.newest(job);
    for lab in vanishing {
        w.disconnect(lab);
    }
    w.wait(LAPSE);
    w.newest(job).1 != attempt
}

#[test]
fn when_more_than_half_of_four_vanish_their_jobs_wait_three_leases_and_say_so() {
    let (mut w, ada, labs, job) = campus(5);
    assert!(!is_placed_after_its_lease(&mut w, &job, &labs[..3]));
    assert_eq!(w.why(&job), WHY);
    let left = Millis(3 * LEASE.0 - LAPSE.0);
    assert_eq!(w.broker.poll_timeout(), Some(w.now.boot + left), "it wakes for it alone");
    let new = w.submit(&ada, |_| {});
    assert_eq!(w.state(&new), JobState::Placed, "who lost nobody does not wait");
    let attempt = w.newest(&job).1;
    w.wait(Millis(3 * LEASE.0 - LAPSE.0 - 1));
    assert_eq!(w.newest(&job).1, attempt);
    w.wait(Millis(1));
    assert!(labs[3..].contains(&w.newest(&job).0));
}

#[test]
fn who_returns_meanwhile_counts_again() {
    let (mut w, _, labs, job) = campus(5);
    let (_, attempt) = w.newest(&job);
    assert!(!is_placed_after_its_lease(&mut w, &job, &labs[..3]));
    w.wait(Millis::from_secs(60));
    return_to(&mut w, &labs[0]);
    assert_eq!(w.why(&job), WHY, "its session is there before its word");
    w.renew(&labs[0], std::slice::from_ref(&attempt));
    assert_eq!((w.state(&job), w.newest(&job).1), (JobState::Running, attempt));
}

#[test]
fn who_returns_without_it_is_waited_for_no_longer() {
    let (mut w, _, labs, job) = campus(5);
    let (_, attempt) = w.newest(&job);
    assert!(!is_placed_after_its_lease(&mut w, &job, &labs[..3]));
    return_to(&mut w, &labs[0]);
    w.renew(&labs[0], &[]);
    assert_ne!(w.newest(&job).1, attempt);
}

#[test]
fn half_of_them_or_a_few_of_a_few_wait_a_lease_as_ever() {
    for (all, gone) in [(4, 2), (3, 2), (6, 3), (9, 4)] {
        let (mut w, _, labs, job) = campus(all);
        assert!(is_placed_after_its_lease(&mut w, &job, &labs[..gone]), "{gone} of {all}");
    }
    for (all, gone) in [(4, 3), (6, 4), (9, 5)] {
        let (mut w, _, labs, job) = campus(all);
        assert!(!is_placed_after_its_lease(&mut w, &job, &labs[..gone]), "{gone} of {all}");
    }
}

#[test]
fn only_what_vanishes_within_one_lease_is_taken_together() {
    for (between, together) in [(LEASE.0 - 1, true), (LEASE.0, false)] {
        let (mut w, _, labs, job) = campus(5);
        let attempt = w.newest(&job).1;
        w.disconnect(&labs[0]);
        w.disconnect(&labs[1]);
        w.wait(Millis(between));
        w.disconnect(&labs[2]);
        w.wait(Millis(LAPSE.0 - between));
        assert_eq!(w.newest(&job).1 == attempt, together, "{between} ms");
    }
}

#[test]
fn who_came_back_and_who_lent_nothing_did_not_vanish() {
    let closes = |w: &mut World, n: usize, labs: &[DeviceId]| {
        let mut closed = offer(&format!("lab-{n}"), &[8, 8]);
        closed.open = false;
        w.say(&labs[n], ToRelay::Offer { offer: closed });
    };
    let (mut w, _, labs, job) = campus(6);
    w.disconnect(&labs[5]);
    return_to(&mut w, &labs[5]);
    w.disconnect(&labs[4]);
    return_to(&mut w, &labs[4]);
    w.renew(&labs[4], &[]);
    closes(&mut w, 4, &labs);
    closes(&mut w, 3, &labs);
    w.disconnect(&labs[3]);
    // Two of the four that lent.
    assert!(is_placed_after_its_lease(&mut w, &job, &labs[..2]));
}

#[test]
fn what_goes_after_most_others_is_waited_for_as_they_are() {
    let (mut w, ada, labs, job) = campus(6);
    let late = w.submit(&ada, |s| s.spec.resources.gpus = 2);
    let (at, attempt) = w.run(&late);
    for lab in labs.iter().filter(|lab| **lab != at).take(4) {
        w.disconnect(lab);
    }
    w.wait(Millis::from_secs(20));
    w.renew(&at, std::slice::from_ref(&attempt));
    w.disconnect(&at);
    w.wait(LAPSE);
    assert_eq!((w.why(&late).as_str(), w.newest(&late).1), (WHY, attempt));
    assert_eq!(w.why(&job), WHY);
}

#[test]
fn f81_a_relay_that_stood_still_or_has_just_started_waits_a_lease_and_no_longer() {
    let (mut w, _, labs, job) = campus(5);
    w.now.boot = w.now.boot + Millis::from_secs(40);
    w.step(Event::StoodStill);
    assert!(is_placed_after_its_lease(&mut w, &job, &labs[..3]), "they went for its silence");

    let (mut w, _, labs, job) = campus(5);
    w.restart();
    for lab in &labs {
        return_to(&mut w, lab);
    }
    assert!(is_placed_after_its_lease(&mut w, &job, &labs[..3]));
}
