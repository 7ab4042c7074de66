//! Leases, lost providers, restarts of the relay.

use gpunion_protocol::egress::EgressRule;
use gpunion_protocol::http::Role;
use gpunion_protocol::ids::AttemptNo;
use gpunion_protocol::job::{AttemptState, EndCause, JobState};
use gpunion_protocol::offer::Offer;
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_protocol::time::Millis;

use super::{World, assigned, ends, offer, sent};

const LEASE: Millis = Millis::from_secs(50);

#[test]
fn a_provider_that_vanishes_loses_the_job_to_the_next_one_after_its_lease() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab1 = w.provider("lab-1", &[8]);
    let lab2 = w.provider("lab-2", &[8]);
    let job = w.submit(&ada, |_| {});
    let (first, attempt) = w.run(&job);
    assert_eq!(first, lab1);
    w.publish(&first, &attempt, 1);
    w.disconnect(&first);
    w.wait(Millis(LEASE.0 - 1));
    assert_eq!(w.state(&job), JobState::Running, "silence is not death");
    let effects = w.wait(Millis(1));
    let [assignment] = assigned(&effects, &lab2)[..] else { panic!("not assigned: {effects:?}") };
    assert_eq!(assignment.from, Some(super::snapshot(1)));
    assert_eq!((assignment.resumed, assignment.previous), (true, Some(AttemptNo(1))));
    assert_eq!(w.state(&job), JobState::Moving);

    // It returns too late: its writes are refused, and it is told so.
    w.connect(&lab1);
    let effects = w.publish(&lab1, &attempt, 2);
    assert!(sent(&effects, &lab1).iter().any(|m| matches!(m, ToAgent::PublishRefused { .. })));
    assert_eq!(ends(&effects, &lab1), [(&attempt, &EndCause::Stale)]);
    let effects = w.end(&lab1, &attempt, EndCause::Exited { code: 1 }, None);
    assert_eq!(sent(&effects, &lab1), [&ToAgent::EndSeen { attempt }]);
    assert_eq!(w.state(&job), JobState::Moving, "nothing it says changes the job");
}

#[test]
fn who_returns_before_anybody_newer_counts_again() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    let (_, attempt) = w.run(&job);
    w.disconnect(&lab);
    w.wait(LEASE);
    assert!(w.why(&job).starts_with("lab-1 went silent and may return"), "{}", w.why(&job));
    w.connect(&lab);
    w.say(&lab, ToRelay::Offer { offer: offer("lab-1", &[8]) });
    let effects = w.renew(&lab, std::slice::from_ref(&attempt));
    let renewed =
        ToAgent::Renewed { seq: 1, counting: vec![attempt.clone()], stale: vec![], put_aside: None };
    assert!(sent(&effects, &lab).contains(&&renewed));
    assert_eq!(w.state(&job), JobState::Running);
    w.end(&lab, &attempt, EndCause::Exited { code: 0 }, Some(3));
    assert_eq!(w.state(&job), JobState::Succeeded);
}

#[test]
fn time_in_which_nobody_answers_for_an_attempt_is_not_use() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    let (_, attempt) = w.run(&job);
    w.disconnect(&lab);
    w.wait(LEASE);
    w.wait(Millis::from_secs(7000));
    w.connect(&lab);
    w.renew(&lab, std::slice::from_ref(&attempt));
    w.wait(Millis::from_secs(20));
    w.end(&lab, &attempt, EndCause::Exited { code: 0 }, Some(3));
    let used = w.broker.shares(w.now)[&ada];
    assert!((60_000..=70_000).contains(&used), "50 s and 20 s of one GPU, halved a little: {used}");
}

#[test]
fn f42_renewals_keep_a_lease_whatever_the_wall_clock_does() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    w.provider("lab-2", &[8]);
    let job = w.submit(&ada, |_| {});
    let (_, attempt) = w.run(&job);
    for step in 0..20_i64 {
        w.now.wall.0 += if step % 2 == 0 { 3_600_000 } else { -7_200_000 };
        w.wait(Millis::from_secs(10));
        w.renew(&lab, std::slice::from_ref(&attempt));
    }
    assert_eq!(w.newest(&job).1, attempt);
}

#[test]
fn after_its_own_start_the_relay_waits_a_whole_lease() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab1 = w.provider("lab-1", &[8]);
    let lab2 = w.provider("lab-2", &[8]);
    let job = w.submit(&ada, |_| {});
    let (_, attempt) = w.run(&job);
    w.disconnect(&lab1);
    w.now.boot = w.now.boot + Millis::from_secs(500);
    w.restart();
    w.connect(&lab2);
    w.say(&lab2, ToRelay::Offer { offer: offer("lab-2", &[8]) });
    w.wait(Millis(LEASE.0 - 1));
    assert_eq!(w.newest(&job).1, attempt, "it may still renew");
    w.wait(Millis(1));
    let (device, next) = w.newest(&job);
    assert_eq!(device, lab2);
    assert!(next.token > attempt.token && next.token.epoch > attempt.token.epoch);
}

#[test]
fn after_its_own_start_a_job_with_egress_waits_for_leases_that_it_may_not_know_of() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8, 8]);
    w.restart();
    w.connect(&lab);
    w.say(&lab, ToRelay::Offer { offer: Offer { egress: EgressRule::Asked, ..offer("lab-1", &[8, 8]) } });
    let job = w.submit(&ada, |s| s.spec.network.egress = vec!["github.com".to_owned()]);
    let plain = w.submit(&ada, |_| {});
    assert_eq!(w.state(&plain), JobState::Placed, "it has no effect outside");
    assert_eq!(
        w.why(&job),
        "The relay has just started; a job with egress waits until no earlier attempt can still be running"
    );
    w.wait(Millis(LEASE.0 - 1));
    assert!(w.broker.newest(&job).is_none(), "a backup may not know who has one");
    w.wait(Millis(1));
    assert_eq!(w.newest(&job).0, lab);
}

#[test]
fn an_attempt_of_an_unknown_token_is_named_in_neither_list_and_ends_as_stale() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    let (_, mut attempt) = w.run(&job);
    let waiting = w.submit(&ada, |_| {});
    attempt.token.attempt = AttemptNo(7);
    let effects = w.renew(&lab, std::slice::from_ref(&attempt));
    assert!(sent(&effects, &lab).contains(&&ToAgent::Renewed {
        seq: 1,
        counting: vec![],
        stale: vec![],
        put_aside: None
    }));
    let effects =
        w.say(&lab, ToRelay::State { attempt: attempt.clone(), state: AttemptState::Running, note: None });
    assert_eq!(ends(&effects, &lab), [(&attempt, &EndCause::Stale)]);
    assert!(w.why(&waiting).contains("lab-1"), "{}", w.why(&waiting));
    let effects = w.end(&lab, &attempt, EndCause::Stale, None);
    assert_eq!(sent(&effects, &lab), [&ToAgent::EndSeen { attempt }]);
}

#[test]
fn a_gpu_stays_taken_until_its_device_says_that_the_guest_is_gone() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let first = w.submit(&ada, |_| {});
    let (_, attempt) = w.run(&first);
    w.cancel(&ada, &first).unwrap();
    let second = w.submit(&ada, |_| {});
    assert_eq!(w.why(&second), "The only GPU with 1 GiB is lent; you are next");
    let effects = w.wait(Millis::from_secs(10));
    assert_eq!(ends(&effects, &lab), [(&attempt, &EndCause::Cancelled)], "said again until answered");
    w.end(&lab, &attempt, EndCause::Cancelled, None);
    assert_eq!(w.state(&second), JobState::Placed);
    assert_eq!(w.state(&first), JobState::Cancelled);
}

#[test]
fn an_assignment_is_said_again_until_answered_and_then_tried_elsewhere() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab1 = w.provider("lab-1", &[8]);
    let lab2 = w.provider("lab-2", &[8]);
    let job = w.submit(&ada, |_| {});
    let (device, attempt) = w.newest(&job);
    assert_eq!(device, lab1);
    for _ in 0..2 {
        assert_eq!(assigned(&w.wait(Millis::from_secs(10)), &lab1).len(), 1);
    }
    w.wait(Millis::from_secs(10));
    assert_eq!(w.newest(&job).0, lab2);
    let cause = &w.broker.attempt(&job, attempt.token.attempt).unwrap().state;
    assert!(matches!(cause, AttemptState::Ended { cause: EndCause::CouldNotStart { .. } }), "{cause:?}");
    w.run(&job);
    assert!(assigned(&w.wait(Millis::from_secs(10)), &lab2).is_empty(), "answered: not said again");
}

#[test]
fn an_assignment_waits_for_a_device_that_went_and_is_said_at_once_when_it_returns() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    w.disconnect(&lab);
    w.wait(Millis::from_secs(35));
    let effects = w.connect(&lab);
    assert_eq!(assigned(&effects, &lab).len(), 1);
    assert!(matches!(sent(&effects, &lab)[0], ToAgent::Welcome { .. }), "welcomed first");
    assert_eq!(w.state(&job), JobState::Placed);
}

#[test]
fn words_of_a_session_that_was_replaced_are_not_heard() {
    let mut w = World::new();
    w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let old = w.session(&lab);
    w.connect(&lab);
    let message = ToRelay::Offer { offer: offer("lab-1", &[80]) };
    let event = crate::broker::Event::From { device: lab.clone(), session: old, message };
    assert_eq!(w.step(event), []);
    w.step(crate::broker::Event::Disconnected { device: lab.clone(), session: old });
    assert!(w.broker.devices().iter().find(|d| d.id == lab).unwrap().connected);
}

#[test]
fn f81_a_relay_that_stood_still_takes_no_lease_for_it() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab1 = w.provider("lab-1", &[8]);
    let lab2 = w.provider("lab-2", &[8]);
    let job = w.submit(&ada, |_| {});
    let (at, attempt) = w.run(&job);
    let other = if at == lab1 { &lab2 } else { &lab1 };
    // Two leases long; what the other one says is the first that is read then.
    w.now.boot = w.now.boot + LEASE + LEASE;
    w.step(crate::broker::Event::StoodStill);
    w.say(other, ToRelay::Offer { offer: offer("other", &[8]) });
    assert_eq!(w.newest(&job).1, attempt, "its renewal waits behind");
    w.renew(&at, std::slice::from_ref(&attempt));
    assert_eq!(w.state(&job), JobState::Running);
    // The whole lease that it got is no more than that.
    w.disconnect(&at);
    w.wait(LEASE);
    assert_ne!(w.newest(&job).1, attempt);
}

#[test]
fn f81_an_assignment_is_not_unanswered_because_the_relay_stood_still() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    let (_, attempt) = w.newest(&job);
    w.now.boot = w.now.boot + Millis::from_secs(40);
    w.step(crate::broker::Event::StoodStill);
    assert_eq!(w.newest(&job).1, attempt);
    w.run(&job);
    assert_eq!((w.newest(&job).1, w.state(&job)), (attempt, JobState::Running));
    assert_eq!(w.newest(&job).0, lab);
}

#[test]
fn what_a_device_knows_nothing_of_any_more_fills_no_room_there_once_its_lease_is_over() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    let (_, attempt) = w.run(&job);
    // The relay's disk is that of a backup, or the agent lost its records.
    w.renew(&lab, &[]);
    assert_eq!(w.newest(&job).1, attempt, "the assignment may still be on its way");
    w.wait(LEASE);
    w.renew(&lab, &[]);
    let (at, next) = w.newest(&job);
    assert!(at == lab && next != attempt, "the only GPU is free for it");
}

#[test]
fn a_gpu_that_a_device_still_has_after_all_is_not_free() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    let (_, attempt) = w.run(&job);
    w.cancel(&ada, &job).unwrap();
    w.end(&lab, &attempt, EndCause::Cancelled, None);
    w.renew(&lab, &[]);
    // An agent whose disk lost the last commit has it again.
    let renewed = w.renew(&lab, std::slice::from_ref(&attempt));
    let stale = ToAgent::Renewed { seq: 1, counting: vec![], stale: vec![attempt], put_aside: None };
    assert!(sent(&renewed, &lab).contains(&&stale));
    let next = w.submit(&ada, |_| {});
    assert!(w.broker.newest(&next).is_none(), "it waits: {}", w.why(&next));
    w.renew(&lab, &[]);
    assert!(w.broker.newest(&next).is_some());
}
