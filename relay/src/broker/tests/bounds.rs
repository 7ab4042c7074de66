//! Limits, each at its edge: what just fits is taken, and one more is refused.

use gpunion_protocol::http::{Role, Submit};
use gpunion_protocol::ids::DeviceId;
use gpunion_protocol::job::{Blob, DataInput, EndCause, Image, WrappedKey};
use gpunion_protocol::problem::Code;
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_protocol::time::Millis;

use super::{World, sent, snapshot};
use crate::broker::{Broker, Config, Digest, Effect, Event, SessionId};

fn registry(reference: String) -> Image {
    Image::Registry { reference, digest: None }
}

/// Refused with this code when it is one larger, and taken as it is.
fn edge(code: Code, what: &str, fits: impl Fn(&mut Submit), over: impl Fn(&mut Submit)) {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let submit = w.draft(|submit| over(submit));
    assert_eq!(w.hand_in(&ada, submit).map_err(|problem| problem.code), Err(code), "{what}");
    let submit = w.draft(|submit| fits(submit));
    w.hand_in(&ada, submit).unwrap_or_else(|problem| panic!("{what}: {problem}"));
}

#[test]
fn what_a_submit_may_hold_is_bounded() {
    let sealed = |n| move |s: &mut Submit| s.sealed = Blob(vec![7; n]);
    edge(Code::BadRequest, "sealed", sealed(256 << 10), sealed((256 << 10) + 1));
    let image = |n: usize| move |s: &mut Submit| s.image = registry("x".repeat(n));
    edge(Code::BadRequest, "image", image(512), image(513));
    let wrapped = |n| move |s: &mut Submit| s.keys[0].wrapped = Blob(vec![7; n]);
    edge(Code::BadRequest, "a key", wrapped(1 << 10), wrapped((1 << 10) + 1));
    let keys = |n: u64| {
        move |s: &mut Submit| {
            let more = n - s.keys.len() as u64;
            s.keys.extend(
                (0..more).map(|n| WrappedKey { device: DeviceId::new(n, [9; 10]), wrapped: Blob(vec![1]) }),
            );
        }
    };
    edge(Code::BadRequest, "keys", keys(1000), keys(1001));
    let data = |n: usize| {
        move |s: &mut Submit| {
            let input = |n| DataInput { at: format!("/data/{n}"), snapshot: snapshot(1), bytes: 1 };
            s.data = (0..n).map(input).collect();
        }
    };
    edge(Code::BadRequest, "data", data(64), data(65));
}

#[test]
fn an_idempotency_key_has_one_to_two_hundred_characters() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    for (length, good) in [(0, false), (1, true), (200, true), (201, false)] {
        let submit = w.draft(|_| {});
        let (member, key, body) = (ada.clone(), "k".repeat(length), Digest::of(&[length as u8]));
        let answer = w.ask(|request| Event::Submit { request, member, key, body, submit: Box::new(submit) });
        assert_eq!(answer.is_ok(), good, "{length}");
    }
}

#[test]
fn finished_jobs_are_kept_by_their_weight_too() {
    let config = Config { finished_bytes: 10 << 10, ..Config::default() };
    let mut w = World { broker: Broker::new(config), ..World::new() };
    let (ada, _) = w.join(Role::Operator, "ada");
    for _ in 0..5 {
        let job = w.submit(&ada, |_| {});
        w.cancel(&ada, &job).unwrap();
    }
    assert_eq!(w.broker.jobs.len(), 2, "each weighs more than 4 KiB");
}

#[test]
fn an_agent_of_one_version_before_is_welcome_and_older_ones_are_told_to_update() {
    let mut w = World::new();
    let (_, lab) = w.join(Role::Operator, "lab-1");
    let session = SessionId(77);
    for (wire, good) in [(gpunion_protocol::WIRE_VERSION, true), (gpunion_protocol::WIRE_VERSION - 1, true)] {
        w.step(Event::Connected { device: lab.clone(), session });
        let hello = ToRelay::Hello { wire, agent: "old".to_owned() };
        let effects = w.step(Event::From { device: lab.clone(), session, message: hello });
        let welcome = sent(&effects, &lab).iter().any(|m| matches!(m, ToAgent::Welcome { .. }));
        let shut = effects.iter().any(|e| matches!(e, Effect::Disconnect { .. }));
        assert_eq!((welcome, shut), (good, !good), "version {wire}");
        w.step(Event::Disconnected { device: lab.clone(), session });
    }
}

#[test]
fn a_relay_that_has_just_started_waits_only_for_who_is_missing() {
    let mut w = World::new();
    let (ada, laptop) = w.join(Role::Operator, "ada");
    let (_, lab) = w.join(Role::Member, "lab-1");
    let job = w.submit(&ada, |_| {});
    w.restart();
    w.connect(&laptop);
    assert!(w.why(&job).contains("has just started"), "lab-1 may come back: {}", w.why(&job));
    w.connect(&lab);
    assert_eq!(w.why(&job), "Nobody lends anything now");
}

#[test]
fn strikes_wait_longer_each_time() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    for wait in [10_u64, 20, 40] {
        let (lab, attempt) = w.run(&job);
        w.end(&lab, &attempt, EndCause::CouldNotStart { reason: "no space".to_owned() }, None);
        w.wait(Millis(wait * 1_000 - 1));
        assert_eq!(w.newest(&job).1, attempt, "not before {wait} s");
        w.wait(Millis(1));
        assert_ne!(w.newest(&job).1, attempt, "after {wait} s");
    }
}

#[test]
fn words_of_a_device_are_cut_to_a_length_that_people_read() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    let (lab, attempt) = w.run(&job);
    for (said, kept) in [(300, 300), (301, 300), (5, 5)] {
        let state = gpunion_protocol::job::AttemptState::Running;
        let note = Some("ä".repeat(said));
        w.say(&lab, ToRelay::State { attempt: attempt.clone(), state, note });
        let view = w.broker.job_view(&job, &ada).unwrap();
        let shown = view.attempts[0].note.as_ref().unwrap().chars().count();
        assert_eq!(shown, kept, "{said}");
    }
}

#[test]
fn what_is_not_taken_is_refused_with_its_reason() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8]);
    w.provider("lab-2", &[8]);
    let job = w.submit(&ada, |_| {});
    let (first, attempt) = w.run(&job);
    w.end(&first, &attempt, EndCause::Left, None);
    let reason = |effects: &[Effect], device: &DeviceId| {
        let all: Vec<String> = sent(effects, device)
            .into_iter()
            .filter_map(|message| match message {
                ToAgent::PublishRefused { reason, .. } => Some(reason.clone()),
                _ => None,
            })
            .collect();
        all.first().cloned().unwrap_or_default()
    };
    let effects = w.publish(&first, &attempt, 1);
    assert_eq!(reason(&effects, &first), "A newer attempt of the job counts");
    w.cancel(&ada, &job).unwrap();
    let effects = w.publish(&first, &attempt, 1);
    assert_eq!(reason(&effects, &first), "The job is final");
    let mut unknown = attempt.clone();
    unknown.job = gpunion_protocol::ids::JobId::new(99, [9; 10]);
    let effects = w.publish(&first, &unknown, 1);
    assert_eq!(reason(&effects, &first), "This relay does not know the job");
}

#[test]
fn who_may_see_it_is_told_of_each_change() {
    use crate::broker::Audience;
    use gpunion_protocol::http::Event as Told;
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8]);
    let submit = w.draft(|_| {});
    let (job, key) = (submit.job.clone(), submit.job.to_string());
    let (member, body, request) = (ada.clone(), Digest::of(b"x"), crate::broker::RequestId(7));
    let effects = w.step(Event::Submit { request, member, key, body, submit: Box::new(submit) });
    let of_job = effects.iter().any(|effect| match effect {
        Effect::Announce { event: Told::Job { job: told, .. }, audience: Audience::Member(to) } => {
            *told == job && *to == ada
        }
        _ => false,
    });
    assert!(of_job, "{effects:?}");
    let (_, lab) = w.join(Role::Member, "lab-2");
    let effects = w.connect(&lab);
    let of_group = |effect: &Effect| {
        matches!(effect, Effect::Announce { event: Told::Group, audience: Audience::Everybody })
    };
    assert!(effects.iter().any(of_group), "{effects:?}");
}
