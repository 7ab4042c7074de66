//! A job from submit to its final state.

use gpunion_protocol::http::Role;
use gpunion_protocol::ids::DeviceId;
use gpunion_protocol::job::{AttemptState, Blob, EndCause, Image, JobState, PrepareStep, WrappedKey};
use gpunion_protocol::problem::Code;
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_protocol::time::Millis;
use gpunion_protocol::units::Bytes;

use super::{GIB, World, assigned, ends, offer, sent, snapshot};
use crate::broker::{By, Digest, Event, Jobs, Reply, RequestId};

#[test]
fn a_job_is_placed_runs_and_succeeds_with_its_result() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let submit = w.draft(|_| {});
    let job = submit.job.clone();
    let Ok(Reply::Submitted(submitted)) = w.hand_in(&ada, submit) else { panic!("refused") };
    assert_eq!(submitted.state, JobState::Placed, "the reply tells where it is already");
    let (device, attempt) = w.run(&job);
    assert_eq!((device, w.state(&job)), (lab.clone(), JobState::Running));
    assert!(matches!(w.publish(&lab, &attempt, 1).last(), Some(super::Effect::Send { .. })));
    let effects = w.end(&lab, &attempt, EndCause::Exited { code: 0 }, Some(2));
    assert!(sent(&effects, &lab).contains(&&ToAgent::EndSeen { attempt: attempt.clone() }));
    assert_eq!(w.state(&job), JobState::Succeeded);
    w.restart();
    let view = w.broker.job_view(&job, &ada).unwrap();
    assert_eq!(view.result, Some(snapshot(2)));
    assert_eq!(view.checkpoints.len(), 1);
    assert!(view.sealed.is_some() && !view.wrapped.is_empty());
    let effects = w.connect(&lab);
    assert_eq!(sent(&effects, &lab).len(), 1, "nothing but the welcome");
    let effects = w.end(&lab, &attempt, EndCause::Exited { code: 1 }, None);
    assert_eq!(sent(&effects, &lab), [&ToAgent::EndSeen { attempt }], "an end said twice is seen twice");
    assert_eq!(w.state(&job), JobState::Succeeded);
}

#[test]
fn submit_is_safe_to_repeat_and_refuses_another_body() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let (bob, _) = w.join(Role::Member, "bob");
    let submit = w.draft(|_| {});
    let first = w.hand_in(&ada, submit.clone());
    assert!(first.is_ok());
    assert_eq!(w.hand_in(&ada, submit.clone()), first);
    w.restart();
    let Ok(Reply::Submitted(again)) = w.hand_in(&ada, submit.clone()) else { panic!("refused") };
    assert_eq!((again.job, w.broker.jobs.len()), (submit.job.clone(), 1));
    let mut other = submit.clone();
    other.spec.name = "other".to_owned();
    assert_eq!(w.hand_in(&ada, other.clone()).unwrap_err().code, Code::KeyReused);
    assert_eq!(w.hand_in(&bob, submit).unwrap_err().code, Code::Conflict);
    let (key, body) = ("another key".to_owned(), Digest::of(b"x"));
    let error =
        w.ask(|request| Event::Submit { request, member: ada.clone(), key, body, submit: Box::new(other) });
    assert_eq!(error.unwrap_err().code, Code::Conflict);
    let bad = w.draft(|s| s.spec.resources.cpus = 0);
    assert_eq!(w.hand_in(&ada, bad).unwrap_err().code, Code::BadSpec);
}

#[test]
fn only_the_programs_own_exit_and_the_members_limits_fail_a_job() {
    for (cause, fails) in [
        (EndCause::Exited { code: 3 }, true),
        (EndCause::Signalled { signal: 11 }, true),
        (EndCause::MemoryLimit, true),
        (EndCause::DiskLimit, true),
        (EndCause::Reclaimed, false),
        (EndCause::Left, false),
        (EndCause::Lost, false),
        (EndCause::Stale, false),
        (EndCause::Cancelled, false),
        (EndCause::CouldNotStart { reason: "no space".to_owned() }, false),
        (EndCause::Broken { reason: "the engine went".to_owned() }, false),
    ] {
        let mut w = World::new();
        let (ada, _) = w.join(Role::Operator, "ada");
        w.provider("lab-1", &[8]);
        let job = w.submit(&ada, |_| {});
        let (lab, attempt) = w.run(&job);
        w.end(&lab, &attempt, cause.clone(), None);
        let state = w.state(&job);
        if fails {
            assert_eq!(state, JobState::Failed { cause });
        } else {
            assert!(!state.is_final(), "{cause:?} made it {state:?}");
        }
    }
}

#[test]
fn f80_cancel_ends_in_cancelled_from_every_state() {
    for stage in 0..6 {
        let mut w = World::new();
        let (ada, _) = w.join(Role::Operator, "ada");
        let (bob, _) = w.join(Role::Member, "bob");
        let lab = if stage == 0 { None } else { Some(w.provider("lab-1", &[8])) };
        let job = w.submit(&ada, |_| {});
        if stage >= 2 {
            w.run(&job);
        }
        if stage == 3 {
            w.disconnect(lab.as_ref().unwrap());
        }
        if stage == 4 {
            w.disconnect(lab.as_ref().unwrap());
            w.wait(Millis::from_secs(60));
        }
        if stage == 5 {
            hold(&mut w, &job);
        }
        assert_eq!(w.cancel(&bob, &job).unwrap_err().code, Code::NotFound, "not bob's to see");
        assert_eq!(w.cancel(&ada, &job), Ok(Reply::State(JobState::Cancelled)), "stage {stage}");
        assert_eq!(w.cancel(&ada, &job), Ok(Reply::State(JobState::Cancelled)), "again");
        w.restart();
        assert_eq!(w.state(&job), JobState::Cancelled);
    }
}

#[test]
fn f79_a_result_that_comes_after_cancel_changes_nothing() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    let (_, attempt) = w.run(&job);
    w.cancel(&ada, &job).unwrap();
    w.end(&lab, &attempt, EndCause::Exited { code: 0 }, Some(1));
    assert_eq!(w.state(&job), JobState::Cancelled);
    assert_eq!(w.broker.job_view(&job, &ada).unwrap().result, None);
}

#[test]
fn a_failure_before_the_first_new_checkpoint_is_tried_once_from_the_one_before() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8]);
    w.provider("lab-2", &[8]);
    let job = w.submit(&ada, |_| {});
    let (lab, attempt) = w.run(&job);
    w.publish(&lab, &attempt, 1);
    w.publish(&lab, &attempt, 2);
    w.publish(&lab, &attempt, 3);
    w.end(&lab, &attempt, EndCause::Reclaimed, None);
    let chain: Vec<_> =
        w.broker.job_view(&job, &ada).unwrap().checkpoints.iter().map(|c| c.snapshot).collect();
    assert_eq!(chain, [snapshot(2), snapshot(3)], "the one before is kept");
    let from = |w: &World| w.broker.newest(&job).unwrap().from;
    assert_eq!(from(&w), Some(snapshot(3)));

    // A provider's fault: again from the same.
    let (lab, attempt) = w.newest(&job);
    w.end(&lab, &attempt, EndCause::Broken { reason: "engine".to_owned() }, None);
    w.until_placed(&job);
    assert_eq!(from(&w), Some(snapshot(3)));

    // The program's own: once from the one before.
    let (lab, attempt) = w.run(&job);
    w.end(&lab, &attempt, EndCause::Exited { code: 1 }, None);
    assert_eq!(from(&w), Some(snapshot(2)));
    w.restart();
    assert_eq!(from(&w), Some(snapshot(2)));
    let mut again = w.clone_disk();
    again.end_newest(&job, EndCause::Exited { code: 1 });
    assert_eq!(again.state(&job), JobState::Failed { cause: EndCause::Exited { code: 1 } }, "only once");

    // Or it gets further, and the doubted one is gone from the chain.
    let (lab, attempt) = w.newest(&job);
    w.connect(&lab);
    w.publish(&lab, &attempt, 4);
    let chain: Vec<_> =
        w.broker.job_view(&job, &ada).unwrap().checkpoints.iter().map(|c| c.snapshot).collect();
    assert_eq!(chain, [snapshot(2), snapshot(4)]);
}

#[test]
fn a_publish_said_twice_is_in_the_chain_once() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    let (lab, attempt) = w.run(&job);
    for n in [1, 2, 3, 1, 2, 3, 1] {
        let effects = w.publish(&lab, &attempt, n);
        let published = ToAgent::Published { attempt: attempt.clone(), snapshot: snapshot(n) };
        assert_eq!(sent(&effects, &lab), [&published]);
    }
    let course = &w.broker.courses[&job];
    assert_eq!(course.next_from(), Some(snapshot(3)), "an old word that is late does not go back");
}

#[test]
fn f16_a_job_that_never_gets_further_is_held_and_explained() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    hold(&mut w, &job);
    assert_eq!(
        w.why(&job),
        "It got no further in 4 attempts in a row; the last time: the image can't be pulled. When that is \
         mended, cancel it and submit it again"
    );
    w.wait(Millis::from_secs(3600));
    assert_eq!(w.state(&job).word(), "held");
}

#[test]
fn a_finish_without_a_result_is_no_success() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    for n in 1..=4 {
        w.until_placed(&job);
        let (lab, attempt) = w.run(&job);
        w.publish(&lab, &attempt, n);
        w.end(&lab, &attempt, EndCause::Exited { code: 0 }, None);
    }
    assert!(w.why(&job).contains("could not save the workspace"), "{}", w.why(&job));
}

#[test]
fn a_device_without_a_key_gets_one_from_a_holder() {
    let mut w = World::new();
    let (ada, laptop) = w.join(Role::Operator, "ada");
    let job = w.submit(&ada, |_| {});
    let lab = w.provider("lab-1", &[8]);
    assert_eq!(
        w.why(&job),
        "lab-1 is free, but has no key of this job yet; it gets one when a device of the member is online"
    );
    let effects = w.connect(&laptop);
    let public_key = Blob(vec![7; 32]);
    let asked = ToAgent::WrapFor { job: job.clone(), device: lab.clone(), public_key };
    assert!(sent(&effects, &laptop).contains(&&asked), "{effects:?}");
    assert!(sent(&w.wait(Millis::from_secs(10)), &laptop).contains(&&asked), "again, until answered");
    let key = WrappedKey { device: lab.clone(), wrapped: Blob(vec![5; 80]) };
    let word = ToRelay::Wrapped { job, key: key.clone() };
    assert_eq!(assigned(&w.say(&lab, word.clone()), &lab).len(), 0, "who has no key can't give one");
    let effects = w.say(&laptop, word);
    assert_eq!(assigned(&effects, &lab)[0].key, key.wrapped);
    assert!(w.wait(Millis::from_secs(10)).iter().all(|e| !format!("{e:?}").contains("WrapFor")));
}

#[test]
fn a_key_that_nobody_can_hand_on_any_more_is_called_lost() {
    let mut w = World::new();
    let (ada, laptop) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let other = w.provider("lab-2", &[80]);
    let job = w.submit(&ada, |s| {
        s.spec.resources.gpu_memory = Bytes(80 * GIB);
        let key = |device: &DeviceId| WrappedKey { device: device.clone(), wrapped: Blob(vec![5; 80]) };
        s.keys = vec![key(&laptop), key(&lab)];
    });
    assert!(w.why(&job).contains("it gets one when a device of the member is online"), "{}", w.why(&job));
    let request = RequestId(77);
    w.step(Event::RevokeDevice { request, by: By::Relay, device: laptop });
    w.say(&other, ToRelay::Offer { offer: offer("lab-2", &[80]) });
    assert!(w.why(&job).ends_with("cancel the job and submit it again"), "{}", w.why(&job));
}

#[test]
fn a_member_sees_how_far_an_attempt_is_and_what_is_wrong_with_it() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    let (_, attempt) = w.newest(&job);
    let seen = |w: &World| w.broker.job_view(&job, &ada).unwrap().attempts[0].note.clone();
    for note in [Some("pulling the image: 1 GiB of 2 GiB".to_owned()), None] {
        let state = AttemptState::Preparing { step: PrepareStep::Pull };
        w.say(&lab, ToRelay::State { attempt: attempt.clone(), state, note: note.clone() });
        assert_eq!(seen(&w), note);
    }
}

#[test]
fn the_first_preparation_fixes_the_images_digest() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    let (_, attempt) = w.newest(&job);
    let good = format!("sha256:{}", "a".repeat(64));
    for digest in ["latest".to_owned(), good.clone(), format!("sha256:{}", "b".repeat(64))] {
        w.say(&lab, ToRelay::ImageDigest { attempt: attempt.clone(), digest });
    }
    let image = w.broker.job_view(&job, &ada).unwrap().image;
    assert_eq!(image, Image::Registry { reference: "digits:1".to_owned(), digest: Some(good) });
}

#[test]
fn states_only_go_forward_and_late_ones_are_told_to_end() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    let (_, attempt) = w.run(&job);
    w.say(&lab, ToRelay::State { attempt: attempt.clone(), state: AttemptState::Ready, note: None });
    assert_eq!(w.state(&job), JobState::Running);
    w.cancel(&ada, &job).unwrap();
    let word = ToRelay::State { attempt: attempt.clone(), state: AttemptState::Saving, note: None };
    assert_eq!(ends(&w.say(&lab, word), &lab), [(&attempt, &EndCause::Cancelled)]);
}

#[test]
fn views_keep_sealed_things_to_their_member() {
    let mut w = World::new();
    let (ada, adas) = w.join(Role::Operator, "ada");
    let (bob, bobs) = w.join(Role::Member, "bob");
    let lab = w.provider("lab-1", &[8]);
    let job = w.submit(&bob, |s| s.spec.resources.memory = Bytes(super::GIB));
    let view = w.broker.job_view(&job, &ada).unwrap();
    assert!(view.sealed.is_none() && view.wrapped.is_empty(), "an operator sees, but can't open");
    let of = |member: Option<&gpunion_protocol::ids::MemberId>| Jobs {
        member: member.cloned(),
        open: None,
        name: None,
        before: None,
        limit: 10,
    };
    assert_eq!(w.broker.jobs_where(&of(Some(&ada)), &ada), Some(vec![]));
    assert_eq!(w.broker.jobs_where(&of(None), &ada).unwrap().len(), 1);
    let read = |w: &World| [&adas, &bobs, &lab].map(|d| w.broker.may_read(d, &job));
    assert_eq!(read(&w), [false, true, true]);
    let (_, attempt) = w.run(&job);
    assert!(w.broker.log_accepts(&lab, &attempt) && !w.broker.log_accepts(&bobs, &attempt));
    assert!(w.broker.may_write(&lab, &job));
    assert_eq!(w.broker.providers()[0].gpus_free, 0);
    w.end(&lab, &attempt, EndCause::Exited { code: 0 }, Some(1));
    assert_eq!(read(&w), [false, true, false]);
    assert!(!w.broker.log_accepts(&lab, &attempt), "its last words came before it said that it is done");
    assert_eq!(w.broker.providers()[0].gpus_free, 1);
}

fn hold(w: &mut World, job: &gpunion_protocol::ids::JobId) {
    for _ in 0..4 {
        w.until_placed(job);
        let (lab, attempt) = w.run(job);
        let cause = EndCause::CouldNotStart { reason: "the image can't be pulled".to_owned() };
        w.end(&lab, &attempt, cause, None);
    }
}

impl World {
    /// Waits until it goes to a provider again.
    pub(super) fn until_placed(&mut self, job: &gpunion_protocol::ids::JobId) {
        for _ in 0..30 {
            if !self.broker.is_waiting(job) {
                return;
            }
            self.wait(Millis::from_secs(10));
        }
        panic!("it is not placed: {}", self.why(job));
    }

    /// Another world that starts from this one's disk.
    fn clone_disk(&self) -> World {
        let mut other = World::new();
        other.broker = self.broker.clone();
        other.disk = self.disk.clone();
        other.counter = self.counter;
        other.epoch = self.epoch;
        other.now = self.now;
        other.restart();
        other
    }

    fn end_newest(&mut self, job: &gpunion_protocol::ids::JobId, cause: EndCause) {
        let (device, attempt) = self.newest(job);
        self.connect(&device);
        self.end(&device, &attempt, cause, None);
    }
}

#[test]
fn a_members_later_device_gets_the_keys_of_what_an_earlier_one_submitted() {
    let mut w = World::new();
    let (ada, laptop) = w.join(Role::Operator, "ada");
    w.connect(&laptop);
    let job = w.submit(&ada, |_| {});
    w.cancel(&ada, &job).unwrap();
    let code = w.invite(Role::Member, Some(ada.clone()));
    let Ok(Reply::Joined { device: desk, .. }) = w.redeem(code, "desk") else { panic!("not joined") };
    let effects = w.connect(&desk);
    let asked = ToAgent::WrapFor { job: job.clone(), device: desk.clone(), public_key: Blob(vec![7; 32]) };
    assert!(sent(&effects, &laptop).contains(&&asked), "{effects:?}");
    let key = WrappedKey { device: desk, wrapped: Blob(vec![6; 80]) };
    w.say(&laptop, ToRelay::Wrapped { job: job.clone(), key: key.clone() });
    assert!(w.broker.job_view(&job, &ada).unwrap().wrapped.contains(&key));
}
