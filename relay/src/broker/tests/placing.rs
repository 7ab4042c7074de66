//! Where jobs go, and what is said about those that wait.

use gpunion_protocol::http::{Role, Submit};
use gpunion_protocol::ids::GpuUuid;
use gpunion_protocol::job::{EndCause, JobState};
use gpunion_protocol::offer::Offer;
use gpunion_protocol::session::ToRelay;
use gpunion_protocol::time::Millis;
use gpunion_protocol::units::{Bytes, Span};

use super::{GIB, World, offer};

fn gpus_of(w: &World, job: &gpunion_protocol::ids::JobId) -> Vec<GpuUuid> {
    w.broker.newest(job).unwrap().gpus.clone()
}

#[test]
fn the_smallest_gpus_that_suffice_are_taken() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("big", &[80, 80]);
    w.provider("mixed", &[24, 8, 24]);
    let small = w.submit(&ada, |s| s.spec.resources.gpu_memory = Bytes(8 * GIB));
    assert_eq!(gpus_of(&w, &small), [GpuUuid("GPU-mixed-1".to_owned())]);
    let two = w.submit(&ada, |s| {
        s.spec.resources.gpus = 2;
        s.spec.resources.gpu_memory = Bytes(10 * GIB);
    });
    assert_eq!(gpus_of(&w, &two), ["GPU-mixed-0", "GPU-mixed-2"].map(|u| GpuUuid(u.to_owned())));
    let large = w.submit(&ada, |s| s.spec.resources.gpu_memory = Bytes(40 * GIB));
    assert_eq!(w.broker.device_name(&w.newest(&large).0), Some("big"));
}

#[test]
fn f12_one_bad_gpu_excludes_only_itself() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8, 8]);
    let mut changed = offer("lab-1", &[8, 8]);
    changed.gpus[0].free_for_guests = false;
    w.say(&lab, ToRelay::Offer { offer: changed });
    let job = w.submit(&ada, |_| {});
    assert_eq!(gpus_of(&w, &job), [GpuUuid("GPU-lab-1-1".to_owned())]);
}

#[test]
fn caps_count_over_all_guests_of_a_provider() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8, 8]);
    w.submit(&ada, |s| s.spec.resources.cpus = 12);
    let second = w.submit(&ada, |s| s.spec.resources.cpus = 8);
    assert_eq!(
        w.why(&second),
        "lab-1 has a free GPU, but not enough CPUs left beside other jobs; you are next"
    );
    let third = w.submit(&ada, |s| s.spec.resources.cpus = 4);
    assert_eq!(w.state(&third), JobState::Placed);
}

#[test]
fn members_take_turns_by_recent_use_then_age() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let (bob, _) = w.join(Role::Member, "bob");
    let lab = w.provider("lab-1", &[8]);
    let used = w.submit(&ada, |_| {});
    let (_, attempt) = w.run(&used);
    for _ in 0..60 {
        w.wait(Millis::from_secs(10));
        w.renew(&lab, std::slice::from_ref(&attempt));
    }
    let adas = w.submit(&ada, |_| {});
    let first = w.submit(&bob, |_| {});
    let second = w.submit(&bob, |_| {});
    assert_eq!(w.why(&first), "The only GPU with 1 GiB is lent; you are next");
    assert_eq!(w.why(&second), "The only GPU with 1 GiB is lent; 1 job is before yours");
    w.end(&lab, &attempt, EndCause::Exited { code: 0 }, Some(1));
    assert_eq!(w.state(&first), JobState::Placed, "bob used less, though ada's is older");
    assert!(matches!(w.state(&adas), JobState::Queued { .. }));
    assert!(matches!(w.state(&second), JobState::Queued { .. }));
}

#[test]
fn who_submits_many_at_once_does_not_get_all() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let (bob, _) = w.join(Role::Member, "bob");
    let (_, device) = w.join(Role::Member, "lab-1");
    let adas: Vec<_> = (0..4).map(|_| w.submit(&ada, |_| {})).collect();
    let bobs: Vec<_> = (0..4).map(|_| w.submit(&bob, |_| {})).collect();
    w.connect(&device);
    w.say(&device, ToRelay::Offer { offer: offer("lab-1", &[8, 8, 8, 8]) });
    let placed = |jobs: &[_]| jobs.iter().filter(|j| w.state(j) == JobState::Placed).count();
    assert_eq!((placed(&adas), placed(&bobs)), (2, 2));
}

#[test]
fn a_closed_offer_takes_no_new_jobs_and_lets_the_present_one_finish() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8, 8]);
    let first = w.submit(&ada, |_| {});
    let (_, attempt) = w.run(&first);
    let mut closed = offer("lab-1", &[8, 8]);
    closed.open = false;
    closed.why = Some("the owner switched lending off".to_owned());
    w.say(&lab, ToRelay::Offer { offer: closed });
    let second = w.submit(&ada, |_| {});
    assert_eq!(
        w.why(&second),
        "lab-1, the only provider that fits, does not lend now (the owner switched lending off)"
    );
    assert_eq!(w.state(&first), JobState::Running);
    w.end(&lab, &attempt, EndCause::Exited { code: 0 }, Some(1));
    assert_eq!(w.state(&first), JobState::Succeeded);
}

#[test]
fn where_a_start_just_failed_it_is_not_tried_again_at_once() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab1 = w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    let (_, attempt) = w.newest(&job);
    let cause = EndCause::CouldNotStart { reason: "no space".to_owned() };
    w.end(&lab1, &attempt, cause.clone(), None);
    assert_eq!(w.why(&job), "It could not start on lab-1; it is tried there again in a moment");
    w.wait(Millis::from_secs(10));
    let (device, attempt) = w.newest(&job);
    assert_eq!(device, lab1, "nobody else fits");
    let lab2 = w.provider("lab-2", &[8]);
    let other = w.submit(&ada, |_| {});
    assert_eq!(w.newest(&other).0, lab2);
    let elsewhere = w.submit(&ada, |_| {});
    w.end(&lab1, &attempt, cause, None);
    assert_eq!(w.newest(&elsewhere).0, lab1, "its failure is this job's alone");
}

#[test]
fn a_reclaimed_job_goes_to_another_provider_if_one_fits() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab1 = w.provider("lab-1", &[8]);
    let lab2 = w.provider("lab-2", &[24]);
    let job = w.submit(&ada, |_| {});
    let (first, attempt) = w.run(&job);
    assert_eq!(first, lab1);
    w.end(&lab1, &attempt, EndCause::Reclaimed, None);
    assert_eq!(w.newest(&job).0, lab2, "though lab-1 would be the tighter fit");
}

#[test]
fn why_names_what_is_missing() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let job = w.submit(&ada, |_| {});
    assert_eq!(w.why(&job), "Nobody lends anything now");
    w.restart();
    assert_eq!(w.why(&job), "The relay has just started; it waits for providers to come back");
    w.wait(Millis::from_secs(50));
    assert_eq!(w.why(&job), "Nobody lends anything now");
    w.cancel(&ada, &job).unwrap();
    w.provider("lab-1", &[24, 24, 24]);
    let wants = |w: &mut World, change: &dyn Fn(&mut gpunion_protocol::spec::JobSpec)| {
        let job = w.submit(&ada, |s| change(&mut s.spec));
        let why = w.why(&job);
        w.cancel(&ada, &job).unwrap();
        why
    };
    assert_eq!(
        wants(&mut w, &|s| s.resources.gpu_memory = Bytes(80 * GIB)),
        "No provider has a GPU with 80 GiB"
    );
    assert_eq!(
        wants(&mut w, &|s| s.resources.gpus = 4),
        "No provider has 4 GPUs with 1 GiB in one machine; the most is 3"
    );
    assert_eq!(
        wants(&mut w, &|s| s.resources.cpus = 64),
        "No provider lends 64 CPUs and such a GPU with 1 GiB; the most is 16"
    );
    assert_eq!(
        wants(&mut w, &|s| {
            s.resources.gpus = 0;
            s.resources.memory = Bytes(100 * GIB);
        }),
        "No provider lends 100 GiB of memory; the most is 64 GiB"
    );
    for _ in 0..3 {
        w.submit(&ada, |_| {});
    }
    assert_eq!(
        wants(&mut w, &|s| s.resources.gpu_memory = Bytes(24 * GIB)),
        "All 3 GPUs with 24 GiB are lent; you are next"
    );
}

#[test]
fn f82_the_machine_that_is_offline_is_named() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let big = w.provider("lab-7", &[80]);
    w.provider("lab-1", &[8]);
    w.disconnect(&big);
    let job = w.submit(&ada, |s| s.spec.resources.gpu_memory = Bytes(80 * GIB));
    assert_eq!(w.why(&job), "lab-7, the only provider that fits, is offline");
}

#[test]
fn an_offer_that_ends_too_soon_takes_no_job() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let mut short = offer("lab-1", &[8]);
    short.time_left = Some(Millis::from_secs(420));
    w.say(&lab, ToRelay::Offer { offer: short });
    w.wait(Millis::from_secs(120));
    let job = w.submit(&ada, |_| {});
    assert_eq!(w.why(&job), "lab-1 lends for only 5 min more, too short for this job to save anything");
    let quick = w.submit(&ada, |s| {
        s.spec.checkpoint.every = Some(Span(Millis::from_secs(60)));
    });
    assert_eq!(w.state(&quick), JobState::Placed);
}

#[test]
fn f95_a_job_is_placed_when_the_time_left_just_suffices_to_save_and_not_a_moment_later() {
    // (every, grace, the owner's grace, the least time left), all in seconds.
    let day = 24 * 3600;
    for (every, grace, owner, least) in [
        (300, 60, None, 360),
        (300, 60, Some(60), 360),
        (300, 600, Some(60), 360),
        (300, 600, Some(0), 300),
        (300, 60, Some(600), 360),
        (300, 7200, Some(7200), 7500),
        (1, 0, None, 1),
        // It saves once a day, if ever: its last checkpoint is taken when it must leave.
        (day, 60, None, 660),
        (day, day, None, 1200),
        (day, day, Some(5), 605),
    ] {
        for (short, fits) in [(0, true), (1, false)] {
            let mut w = World::new();
            let (ada, _) = w.join(Role::Operator, "ada");
            let lab = w.provider("lab-1", &[8]);
            let left = Millis(least * 1000 + 5000 - short);
            let grace_of_owner = owner.map(Millis::from_secs);
            let offer = Offer { time_left: Some(left), grace: grace_of_owner, ..offer("lab-1", &[8]) };
            w.say(&lab, ToRelay::Offer { offer });
            w.wait(Millis::from_secs(5));
            let job = w.submit(&ada, |s| {
                s.spec.checkpoint.every = Some(Span(Millis::from_secs(every)));
                s.spec.checkpoint.grace = Span(Millis::from_secs(grace));
            });
            let state = w.state(&job);
            assert_eq!(state == JobState::Placed, fits, "{every} {grace} {owner:?}: {state:?}");
            assert!(fits || w.why(&job).ends_with("too short for this job to save anything"), "{state:?}");
        }
    }
}

#[test]
fn the_why_of_a_job_changes_with_the_world() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let first = w.submit(&ada, |_| {});
    let second = w.submit(&ada, |_| {});
    let third = w.submit(&ada, |_| {});
    assert_eq!(w.why(&third), "The only GPU with 1 GiB is lent; 1 job is before yours");
    w.cancel(&ada, &second).unwrap();
    assert_eq!(w.why(&third), "The only GPU with 1 GiB is lent; you are next");
    let (_, attempt) = w.run(&first);
    w.end(&lab, &attempt, EndCause::Exited { code: 0 }, Some(1));
    assert_eq!(w.state(&third), JobState::Placed);
}

#[test]
fn a_long_queue_is_placed_up_to_the_caps() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let (bob, _) = w.join(Role::Member, "bob");
    let (_, device) = w.join(Role::Member, "lab-1");
    let drafts: Vec<_> = (0..400).map(|_| w.draft(|_| {})).collect();
    for (n, draft) in drafts.into_iter().enumerate() {
        let member = if n % 2 == 0 { &ada } else { &bob };
        let key = draft.job.to_string();
        let event = crate::broker::Event::Submit {
            request: crate::broker::RequestId(0),
            member: member.clone(),
            body: crate::broker::Digest::of(key.as_bytes()),
            key,
            submit: Box::new(draft),
        };
        w.broker.handle(event, w.now);
    }
    w.connect(&device);
    w.say(&device, ToRelay::Offer { offer: offer("lab-1", &[8; 100]) });
    let placed = w.broker.jobs.keys().filter(|job| w.state(job) == JobState::Placed).count();
    assert_eq!(placed, 16, "as many as there are CPUs");
}

#[test]
fn a_job_with_egress_goes_where_the_owner_allows_all_of_it_and_the_why_names_what_is_missing() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let other = w.provider("lab-2", &[8]);
    let third = w.provider("lab-3", &[8]);
    let asks = |s: &mut Submit| {
        s.spec.network.egress = vec!["github.com".to_owned(), "*.pypi.org".to_owned()];
    };
    let job = w.submit(&ada, asks);
    assert_eq!(
        w.why(&job),
        "No provider that fits lets jobs reach the network; this job asks for github.com"
    );
    let allow = |w: &mut World, lab: &_, name: &str, egress: &str| {
        let offer = Offer { egress: egress.parse().unwrap(), ..offer(name, &[8]) };
        w.say(lab, ToRelay::Offer { offer });
    };
    allow(&mut w, &lab, "lab-1", "github.com");
    assert_eq!(w.why(&job), "No provider that fits lets jobs reach *.pypi.org");
    let plain = w.submit(&ada, |_| {});
    assert_eq!(w.state(&plain), JobState::Placed, "a job that asks for nothing is no concern of it");
    allow(&mut w, &other, "lab-2", "*.pypi.org,github.com");
    assert_eq!(w.newest(&job).0, other);
    allow(&mut w, &third, "lab-3", "asked");
    let again = w.submit(&ada, asks);
    assert_eq!(w.newest(&again).0, third);
}
