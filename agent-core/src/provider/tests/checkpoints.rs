//! When a checkpoint is taken, how often it is tried, and when it is given up: each at its edge.

use gpunion_protocol::guest::{FromInit, ToInit};
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_protocol::time::Millis;
use gpunion_protocol::units::Span;

use super::super::effect::{Effect, Operation, Word};
use super::super::event::{Event, Trouble};
use super::flows::stop_seq;
use super::world::{GPU, World, assignment, attempt, snapshot};

const EVERY: Millis = Millis(300_000);
const STOP_MAX: Millis = Millis(2_000);

/// A guest that computes and has said nothing.
fn running() -> World {
    let mut world = World::sharing();
    let mut wanted = assignment(&attempt(1), &[GPU]);
    wanted.spec.checkpoint.every = Some(Span(EVERY));
    wanted.spec.checkpoint.stop_max = Span(STOP_MAX);
    world.assign_this(wanted);
    for _ in 0..4 {
        world.work(&attempt(1));
    }
    world.init(&attempt(1), FromInit::Started { pid: 2 });
    world.take();
    world
}

fn op(world: &World) -> Option<Operation> {
    world.ops.get(&attempt(1)).map(|(_, what)| *what)
}

fn stopped(world: &mut World) {
    let seq = stop_seq(&world.effects).expect("it is told to stop");
    world.init(&attempt(1), FromInit::Stopped { seq, processes: 1, running: 0, took_us: 1 });
}

fn goes_on(world: &World) -> bool {
    world.effects.iter().any(|e| matches!(e, Effect::Say { word: Word::Plain(ToInit::GoOn { .. }), .. }))
}

/// From pass one to the relay's answer.
fn whole(world: &mut World) {
    assert_eq!(world.work(&attempt(1)), Some(Operation::PassOne));
    stopped(world);
    assert_eq!(world.work(&attempt(1)), Some(Operation::PassTwo));
    assert!(matches!(world.work(&attempt(1)), Some(Operation::Upload { .. })));
    accepted(world);
    world.take();
}

fn accepted(world: &mut World) {
    let message = ToAgent::Published { attempt: attempt(1), snapshot: snapshot(7) };
    world.on(Event::Relay(Box::new(message)));
}

fn fails(world: &mut World) {
    let (op, _) = world.ops.remove(&attempt(1)).unwrap();
    let outcome = Err(Trouble::Away { why: "no answer".to_owned() });
    world.on(Event::Done { attempt: attempt(1), op, outcome });
}

#[test]
fn one_is_due_each_every_and_no_sooner() {
    let mut world = running();
    world.pass(Millis(EVERY.0 - 1));
    assert_eq!(op(&world), None);
    world.pass(Millis(1));
    whole(&mut world);
    world.pass(Millis(EVERY.0 - 1));
    assert_eq!(op(&world), None, "counted from when it was accepted");
    world.pass(Millis(1));
    assert_eq!(op(&world), Some(Operation::PassOne));
}

#[test]
fn a_first_pass_that_took_too_long_is_repeated_three_times_at_most() {
    let mut world = running();
    world.pass(EVERY);
    for _ in 0..2 {
        world.pass(Millis(STOP_MAX.0 + 1));
        assert_eq!(world.work(&attempt(1)), Some(Operation::PassOne));
        assert_eq!(op(&world), Some(Operation::PassOne), "once more");
        assert_eq!(stop_seq(&world.effects), None);
    }
    world.pass(Millis(STOP_MAX.0 + 1));
    world.work(&attempt(1));
    assert!(stop_seq(&world.effects).is_some(), "the third is the last");

    let mut world = running();
    world.pass(EVERY);
    world.pass(STOP_MAX);
    world.work(&attempt(1));
    assert!(stop_seq(&world.effects).is_some(), "one that took no longer than a stop is enough");
}

#[test]
fn whoever_says_saved_all_the_time_is_rested_for_three_times_what_it_took() {
    let mut world = running();
    // It ran for long, so that a checkpoint more is no great part of it.
    world.pass(Millis(EVERY.0 - 1));
    world.init(&attempt(1), FromInit::Saved { at_ns: 100 });
    world.pass(Millis(1_000));
    whole(&mut world);
    world.init(&attempt(1), FromInit::Saved { at_ns: 200 });
    assert_eq!(op(&world), None);
    world.pass(Millis(2_999));
    assert_eq!(op(&world), None);
    world.pass(Millis(1));
    assert_eq!(op(&world), Some(Operation::PassOne));
}

#[test]
fn what_it_says_that_it_saved_is_taken_soon_and_all_cost_a_fiftieth_of_the_run_at_most() {
    let mut world = running();
    world.init(&attempt(1), FromInit::Saved { at_ns: 1 });
    // Each costs its stop and a tenth of its reading: 500, 210 and 210 ms. One more is taken to cost what
    // they did in the mean: 500, 355, 282 ms.
    for (reading, stood, not_before) in
        [(2_000, 300, 50 * 1_000), (100, 200, 50 * 1_065), (100, 200, 50 * 1_202)]
    {
        assert_eq!(op(&world), Some(Operation::PassOne));
        take_one(&mut world, reading, stood, 0);
        world.init(&attempt(1), FromInit::Saved { at_ns: 2 });
        let left = 1_000 + not_before - world.now.boot.0;
        world.pass(Millis(left - 1));
        assert_eq!(op(&world), None);
        world.pass(Millis(1));
    }
}

/// The same guest, whose spec leaves it to the provider.
fn running_unset() -> World {
    let mut world = World::sharing();
    let mut wanted = assignment(&attempt(1), &[GPU]);
    wanted.spec.checkpoint.every = None;
    wanted.spec.checkpoint.stop_max = Span(STOP_MAX);
    world.run_this(wanted);
    world.take();
    world
}

/// From pass one to the relay's answer, in so many milliseconds each.
fn take_one(world: &mut World, reading: u64, stood: u64, sending: u64) {
    world.pass(Millis(reading));
    assert_eq!(world.work(&attempt(1)), Some(Operation::PassOne));
    stopped(world);
    world.pass(Millis(stood));
    assert_eq!(world.work(&attempt(1)), Some(Operation::PassTwo));
    world.pass(Millis(sending));
    // What has not changed is not sent.
    if world.work(&attempt(1)).is_some() {
        accepted(world);
    }
    world.take();
}

fn comes_after(world: &mut World, wait: u64) {
    assert_eq!(world.provider.attempt(&attempt(1)).unwrap().checkpoint_every(), Millis(wait));
    world.pass(Millis(wait - 1));
    assert_eq!(op(world), None, "not before {wait} ms");
    world.pass(Millis(1));
    assert_eq!(op(world), Some(Operation::PassOne), "after {wait} ms");
}

#[test]
fn the_interval_follows_from_what_one_costs() {
    let mut world = running_unset();
    comes_after(&mut world, 169_039);
    take_one(&mut world, 2_000, 1_700, 5_000);
    // 1,700 + 200 + 100 ms. √(2·2 s·4.03 h) is 240.9 s, and so it grows with the root of the cost. This
    // provider has kept a guest for 170 s, and is trusted a little more.
    let every = world.provider.attempt(&attempt(1)).unwrap().checkpoint_every();
    assert!((239_000..=242_000).contains(&every.0), "{every:?}");
    comes_after(&mut world, every.0);
}

#[test]
fn after_one_that_cost_much_the_next_waits_until_the_run_is_long_enough_for_both() {
    let mut world = World::sharing();
    let mut wanted = assignment(&attempt(1), &[GPU]);
    wanted.spec.checkpoint.every = None;
    wanted.spec.checkpoint.stop_max = Span(Millis::from_secs(3_600));
    world.run_this(wanted);
    comes_after(&mut world, 169_039);
    take_one(&mut world, 100_000, 10_000, 0);
    // It cost 20 s; fifty times that would be over after 1,279 s of the run.
    assert_eq!(world.provider.attempt(&attempt(1)).unwrap().checkpoint_every(), Millis(1_000_000));
    world.pass(Millis(1_000 + 2_000_000 - 1 - world.now.boot.0));
    assert_eq!(op(&world), None);
    world.pass(Millis(1));
    assert_eq!(op(&world), Some(Operation::PassOne), "two of them in 2,000 s");
}

#[test]
fn it_follows_from_how_often_this_provider_left_at_this_hour() {
    let mut world = World::sharing();
    for n in 2..=21 {
        world.run(&attempt(n));
        world.now.boot = world.now.boot + Millis(600_000);
        world.now.wall.0 += 600_000;
        let call = world.call();
        world.on(Event::Reclaim { call, gpu: None });
        world.gone(&attempt(n));
        world.gpu(super::world::BASELINE, &[]);
        world.share(true);
    }
    let mut wanted = assignment(&attempt(1), &[GPU]);
    wanted.spec.checkpoint.every = None;
    world.run_this(wanted);
    // Twenty times in 3.3 hours: once in ten minutes, and a guess of four hours that weighs little.
    let every = world.provider.attempt(&attempt(1)).unwrap().checkpoint_every();
    assert!((35_000..60_000).contains(&every.0), "{every:?}");
    let departs = world.provider.departs_after(world.now);
    assert!(departs < Millis::from_secs(1_800), "{departs:?}");
    world.crash();
    assert_eq!(world.provider.departs_after(world.now), departs, "it is on the disk");
}

#[test]
fn all_that_are_taken_in_some_hours_cost_a_fiftieth_at_most() {
    let mut world = running_unset();
    let (began, mut cost, mut taken) = (world.now.boot, 0, 0);
    let hours = Millis::from_secs(6 * 3_600);
    while world.now.boot - began < hours {
        let due = world.provider.attempt(&attempt(1)).unwrap().checkpoint_every();
        world.pass(due);
        while op(&world).is_none() {
            world.pass(Millis(1_000));
        }
        // The first reads all, the others what has changed, which is not sent again if it is the same.
        let (reading, stood, sending) = if taken == 0 { (2_000, 1_900, 60_000) } else { (1_500, 400, 0) };
        take_one(&mut world, reading, stood, sending);
        (cost, taken) = (cost + stood + reading / 10 + sending / 50, taken + 1);
    }
    let run = (world.now.boot - began).0;
    assert!(50 * cost <= run, "{cost} ms of {run} ms in {taken}");
    assert!((50..200).contains(&taken), "{taken}");
}

#[test]
fn a_stop_that_is_too_long_is_cut_told_once_and_tried_later_after_reading_more() {
    let notes = |world: &mut World| {
        let note = |effect: &Effect| match effect {
            Effect::ToRelay(ToRelay::State { note: Some(note), .. }) => Some(note.contains("given up")),
            _ => None,
        };
        world.take().iter().filter_map(note).filter(|given_up| *given_up).count()
    };
    let mut world = running();
    world.pass(EVERY);
    // How many rounds a first pass has whose every round takes so long.
    let rounds = |world: &mut World, took: u64| {
        for round in 1.. {
            world.pass(Millis(took));
            assert_eq!(world.work(&attempt(1)), Some(Operation::PassOne));
            if op(world).is_none() {
                return round;
            }
        }
        0
    };
    let cut = |world: &mut World| {
        stopped(world);
        world.take();
        world.pass(STOP_MAX);
        assert_eq!(op(world), None);
        assert!(goes_on(world));
    };
    assert_eq!(rounds(&mut world, 1_500), 1, "short enough");
    cut(&mut world);
    assert_eq!(notes(&mut world), 1);
    for (wait, read, told) in [(2, 4, 0), (4, 5, 0), (6, 6, 0), (6, 6, 0)] {
        world.pass(Millis(wait * EVERY.0 - 1));
        assert_eq!(op(&world), None, "not before {wait} times as long");
        world.pass(Millis(1));
        assert_eq!(rounds(&mut world, 1_500), read);
        cut(&mut world);
        assert_eq!(notes(&mut world), told);
    }
    world.pass(Millis(6 * EVERY.0));
    assert_eq!(rounds(&mut world, 250), 1, "short enough for an eighth of the stop");
    stopped(&mut world);
    world.work(&attempt(1));
    world.work(&attempt(1));
    accepted(&mut world);
    world.pass(EVERY);
    assert_eq!(rounds(&mut world, 2_000), 1, "one was taken: all is as it was");
    cut(&mut world);
    assert_eq!(notes(&mut world), 1, "and it is told again");
}

#[test]
fn what_has_not_changed_is_not_sent_again() {
    let mut world = running();
    world.pass(EVERY);
    whole(&mut world);
    world.pass(EVERY);
    world.work(&attempt(1));
    stopped(&mut world);
    assert_eq!(world.work(&attempt(1)), Some(Operation::PassTwo));
    assert_eq!(op(&world), None, "the relay has it");
    // But the word that it saved makes it better than it was.
    world.take();
    world.init(&attempt(1), FromInit::Saved { at_ns: 1_000 });
    world.work(&attempt(1));
    stopped(&mut world);
    world.work(&attempt(1));
    assert!(matches!(op(&world), Some(Operation::Upload { .. })));
}

#[test]
fn an_upload_that_fails_is_tried_again_until_the_next_one_is_due() {
    let mut world = running();
    world.pass(EVERY);
    world.work(&attempt(1));
    stopped(&mut world);
    world.work(&attempt(1));
    fails(&mut world);
    assert_eq!(op(&world), None);
    world.pass(Millis(1_000));
    assert!(matches!(op(&world), Some(Operation::Upload { .. })));
    world.pass(EVERY);
    world.take();
    fails(&mut world);
    assert!(world.effects.contains(&Effect::GiveUp { attempt: attempt(1) }));
    world.pass(Millis(60_000));
    assert_eq!(op(&world), None);
    world.pass(EVERY);
    assert_eq!(op(&world), Some(Operation::PassOne), "the next is taken anew");
}

#[test]
fn only_the_answer_to_its_own_stop_lets_the_second_pass_read() {
    let mut world = running();
    world.pass(EVERY);
    world.work(&attempt(1));
    let seq = stop_seq(&world.effects).unwrap();
    world.init(&attempt(1), FromInit::Stopped { seq: seq + 1, processes: 1, running: 0, took_us: 1 });
    assert_eq!(op(&world), None);
    world.init(&attempt(1), FromInit::Stopped { seq, processes: 1, running: 1, took_us: 1 });
    assert_eq!(op(&world), None, "one still runs");
    world.init(&attempt(1), FromInit::Stopped { seq, processes: 1, running: 0, took_us: 1 });
    assert_eq!(op(&world), Some(Operation::PassTwo));
}

#[test]
fn a_stop_that_nobody_answers_is_given_up_in_time_and_says_why() {
    let mut world = running();
    world.pass(EVERY);
    world.work(&attempt(1));
    world.take();
    world.pass(Millis(STOP_MAX.0 - 1));
    assert!(!goes_on(&world));
    world.pass(Millis(1));
    assert!(goes_on(&world));
    let note = world.provider.attempt(&attempt(1)).unwrap().note.clone().unwrap();
    assert!(note.contains("not every process stood still"), "{note}");

    let mut world = running();
    world.pass(EVERY);
    world.work(&attempt(1));
    stopped(&mut world);
    world.pass(STOP_MAX);
    let note = world.provider.attempt(&attempt(1)).unwrap().note.clone().unwrap();
    assert!(note.contains("too much changes"), "{note}");
}

#[test]
fn a_checkpoint_tells_how_old_its_content_is() {
    let age = |world: &World| {
        world.effects.iter().rev().find_map(|effect| match effect {
            Effect::ToRelay(ToRelay::Publish { age, .. }) => Some(*age),
            _ => None,
        })
    };
    let mut world = running();
    world.pass(EVERY);
    world.work(&attempt(1));
    stopped(&mut world);
    world.pass(Millis(500));
    world.work(&attempt(1));
    world.pass(Millis(7_000));
    world.work(&attempt(1));
    assert_eq!(age(&world), Some(Millis(7_500)), "since it stood still");
    world.pass(Millis(10_000));
    assert_eq!(age(&world), Some(Millis(17_500)), "and older when it is said again");

    // What the program computed after it had saved is in no file.
    let mut world = running();
    let saved = world.now.wall.0 * 1_000_000;
    world.init(&attempt(1), FromInit::Saved { at_ns: saved });
    world.pass(Millis(1_500));
    world.work(&attempt(1));
    stopped(&mut world);
    world.work(&attempt(1));
    world.work(&attempt(1));
    assert_eq!(age(&world), Some(Millis(1_500)));
}

#[test]
fn each_step_has_its_word() {
    let word = |world: &World| world.provider.attempt(&attempt(1)).unwrap().checkpoint_step();
    let mut world = running();
    assert_eq!(word(&world), None);
    world.pass(EVERY);
    assert_eq!(word(&world), Some("pass one"));
    world.work(&attempt(1));
    assert_eq!(word(&world), Some("stopping"));
    stopped(&mut world);
    assert_eq!(word(&world), Some("pass two"));
    world.work(&attempt(1));
    assert_eq!(word(&world), Some("uploading"));
    world.work(&attempt(1));
    assert_eq!(word(&world), Some("publishing"));
    accepted(&mut world);
    assert_eq!(word(&world), None);
}

#[test]
fn an_operation_that_was_given_up_meanwhile_is_not_wanted_any_more() {
    let mut world = running();
    world.pass(EVERY);
    let asked = world.effects.iter().find(|e| matches!(e, Effect::Do { .. })).cloned().unwrap();
    assert!(world.provider.still_wants(&asked));
    fails(&mut world);
    assert!(!world.provider.still_wants(&asked));
}

#[test]
fn a_workspace_may_be_as_large_as_its_limit_and_no_larger() {
    let limit = assignment(&attempt(1), &[GPU]).spec.resources.disk.0;
    for (bytes, ends) in [(limit, false), (limit + 1, true)] {
        let mut world = running();
        world.init(&attempt(1), FromInit::Usage { bytes, files: 1 });
        let told = |e: &Effect| matches!(e, Effect::Say { word: Word::Plain(ToInit::End { .. }), .. });
        assert_eq!(world.effects.iter().any(told), ends, "{bytes}");
    }
}
