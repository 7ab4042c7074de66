//! A job that gets no further is held and explained, and no other one is.

use gpunion_protocol::http::Role;
use gpunion_protocol::ids::{AttemptNo, DeviceId, JobId, MemberId};
use gpunion_protocol::job::{EndCause, JobState};
use gpunion_protocol::session::ToRelay;
use gpunion_protocol::time::Millis;

use super::{World, offer};

const LEASE: Millis = Millis::from_secs(50);

fn job_of_ada(labs: &[&str]) -> (World, MemberId, JobId, Vec<DeviceId>) {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let labs = labs.iter().map(|name| w.provider(name, &[8])).collect();
    let job = w.submit(&ada, |_| {});
    (w, ada, job, labs)
}

#[test]
fn f95_a_job_that_saved_nothing_in_four_attempts_that_ran_is_held_and_told_what_to_do() {
    let (mut w, ada, job, _) = job_of_ada(&["lab-1"]);
    for cause in [EndCause::Reclaimed, EndCause::Left, EndCause::Reclaimed] {
        let (lab, attempt) = w.run(&job);
        w.end(&lab, &attempt, cause, None);
        assert_eq!(w.state(&job), JobState::Moving, "not before the fourth");
    }
    w.restart();
    let (lab, attempt) = w.newest(&job);
    w.connect(&lab);
    w.run(&job);
    w.end(&lab, &attempt, EndCause::Reclaimed, None);
    assert_eq!(
        w.why(&job),
        "It saved nothing new in 4 attempts in a row; the last one ended: The owner took the GPU back. Let \
         it save more often (checkpoint.every), then cancel it and submit it again"
    );
    assert_eq!(w.state(&job).word(), "held");
    w.cancel(&ada, &job).unwrap();
    assert_eq!(w.state(&job), JobState::Cancelled);
}

#[test]
fn f95_a_checkpoint_is_what_counts_as_further_whenever_in_the_attempt_it_came() {
    let (mut w, _, job, _) = job_of_ada(&["lab-1"]);
    for n in 1..=20 {
        let (lab, attempt) = w.run(&job);
        if n % 4 == 0 {
            w.publish(&lab, &attempt, n);
        }
        w.end(&lab, &attempt, EndCause::Reclaimed, None);
    }
    assert_eq!(w.newest(&job).1.token.attempt, AttemptNo(21));
    for _ in 0..4 {
        let (lab, attempt) = w.run(&job);
        w.end(&lab, &attempt, EndCause::Left, None);
    }
    assert!(
        w.why(&job).ends_with("(`gpunion fetch --checkpoint` has its last checkpoint)"),
        "{}",
        w.why(&job)
    );
}

#[test]
fn who_leaves_before_it_ran_says_nothing_about_the_job() {
    let (mut w, _, job, _) = job_of_ada(&["lab-1"]);
    for _ in 0..20 {
        let (lab, attempt) = w.newest(&job);
        w.end(&lab, &attempt, EndCause::Left, None);
    }
    assert_eq!((w.newest(&job).1.token.attempt, w.state(&job)), (AttemptNo(21), JobState::Placed));
}

#[test]
fn failed_starts_and_lost_work_are_counted_together() {
    let (mut w, _, job, _) = job_of_ada(&["lab-1"]);
    for _ in 0..3 {
        let (lab, attempt) = w.run(&job);
        w.end(&lab, &attempt, EndCause::Reclaimed, None);
    }
    let (lab, attempt) = w.newest(&job);
    w.end(&lab, &attempt, EndCause::CouldNotStart { reason: "no space".to_owned() }, None);
    assert!(w.why(&job).starts_with("It got no further in 4 attempts in a row; the last time: no space"));
}

#[test]
fn a_job_that_silences_every_provider_is_held_instead_of_placed_a_fifth_time() {
    let labs = ["lab-1", "lab-2", "lab-3", "lab-4", "lab-5"];
    let (mut w, _, job, _) = job_of_ada(&labs);
    for n in 1..=4 {
        let (lab, _) = w.run(&job);
        assert_eq!(w.newest(&job).1.token.attempt, AttemptNo(n));
        w.disconnect(&lab);
        w.wait(LEASE);
    }
    assert_eq!(w.newest(&job).1.token.attempt, AttemptNo(4), "the fifth machine is spared");
    assert!(w.why(&job).contains("the last one ended: The provider vanished"), "{}", w.why(&job));
}

#[test]
fn the_fourth_that_went_silent_counts_again_when_nobody_else_could_take_its_job() {
    let (mut w, _, job, labs) = job_of_ada(&["lab-1"]);
    for _ in 0..3 {
        let (lab, attempt) = w.run(&job);
        w.end(&lab, &attempt, EndCause::Reclaimed, None);
    }
    let (lab, attempt) = w.run(&job);
    w.disconnect(&lab);
    w.wait(Millis::from_secs(3_600));
    assert_eq!(w.state(&job).word(), "queued", "time alone holds nothing");
    w.connect(&lab);
    w.say(&lab, ToRelay::Offer { offer: offer("lab-1", &[8]) });
    w.renew(&lab, std::slice::from_ref(&attempt));
    assert_eq!((w.state(&job), &w.newest(&job).0), (JobState::Running, &labs[0]));
}
