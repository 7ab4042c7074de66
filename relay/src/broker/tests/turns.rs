//! Who is tried, who not, and what is held against a provider: each rule where another one would
//! choose otherwise.

use gpunion_protocol::http::{Role, Submit};
use gpunion_protocol::ids::{DeviceId, JobId};
use gpunion_protocol::job::{Checkpoint, EndCause, JobState, Quality, WrappedKey};
use gpunion_protocol::offer::Offer;
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_protocol::time::Millis;
use gpunion_protocol::units::{Bytes, Span};

use super::{Effect, GIB, World, assigned, checkpoint, offer, sent, snapshot};
use crate::broker::{By, Event};

fn name(w: &World, job: &JobId) -> String {
    w.broker.device_name(&w.newest(job).0).unwrap().to_owned()
}

fn failed() -> EndCause {
    EndCause::Broken { reason: "the engine went".to_owned() }
}

fn end(w: &mut World, job: &JobId, cause: EndCause) {
    let (device, attempt) = w.run(job);
    w.end(&device, &attempt, cause, None);
}

#[test]
fn a_start_that_failed_is_held_against_a_provider_and_a_guest_that_left_is_not() {
    let not_started = EndCause::CouldNotStart { reason: "no space".to_owned() };
    for (cause, third) in [
        (EndCause::Left, "lab-1"),
        (EndCause::Reclaimed, "lab-1"),
        (EndCause::Stale, "lab-1"),
        (not_started, "lab-3"),
        (failed(), "lab-3"),
    ] {
        let mut w = World::new();
        let (ada, _) = w.join(Role::Operator, "ada");
        w.provider("lab-1", &[8]);
        w.provider("lab-2", &[24]);
        w.provider("lab-3", &[80]);
        let job = w.submit(&ada, |_| {});
        let mut went = vec![name(&w, &job)];
        for _ in 0..2 {
            // Not so close together that somebody waits for who goes along.
            w.wait(Millis(6_000));
            end(&mut w, &job, cause.clone());
            went.push(name(&w, &job));
        }
        assert_eq!(went, ["lab-1", "lab-2", third], "{cause:?}");
    }
}

#[test]
fn what_failed_before_the_last_checkpoint_is_forgotten_and_what_failed_since_is_not() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8]);
    w.provider("lab-2", &[24]);
    let job = w.submit(&ada, |_| {});
    let (lab, attempt) = w.run(&job);
    w.publish(&lab, &attempt, 1);
    end(&mut w, &job, failed());
    assert_eq!(name(&w, &job), "lab-2", "it was just there");
    end(&mut w, &job, EndCause::Left);
    assert_eq!(name(&w, &job), "lab-1", "it got further there, and then something broke");

    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    let (lab, attempt) = w.run(&job);
    w.publish(&lab, &attempt, 1);
    end(&mut w, &job, EndCause::Left);
    end(&mut w, &job, failed());
    assert_eq!(w.why(&job), "It could not start on lab-1; it is tried there again in a moment");
}

#[test]
fn a_provider_that_fails_after_a_checkpoint_is_no_strike_against_the_job() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    for n in 1..=6 {
        let (lab, attempt) = w.run(&job);
        w.publish(&lab, &attempt, n);
        w.end(&lab, &attempt, failed(), None);
        assert_eq!(w.state(&job), JobState::Moving, "after {n}");
    }
}

#[test]
fn where_it_can_not_go_on_from_it_goes_on_from_the_one_before_and_is_held_after_that() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    let (lab, attempt) = w.run(&job);
    w.publish(&lab, &attempt, 1);
    w.publish(&lab, &attempt, 2);
    w.end(&lab, &attempt, EndCause::Left, None);
    for (from, next) in [(2, JobState::Moving), (1, JobState::Moving)] {
        for n in 1..=4 {
            w.until_placed(&job);
            assert_eq!(w.broker.newest(&job).unwrap().from, Some(snapshot(from)), "{n}");
            assert_eq!(w.state(&job), next);
            let (lab, attempt) = w.newest(&job);
            w.end(&lab, &attempt, failed(), None);
        }
    }
    assert_eq!(w.state(&job).word(), "held");
}

#[test]
fn a_program_that_fails_after_a_checkpoint_of_its_own_has_failed() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    let (lab, attempt) = w.run(&job);
    w.publish(&lab, &attempt, 1);
    w.end(&lab, &attempt, EndCause::Left, None);
    let (lab, attempt) = w.run(&job);
    w.publish(&lab, &attempt, 2);
    let cause = EndCause::Exited { code: 1 };
    w.end(&lab, &attempt, cause.clone(), Some(3));
    assert_eq!(w.state(&job), JobState::Failed { cause });
    assert_eq!(w.broker.job_view(&job, &ada).unwrap().result, Some(snapshot(3)), "what it left is kept");
}

#[test]
fn what_a_program_said_that_it_saved_is_kept_and_gone_back_to() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    let (lab, attempt) = w.run(&job);
    w.publish(&lab, &attempt, 1);
    for n in 2..=9 {
        let checkpoint = Checkpoint { quality: Quality::Running, ..checkpoint(&attempt, n) };
        w.say(&lab, ToRelay::Publish { attempt: attempt.clone(), checkpoint, age: Millis(0) });
    }
    let chain = |w: &World| -> Vec<_> {
        w.broker.job_view(&job, &ada).unwrap().checkpoints.iter().map(|c| c.snapshot).collect()
    };
    assert_eq!(chain(&w), [snapshot(1), snapshot(9)]);
    w.end(&lab, &attempt, EndCause::Left, None);
    assert_eq!(w.broker.newest(&job).unwrap().from, Some(snapshot(9)), "it goes on from the newest");
    end(&mut w, &job, EndCause::Exited { code: 1 });
    let (lab, attempt) = w.run(&job);
    assert_eq!(w.broker.newest(&job).unwrap().from, Some(snapshot(1)), "or from what was surely whole");
    w.publish(&lab, &attempt, 10);
    assert_eq!(chain(&w), [snapshot(1), snapshot(10)], "the one that it could not read is gone");
}

#[test]
fn a_checkpoint_that_was_overtaken_on_its_way_does_not_take_the_job_back() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    let (lab, attempt) = w.run(&job);
    for (n, number) in [(1, 1), (3, 3), (2, 2)] {
        let checkpoint = Checkpoint { number, ..checkpoint(&attempt, n) };
        let told = w.say(&lab, ToRelay::Publish { attempt: attempt.clone(), checkpoint, age: Millis(0) });
        let answered =
            |m: &&ToAgent| matches!(m, ToAgent::Published { snapshot: s, .. } if *s == snapshot(n));
        assert!(sent(&told, &lab).iter().any(answered), "nobody says it again");
    }
    let view = w.broker.job_view(&job, &ada).unwrap();
    let chain: Vec<_> = view.checkpoints.iter().map(|c| c.snapshot).collect();
    assert_eq!(chain, [snapshot(1), snapshot(3)]);
}

fn offered(w: &mut World, device: &DeviceId, offer: Offer) {
    let event =
        Event::From { device: device.clone(), session: w.session(device), message: ToRelay::Offer { offer } };
    w.broker.hear(event, w.now);
}

fn asks_for(effects: &[Effect], holder: &DeviceId) -> Vec<(JobId, DeviceId)> {
    let asked = |message: &ToAgent| match message {
        ToAgent::WrapFor { job, device, .. } => Some((job.clone(), device.clone())),
        _ => None,
    };
    sent(effects, holder).into_iter().filter_map(asked).collect()
}

/// The laptop has the job's key, and so has this provider alone.
fn key_of_one(w: &mut World, laptop: &DeviceId, one: &DeviceId) -> Submit {
    let holders = [laptop.clone(), one.clone()];
    w.draft(|submit| submit.keys.retain(|key: &WrappedKey| holders.contains(&key.device)))
}

#[test]
fn a_key_is_asked_for_when_nobody_else_will_do() {
    let mut w = World::new();
    let (ada, laptop) = w.join(Role::Operator, "ada");
    let [(_, one), (_, two)] = ["lab-1", "lab-2"].map(|name| w.join(Role::Member, name));
    for device in [&laptop, &one, &two] {
        w.connect(device);
    }
    let submit = key_of_one(&mut w, &laptop, &one);
    let job = submit.job.clone();
    w.hand_in(&ada, submit).unwrap();
    // Both come in the same step, and the one without a key would be the tighter fit.
    offered(&mut w, &one, offer("lab-1", &[80]));
    offered(&mut w, &two, offer("lab-2", &[8]));
    let effects = w.step(Event::Timeout);
    assert_eq!((w.newest(&job).0, asks_for(&effects, &laptop)), (one.clone(), vec![]));
    end(&mut w, &job, failed());
    assert!(w.why(&job).starts_with("lab-2 is free, but has no key of this job yet"), "{}", w.why(&job));
    let effects = w.wait(Millis(10_000));
    assert_eq!(w.newest(&job).0, one, "it is tried there again");
    assert_eq!(asks_for(&effects, &laptop), [(job, two)], "and a better one is still wanted");
}

#[test]
fn the_end_of_one_job_does_not_ask_again_for_the_key_of_another() {
    let mut w = World::new();
    let (ada, laptop) = w.join(Role::Operator, "ada");
    w.connect(&laptop);
    let (one, two) = (w.submit(&ada, |_| {}), w.submit(&ada, |_| {}));
    let (_, lab) = w.join(Role::Member, "lab-1");
    w.connect(&lab);
    let effects = w.say(&lab, ToRelay::Offer { offer: offer("lab-1", &[8, 8]) });
    let both = [(one.clone(), lab.clone()), (two.clone(), lab.clone())];
    assert_eq!(asks_for(&effects, &laptop), both);
    w.wait(Millis(9_999));
    let request = crate::broker::RequestId(80_001);
    let effects = w.step(Event::Cancel { request, by: ada, job: one });
    assert_eq!(asks_for(&effects, &laptop), []);
    assert_eq!(asks_for(&w.wait(Millis(1)), &laptop), [(two, lab)]);
}

#[test]
fn jobs_for_other_machines_are_not_before_it() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("wide", &[8]);
    let (_, large) = w.join(Role::Member, "large");
    w.connect(&large);
    w.say(&large, ToRelay::Offer { offer: Offer { cpus: 2, ..offer("large", &[80]) } });
    let needs = |gib, cpus| {
        move |s: &mut Submit| {
            s.spec.resources.gpu_memory = Bytes(gib * GIB);
            s.spec.resources.cpus = cpus;
        }
    };
    let jobs: Vec<JobId> =
        [(80, 1), (8, 8), (80, 1), (8, 8), (8, 8)].map(|(gib, cpus)| w.submit(&ada, needs(gib, cpus))).into();
    assert_eq!([name(&w, &jobs[0]), name(&w, &jobs[1])], ["large", "wide"]);
    assert_eq!(w.why(&jobs[2]), "The only GPU with 80 GiB is lent; you are next");
    assert_eq!(w.why(&jobs[3]), "The only GPU with 8 GiB is lent; you are next");
    assert_eq!(w.why(&jobs[4]), "The only GPU with 8 GiB is lent; 1 job is before yours");
}

#[test]
fn a_relay_that_has_just_started_waits_for_nobody_who_was_revoked() {
    let mut w = World::new();
    let (ada, laptop) = w.join(Role::Operator, "ada");
    let (_, lab) = w.join(Role::Member, "lab-1");
    let job = w.submit(&ada, |_| {});
    w.restart();
    w.connect(&laptop);
    assert!(w.why(&job).contains("has just started"));
    w.ask(|request| Event::RevokeDevice { request, by: By::Relay, device: lab }).unwrap();
    assert_eq!(w.why(&job), "Nobody lends anything now");
}

#[test]
fn an_offer_lasts_long_enough_for_a_checkpoint_and_a_leave_or_it_does_not() {
    let hour = Millis::from_secs(3_600);
    for (every, grace, lasts) in [
        (None, Millis(60_000), 360_000),
        (Some(Millis(100_000)), Millis(60_000), 160_000),
        (Some(Millis(24 * hour.0)), Millis(60_000), 660_000),
        (None, hour, 900_000),
    ] {
        for (left, placed) in [(lasts, true), (lasts - 1, false)] {
            let mut w = World::new();
            let (ada, _) = w.join(Role::Operator, "ada");
            let lab = w.provider("lab-1", &[8]);
            let short = Offer { time_left: Some(Millis(left)), ..offer("lab-1", &[8]) };
            w.say(&lab, ToRelay::Offer { offer: short });
            let job = w.submit(&ada, |s| {
                s.spec.checkpoint.every = every.map(Span);
                s.spec.checkpoint.grace = Span(grace);
            });
            assert_eq!(w.state(&job) == JobState::Placed, placed, "{left} of {lasts}");
        }
    }
}

#[test]
fn what_is_lent_may_be_used_up_to_the_last_byte() {
    type Asks = fn(&mut Submit, u64);
    let memory: Asks = |s, gib| s.spec.resources.memory = Bytes(gib * GIB);
    let disk: Asks = |s, gib| s.spec.resources.disk = Bytes(gib * GIB);
    for (asks, first, fits) in [(memory, 40, 24), (disk, 300, 200)] {
        for (second, placed) in [(fits, true), (fits + 1, false)] {
            let mut w = World::new();
            let (ada, _) = w.join(Role::Operator, "ada");
            w.provider("lab-1", &[8, 8]);
            w.submit(&ada, |s| asks(s, first));
            let job = w.submit(&ada, |s| asks(s, second));
            assert_eq!(w.state(&job) == JobState::Placed, placed, "{second} beside {first}");
        }
    }
}

#[test]
fn an_assignment_says_what_the_attempt_is() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let (_, lab) = w.join(Role::Member, "lab-1");
    let job = w.submit(&ada, |s| s.keys[1].wrapped.0 = vec![42]);
    w.connect(&lab);
    let effects = w.say(&lab, ToRelay::Offer { offer: offer("lab-1", &[8]) });
    let first = assigned(&effects, &lab)[0].clone();
    assert_eq!((first.resumed, first.previous, first.from), (false, None, None));
    assert_eq!((first.key.0, first.member_name.as_str()), (vec![42], "ada"), "its own key");
    let (_, attempt) = w.run(&job);
    let effects = w.end(&lab, &attempt, EndCause::Left, None);
    let second = assigned(&effects, &lab)[0];
    assert_eq!((second.resumed, second.previous), (true, Some(attempt.token.attempt)));
    assert_eq!(second.input, Some(snapshot(0)));
    let told = ["Attempt 1 goes to lab-1", "Attempt 2 goes to lab-1, starting from its input"];
    assert!(told.iter().all(|text| w.notes.contains(&(*text).to_owned())), "{:?}", w.notes);
    let (_, attempt) = w.run(&job);
    w.publish(&lab, &attempt, 1);
    w.end(&lab, &attempt, EndCause::Left, None);
    let told = "Attempt 3 goes to lab-1, going on from its checkpoint".to_owned();
    assert!(w.notes.contains(&told), "{:?}", w.notes);
}
