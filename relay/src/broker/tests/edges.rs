//! Words that are nearly right, and limits at which something is kept, counted or forgotten.

use gpunion_protocol::http::{Role, Submit};
use gpunion_protocol::ids::{DeviceId, JobId};
use gpunion_protocol::job::{AttemptState, Blob, DataInput, EndCause, Image, JobState, StopWhy, WrappedKey};
use gpunion_protocol::problem::Code;
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_protocol::spec::Data;
use gpunion_protocol::time::Millis;

use super::{World, ends, offer, sent, snapshot};
use crate::broker::{Broker, By, Config, Event, Record, Reply};

/// A job that runs on the only provider.
fn running() -> (World, gpunion_protocol::ids::MemberId, JobId) {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    w.run(&job);
    (w, ada, job)
}

fn says(w: &mut World, job: &JobId, state: AttemptState, note: Option<&str>) {
    let (device, attempt) = w.newest(job);
    w.say(&device, ToRelay::State { attempt, state, note: note.map(str::to_owned) });
}

#[test]
fn an_end_comes_with_its_result_and_not_as_a_mere_state() {
    let (mut w, _, job) = running();
    says(&mut w, &job, AttemptState::Ended { cause: EndCause::Exited { code: 1 } }, None);
    assert_eq!(w.state(&job), JobState::Running);
    assert_eq!(w.broker.newest(&job).unwrap().state, AttemptState::Running);
}

#[test]
fn an_attempt_began_when_it_ran_first() {
    let (mut w, _, job) = running();
    let began = w.now.wall;
    for state in [AttemptState::Stopped { why: StopWhy::Checkpoint }, AttemptState::Running] {
        w.wait(Millis(5_000));
        says(&mut w, &job, state, None);
        assert_eq!(w.broker.newest(&job).unwrap().started, Some(began));
    }
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    says(&mut w, &job, AttemptState::Ready, None);
    assert_eq!((w.state(&job), w.broker.newest(&job).unwrap().started), (JobState::Placed, None));
    says(&mut w, &job, AttemptState::Stopped { why: StopWhy::Checkpoint }, None);
    assert_eq!(w.broker.newest(&job).unwrap().started, Some(w.now.wall), "it runs, and stands still now");
}

#[test]
fn a_note_is_told_once_and_again_when_it_is_another() {
    let (mut w, _, job) = running();
    w.notes.clear();
    for note in [Some("a"), Some("a"), Some("b"), None, Some("b")] {
        says(&mut w, &job, AttemptState::Running, note);
    }
    assert_eq!(w.notes, ["a", "b", "b"]);
}

#[test]
fn only_who_has_the_attempt_speaks_for_it() {
    let (mut w, _, job) = running();
    let (lab, attempt) = w.newest(&job);
    let other = w.provider("lab-2", &[8]);
    let effects = w.end(&other, &attempt, EndCause::Exited { code: 0 }, Some(1));
    assert_eq!(sent(&effects, &other), [&ToAgent::EndSeen { attempt: attempt.clone() }]);
    assert_eq!(w.state(&job), JobState::Running);
    let effects = w.publish(&other, &attempt, 1);
    assert!(sent(&effects, &other).iter().any(|m| matches!(m, ToAgent::PublishRefused { .. })));
    assert_eq!(ends(&effects, &other), [(&attempt, &EndCause::Stale)]);
    let mut older = attempt.clone();
    older.token.epoch.0 = 0;
    w.end(&lab, &older, EndCause::Exited { code: 0 }, Some(1));
    assert_eq!(w.state(&job), JobState::Running, "nor for one of another epoch");
}

#[test]
fn a_digest_is_one_and_comes_from_the_attempt_that_counts() {
    let good = format!("sha256:{}", "a".repeat(64));
    let (mut w, ada, job) = running();
    let (lab, attempt) = w.newest(&job);
    let other = w.provider("lab-2", &[80]);
    let digest = |w: &World| match w.broker.job_view(&job, &ada).unwrap().image {
        Image::Registry { digest, .. } => digest,
        Image::Layers { .. } => panic!("another image"),
    };
    let mut says = |device: &DeviceId, digest: &str| {
        w.say(device, ToRelay::ImageDigest { attempt: attempt.clone(), digest: digest.to_owned() });
    };
    says(&lab, &good[..good.len() - 1]);
    says(&lab, &format!("{good}a"));
    says(&lab, &format!("sha256:{}", "g".repeat(64)));
    says(&lab, &good.replace("sha256", "sha512"));
    says(&other, &good);
    assert_eq!(digest(&w), None);
    w.end(&lab, &attempt, EndCause::Left, None);
    w.say(&lab, ToRelay::ImageDigest { attempt: attempt.clone(), digest: good.clone() });
    assert_eq!(digest(&w), None, "it does not count any more");
    let (device, attempt) = w.newest(&job);
    w.say(&device, ToRelay::ImageDigest { attempt, digest: good.clone() });
    assert_eq!(digest(&w), Some(good));
}

#[test]
fn a_member_has_so_many_unfinished_jobs_and_the_next_member_as_many() {
    let config = Config { jobs_max: 2, ..Config::default() };
    let mut w = World { broker: Broker::new(config), ..World::new() };
    let (ada, _) = w.join(Role::Operator, "ada");
    let (bob, _) = w.join(Role::Member, "bob");
    let first = w.submit(&ada, |_| {});
    w.submit(&ada, |_| {});
    let third = w.draft(|_| {});
    assert_eq!(w.hand_in(&ada, third.clone()).unwrap_err().code, Code::Busy);
    w.submit(&bob, |_| {});
    w.cancel(&ada, &first).unwrap();
    assert!(w.hand_in(&ada, third).is_ok());
    w.restart();
    let fourth = w.draft(|_| {});
    assert_eq!(w.hand_in(&ada, fourth).unwrap_err().code, Code::Busy, "they are counted after a start too");
}

#[test]
fn a_spec_has_256_kib_and_not_one_byte_more() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let of_bytes = |bytes: usize| {
        move |submit: &mut Submit| {
            submit.spec.data = vec![Data { path: String::new(), at: "/data".to_owned() }];
            let rest = bytes - serde_json::to_vec(&submit.spec).unwrap().len();
            submit.spec.data[0].path = "x".repeat(rest);
        }
    };
    let over = w.draft(of_bytes((256 << 10) + 1));
    let problem = w.hand_in(&ada, over).unwrap_err();
    assert!(problem.code == Code::BadSpec && problem.title.contains("under 256 KiB"), "{problem:?}");
    let fits = w.draft(of_bytes(256 << 10));
    assert!(w.hand_in(&ada, fits).is_ok());
}

/// About the bytes that a job takes, as `finished_bytes` counts them.
fn weight(submit: &Submit) -> usize {
    let keys: usize = submit.keys.iter().map(|key| key.wrapped.0.len() + 100).sum();
    let spec = serde_json::to_vec(&submit.spec).unwrap().len();
    4_096 + spec + keys + submit.sealed.0.len() + 600 * submit.data.len() + submit.job.to_string().len()
}

#[test]
fn finished_jobs_are_kept_up_to_the_byte_and_the_latest_however_large_it_is() {
    let input = |n| DataInput { at: format!("/data/{n}"), snapshot: snapshot(1), bytes: 1 };
    let kept = |limit: &dyn Fn(usize) -> usize| {
        let mut config = Config::default();
        let mut w = World::new();
        let (ada, _) = w.join(Role::Operator, "ada");
        w.join(Role::Member, "bob");
        let large = |submit: &mut Submit| submit.data = (0..3).map(input).collect();
        config.finished_bytes = limit(weight(&w.draft(large)));
        w.broker.config = config;
        for _ in 0..4 {
            let job = w.submit(&ada, large);
            w.cancel(&ada, &job).unwrap();
        }
        assert!(w.broker.crowded.is_empty(), "nobody is looked at again");
        w.broker.jobs.len()
    };
    assert_eq!(kept(&|weight| 3 * weight), 3);
    assert_eq!(kept(&|weight| 3 * weight - 1), 2);
    assert_eq!(kept(&|_| 0), 1);
}

#[test]
fn a_cancelled_job_of_which_nobody_hears_is_lost_with_its_lease() {
    let (mut w, ada, job) = running();
    let (lab, attempt) = w.newest(&job);
    w.disconnect(&lab);
    w.cancel(&ada, &job).unwrap();
    let state = |w: &World| w.broker.attempt(&job, attempt.token.attempt).unwrap().clone();
    w.wait(Millis(49_999));
    assert!(!state(&w).state.is_ended());
    w.wait(Millis(1));
    let lost = state(&w);
    assert_eq!(lost.state, AttemptState::Ended { cause: EndCause::Lost });
    assert!(!lost.released, "the device may come back with it");
}

#[test]
fn a_renewal_of_one_device_says_nothing_of_another_s_attempts() {
    let (mut w, _, job) = running();
    let (lab, attempt) = w.newest(&job);
    let other = w.provider("lab-2", &[]);
    w.disconnect(&lab);
    w.wait(Millis(50_000));
    w.renew(&other, &[]);
    assert!(!w.broker.newest(&job).unwrap().state.is_ended());
    w.connect(&lab);
    w.renew(&lab, std::slice::from_ref(&attempt));
    assert_eq!(w.state(&job), JobState::Running);
}

#[test]
fn an_offer_of_an_earlier_session_places_nothing_and_a_session_that_is_said_twice_is_one() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let session = w.session(&lab);
    w.step(Event::Connected { device: lab.clone(), session });
    let job = w.submit(&ada, |_| {});
    assert_eq!(w.state(&job), JobState::Placed);
    w.cancel(&ada, &job).unwrap();
    let (_, attempt) = w.newest(&job);
    w.end(&lab, &attempt, EndCause::Cancelled, None);
    w.connect(&lab);
    let job = w.submit(&ada, |_| {});
    assert_eq!(w.why(&job), "lab-1, the only provider that fits, is offline");
    w.say(&lab, ToRelay::Offer { offer: offer("lab-1", &[8]) });
    assert_eq!(w.state(&job), JobState::Placed);
}

#[test]
fn of_an_offer_each_gpu_counts_once_and_256_at_most() {
    let mut w = World::new();
    w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let gpus = |w: &World| w.broker.presence[&lab].offer.as_ref().unwrap().gpus.len();
    w.say(&lab, ToRelay::Offer { offer: offer("lab-1", &[8; 300]) });
    assert_eq!(gpus(&w), 256);
    let mut twice = offer("lab-1", &[8, 8]);
    twice.gpus.extend_from_within(..);
    w.say(&lab, ToRelay::Offer { offer: twice });
    assert_eq!(gpus(&w), 2);
}

fn wrapped(device: &DeviceId, bytes: Vec<u8>) -> WrappedKey {
    WrappedKey { device: device.clone(), wrapped: Blob(bytes) }
}

#[test]
fn a_key_is_taken_once_from_who_may_give_it_for_who_may_use_it() {
    let (mut w, ada, job) = running();
    let (lab, attempt) = w.newest(&job);
    let others: Vec<DeviceId> = ["a", "b", "c", "d"].map(|name| w.join(Role::Member, name).1).into();
    let of = |w: &World, device: &DeviceId| {
        let key = w.broker.jobs[&job].keys.iter().find(|key| key.device == *device).cloned();
        key.map(|key| key.wrapped.0)
    };
    let gives = |w: &mut World, from: &DeviceId, key: WrappedKey| {
        w.say(from, ToRelay::Wrapped { job: job.clone(), key });
    };
    gives(&mut w, &lab, wrapped(&others[0], vec![1; 1_025]));
    assert_eq!(of(&w, &others[0]), None, "too long");
    gives(&mut w, &lab, wrapped(&others[0], vec![1; 1_024]));
    gives(&mut w, &lab, wrapped(&others[0], vec![2]));
    assert_eq!(of(&w, &others[0]), Some(vec![1; 1_024]), "the first stays");
    w.ask(|request| Event::RevokeDevice { request, by: By::Relay, device: others[1].clone() }).unwrap();
    gives(&mut w, &lab, wrapped(&others[1], vec![3]));
    assert_eq!(of(&w, &others[1]), None, "it was revoked");
    w.connect(&others[0]);
    gives(&mut w, &others[0], wrapped(&others[2], vec![4]));
    assert_eq!(of(&w, &others[2]), None, "it has a key and no attempt");
    w.end(&lab, &attempt, EndCause::Exited { code: 0 }, Some(1));
    gives(&mut w, &lab, wrapped(&others[2], vec![5]));
    assert_eq!(of(&w, &others[2]), None, "its attempt is over");
    // Of a job that is over only the member's own devices are given the key.
    let code = w.invite(Role::Member, Some(ada));
    let Ok(Reply::Joined { device: desk, .. }) = w.redeem(code, "desk") else { panic!("not joined") };
    let laptop = w.broker.jobs[&job].keys[0].device.clone();
    w.connect(&laptop);
    gives(&mut w, &laptop, wrapped(&others[3], vec![6]));
    gives(&mut w, &laptop, wrapped(&desk, vec![7]));
    assert_eq!((of(&w, &others[3]), of(&w, &desk)), (None, Some(vec![7])));
}

#[test]
fn a_later_device_is_told_to_none_but_its_member_s_own() {
    let mut w = World::new();
    let (ada, laptop) = w.join(Role::Operator, "ada");
    let job = w.submit(&ada, |_| {});
    w.connect(&laptop);
    let (_, bobs) = w.join(Role::Member, "bob");
    assert!(!format!("{:?}", w.connect(&bobs)).contains("WrapFor"), "it is another member's");
    let join = |w: &mut World, name| {
        let code = w.invite(Role::Member, Some(ada.clone()));
        let Ok(Reply::Joined { device, .. }) = w.redeem(code, name) else { panic!("not joined") };
        device
    };
    let (lost, desk) = (join(&mut w, "lost"), join(&mut w, "desk"));
    w.ask(|request| Event::RevokeDevice { request, by: By::Relay, device: lost }).unwrap();
    let effects = w.connect(&desk);
    let asked: Vec<_> = sent(&effects, &laptop).into_iter().cloned().collect();
    assert_eq!(asked, [ToAgent::WrapFor { job, device: desk, public_key: Blob(vec![7; 32]) }]);
}

#[test]
fn what_was_computed_after_a_reclaim_counts_nowhere_and_a_checkpoint_s_stop_is_no_end() {
    let (mut w, ada, job) = running();
    let (lab, attempt) = w.newest(&job);
    for why in [StopWhy::Checkpoint, StopWhy::LeaseOver, StopWhy::Reclaim, StopWhy::Checkpoint] {
        w.wait(Millis(5_000));
        says(&mut w, &job, AttemptState::Stopped { why }, None);
    }
    w.wait(Millis(5_000));
    w.end(&lab, &attempt, EndCause::Reclaimed, None);
    w.run(&job);
    let moved = w.broker.job_view(&job, &ada).unwrap().attempts[1].moved.clone().unwrap();
    assert_eq!((moved.idle, moved.lost), (Millis(10_000), Millis(15_000)));
}

#[test]
fn rows_without_their_job_are_not_acted_upon() {
    let (w, _, job) = running();
    let rows: Vec<Record> = w.disk.values().map(|row| serde_json::from_str(row).unwrap()).collect();
    let orphans = rows.into_iter().filter(|row| !matches!(row, Record::Job(_)));
    let (broker, _) = Broker::load(Config::default(), orphans, w.broker.epoch(), w.now);
    broker.check_invariants().unwrap();
    assert!(broker.courses.is_empty() && broker.attempts.is_empty());
    assert_eq!(broker.job_state(&job), None);
}
