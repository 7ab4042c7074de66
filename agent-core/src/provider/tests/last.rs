//! The last checkpoint of a guest that leaves or was reclaimed: what it is, how often and for how long
//! it is tried, and when it is not taken at all.

use gpunion_protocol::guest::{Exit, FromInit, ToInit};
use gpunion_protocol::job::{EndCause, Quality};
use gpunion_protocol::local::ShareRequest;
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_protocol::time::{Millis, WallMs};
use gpunion_protocol::units::Span;

use super::super::effect::{Effect, Operation, Word};
use super::super::event::{Engine, Event};
use super::super::record::Phase;
use super::flows::{ended, stop_seq};
use super::world::{GPU, World, assignment, attempt, engine, snapshot};

const HOUR: Millis = Millis::from_secs(3_600);

/// A guest that computed for so long.
fn after(time: Millis) -> World {
    let mut world = World::sharing();
    // Nothing of it was saved on the way.
    let mut wanted = assignment(&attempt(1), &[GPU]);
    wanted.spec.checkpoint.every = Some(Span(Millis::from_secs(30 * 24 * 3_600)));
    world.run_this(wanted);
    world.now.boot = world.now.boot + time;
    world.now.wall.0 += time.0 as i64;
    world.take();
    world
}

fn phase(world: &World) -> Phase {
    world.provider.attempt(&attempt(1)).unwrap().record.phase.clone()
}

fn told_to_leave(world: &World) -> bool {
    world.provider.attempt(&attempt(1)).unwrap().record.told_to_leave.is_some()
}

/// It was told, exited, and nothing of it lives.
fn left(time: Millis) -> World {
    let mut world = after(time);
    world.share(false);
    world.init(&attempt(1), FromInit::Exited(Exit::Code { code: 0 }));
    world.gone(&attempt(1));
    world.work(&attempt(1));
    world.take();
    world
}

fn reclaimed(world: &mut World) {
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
}

fn salvaged(time: Millis) -> World {
    let mut world = after(time);
    reclaimed(&mut world);
    world.gone(&attempt(1));
    world
}

fn published(effects: &[Effect]) -> Option<(Quality, Millis)> {
    effects.iter().rev().find_map(|effect| match effect {
        Effect::ToRelay(ToRelay::Publish { checkpoint, age, .. }) => Some((checkpoint.quality, *age)),
        _ => None,
    })
}

#[test]
fn five_refusals_give_it_up_and_four_do_not() {
    let name = attempt(1);
    let mut world = left(HOUR);
    for _ in 0..4 {
        world.refuse(&name);
        world.pass(Millis(30_000));
        assert_eq!((ended(&world.effects), world.op(&name)), (None, Some(Operation::Whole)));
    }
    world.refuse(&name);
    assert_eq!(ended(&world.take()), Some((EndCause::Left, false)));
}

#[test]
fn what_the_relay_s_disk_refuses_is_read_anew_and_what_did_not_arrive_is_sent_again() {
    let name = attempt(1);
    for refused in [false, true] {
        let mut world = left(HOUR);
        world.work(&name);
        if refused {
            world.refuse(&name);
        } else {
            world.away(&name);
        }
        world.pass(Millis(1_000));
        assert_eq!(world.op(&name) == Some(Operation::Whole), refused);
    }
    // A second pass that failed has lost what its first pass had.
    let mut world = after(HOUR);
    world.share(false);
    world.init(&name, FromInit::Exited(Exit::Code { code: 0 }));
    world.gone(&name);
    world.work(&name);
    assert_eq!(world.op(&name), Some(Operation::PassTwo));
    world.away(&name);
    world.pass(Millis(1_000));
    assert_eq!(world.op(&name), Some(Operation::Whole));
}

#[test]
fn an_answer_to_another_snapshot_is_none_to_the_last_one() {
    let name = attempt(1);
    let mut world = left(HOUR);
    world.work(&name);
    world.work(&name);
    assert!(published(&world.take()).is_some());
    world.relay(ToAgent::Published { attempt: name.clone(), snapshot: snapshot(8) });
    let reason = "no room".to_owned();
    world.relay(ToAgent::PublishRefused { attempt: name.clone(), snapshot: snapshot(8), reason });
    world.pass(Millis(5_000));
    assert_eq!((ended(&world.take()), world.op(&name)), (None, None));
    world.relay(ToAgent::Published { attempt: name, snapshot: snapshot(7) });
    assert_eq!(ended(&world.take()), Some((EndCause::Left, false)));
}

#[test]
fn which_exits_are_a_program_s_own() {
    for (code, quality) in [(127, Quality::Quiet), (128, Quality::Running)] {
        let mut world = after(HOUR);
        world.share(false);
        world.init(&attempt(1), FromInit::Exited(Exit::Code { code }));
        world.gone(&attempt(1));
        while world.work(&attempt(1)).is_some() {}
        assert_eq!(published(&world.take()).unwrap().0, quality, "{code}");
    }
}

#[test]
fn what_a_program_saved_before_it_exited_is_as_old_as_its_exit() {
    for exits in [true, false] {
        let mut world = after(HOUR);
        // Before it is told, so that it is no answer.
        let at_ns = (world.now.wall.0 - 1) * 1_000_000;
        world.share(false);
        world.init(&attempt(1), FromInit::Saved { at_ns });
        world.pass(Millis(59_999));
        if exits {
            world.init(&attempt(1), FromInit::Exited(Exit::Code { code: 0 }));
        } else {
            world.pass(Millis(1));
        }
        world.gone(&attempt(1));
        while world.work(&attempt(1)).is_some() {}
        let (quality, age) = published(&world.take()).unwrap();
        assert_eq!(quality, Quality::Quiet);
        assert_eq!(age, if exits { Millis(0) } else { Millis(60_001) }, "exits: {exits}");
    }
}

#[test]
fn an_upload_under_way_is_dropped_for_what_is_there_at_the_end() {
    let name = attempt(1);
    let mut world = after(HOUR);
    world.share(false);
    world.work(&name);
    let seq = stop_seq(&world.effects).unwrap();
    world.init(&name, FromInit::Stopped { seq, processes: 1, running: 0, took_us: 1 });
    world.work(&name);
    assert!(matches!(world.op(&name), Some(Operation::Upload { .. })));
    world.take();
    world.init(&name, FromInit::Exited(Exit::Code { code: 0 }));
    assert!(world.take().contains(&Effect::GiveUp { attempt: name.clone() }));
    world.gone(&name);
    assert_eq!(world.op(&name), Some(Operation::Whole));
}

#[test]
fn who_says_saved_takes_no_checkpoint_more_on_its_way_out() {
    let name = attempt(1);
    let mut world = after(HOUR);
    world.share(false);
    world.work(&name);
    let seq = stop_seq(&world.effects).unwrap();
    world.init(&name, FromInit::Stopped { seq, processes: 1, running: 0, took_us: 1 });
    world.work(&name);
    world.work(&name);
    world.relay(ToAgent::Published { attempt: name.clone(), snapshot: snapshot(7) });
    world.take();
    let at_ns = world.now.wall.0 * 1_000_000;
    world.init(&name, FromInit::Saved { at_ns });
    assert_eq!(phase(&world), Phase::Leaving { exited: false, reclaimed: false });
    assert!(!world.take().iter().any(|effect| matches!(effect, Effect::Do { .. })));
}

#[test]
fn a_guest_that_lives_on_is_not_given_up() {
    let mut world = after(Millis(1_000));
    world.share(false);
    world.pass(Millis(60_000));
    world.pass(Millis(200_000));
    assert_eq!(phase(&world), Phase::Leaving { exited: false, reclaimed: false });
}

#[test]
fn an_owner_who_forbids_a_salvage_ends_the_one_that_is_under_way_and_no_leave() {
    let forbid = |world: &mut World| {
        let call = world.call();
        let request = ShareRequest { salvage: Some(false), ..ShareRequest::default() };
        world.take();
        world.on(Event::Share { call, request });
        ended(&world.take())
    };
    assert_eq!(forbid(&mut salvaged(HOUR)), Some((EndCause::Reclaimed, false)));
    assert_eq!(forbid(&mut left(HOUR)), None);
}

#[test]
fn two_seconds_of_work_are_salvaged_and_less_is_not() {
    for (ms, is_salvaged) in [(1_999, false), (2_000, true)] {
        let world = salvaged(Millis(ms));
        let salvaged = phase(&world) == Phase::Leaving { exited: false, reclaimed: true };
        assert_eq!(salvaged, is_salvaged, "{ms}");
    }
}

#[test]
fn nothing_is_salvaged_without_an_engine_or_for_a_group_that_was_left() {
    let mut world = after(HOUR);
    world.on(Event::Engine(Engine::Unknown { why: "away".to_owned() }));
    reclaimed(&mut world);
    world.gone(&attempt(1));
    assert_eq!(ended(&world.take()), Some((EndCause::Reclaimed, false)));

    let mut world = after(HOUR);
    reclaimed(&mut world);
    world.on(Event::GroupLeft);
    world.gone(&attempt(1));
    assert_eq!(world.op(&attempt(1)), Some(Operation::Clean));
}

#[test]
fn how_much_work_is_at_stake() {
    let at_stake = |world: &World| world.provider.attempt(&attempt(1)).unwrap().at_stake(world.now);
    assert_eq!(at_stake(&after(Millis(90_000))), Millis(90_000), "all that it computed");
    let day = Millis::from_secs(24 * 3_600);
    assert_eq!(at_stake(&after(day)), day);
    assert_eq!(at_stake(&after(Millis(day.0 + 1))), day, "in a day it is gone");

    let mut world = after(Millis(90_000));
    world.init(&attempt(1), FromInit::Saved { at_ns: 1 });
    world.work(&attempt(1));
    let seq = stop_seq(&world.effects).unwrap();
    world.init(&attempt(1), FromInit::Stopped { seq, processes: 1, running: 0, took_us: 1 });
    world.work(&attempt(1));
    world.work(&attempt(1));
    world.relay(ToAgent::Published { attempt: attempt(1), snapshot: snapshot(7) });
    world.now.wall.0 += 70_000;
    assert_eq!(at_stake(&world), Millis(70_000), "since the newest checkpoint");
    world.crash();
    assert_eq!(at_stake(&world), Millis(60_000), "nobody knows any more when that was");
    world.now.wall = WallMs(world.now.wall.0 - 130_000);
    assert_eq!(at_stake(&world), Millis(30_000), "but not before it began");
}

#[test]
fn it_is_told_with_the_signal_of_its_spec() {
    let mut world = World::sharing();
    let mut wanted = assignment(&attempt(1), &[GPU]);
    wanted.spec.checkpoint.signal = "SIGUSR1".to_owned();
    world.run_this(wanted);
    world.share(false);
    let signal = world.effects.iter().find_map(|effect| match effect {
        Effect::Say { word: Word::Plain(ToInit::Leave { signal, .. }), .. } => Some(*signal),
        _ => None,
    });
    assert_eq!(signal, Some(10));
}

#[test]
fn a_program_that_has_not_begun_goes_at_once_and_one_of_which_nobody_knows_is_told() {
    let mut world = World::sharing();
    world.assign(&attempt(1));
    for _ in 0..4 {
        world.work(&attempt(1));
    }
    assert_eq!(phase(&world), Phase::Running);
    world.share(false);
    assert_eq!(phase(&world), Phase::Ending { cause: EndCause::Left }, "init has the word and no program");

    let mut world = after(HOUR);
    world.crash();
    world.on(engine());
    world.share(false);
    assert!(told_to_leave(&world), "init has not said whether it began");
    assert_eq!(phase(&world), Phase::Running);
}

#[test]
fn who_leaves_with_a_gpu_leaves_who_uses_it_and_nobody_else() {
    let mut world = after(HOUR);
    world.gpu(super::world::BASELINE, &[]);
    world.run_this(assignment(&attempt(2), &[]));
    let request = ShareRequest {
        on: Some(false),
        gpu: Some(gpunion_protocol::ids::GpuUuid(GPU.to_owned())),
        ..ShareRequest::default()
    };
    let call = world.call();
    world.on(Event::Share { call, request: request.clone() });
    let told = |world: &World, n| world.provider.attempt(&attempt(n)).unwrap().record.told_to_leave.is_some();
    assert!(told(&world, 1) && !told(&world, 2));
    assert_eq!(world.provider.leaving(), 1);
    world.share(false);
    assert!(told(&world, 2));
    assert_eq!(world.provider.share_status().leaving, 2);
    assert!(world.provider.share_status().why.ends_with(". 2 guests are leaving"));
    world.gone(&attempt(2));
    assert_eq!(world.provider.leaving(), 2, "what it left is being saved");

    // A machine that lends nothing but one GPU still lends what a job without one uses.
    let mut world = World::new();
    let call = world.call();
    world.on(Event::Share { call, request: ShareRequest { on: Some(true), ..request } });
    world.run_this(assignment(&attempt(2), &[]));
    world.pass(Millis(1));
    assert!(!told(&world, 2));
}
