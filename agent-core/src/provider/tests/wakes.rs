//! When the machine asks to be woken: each reason alone, to the millisecond, and no reason at all.

use gpunion_protocol::guest::{Exit, FromInit};
use gpunion_protocol::ids::Epoch;
use gpunion_protocol::job::EndCause;
use gpunion_protocol::local::ShareRequest;
use gpunion_protocol::session::{Terms, ToAgent};
use gpunion_protocol::time::{BootMs, Millis, WallMs};
use gpunion_protocol::units::Span;

use super::super::effect::Operation;
use super::super::event::{Engine, Event};
use super::flows::stop_seq;
use super::world::{BASELINE, World, assignment, attempt, engine, snapshot};

const EVERY: Millis = Millis(300_000);
const STOP_MAX: Millis = Millis(2_000);

/// A guest without a GPU that runs since 30 s, on a machine where nothing else happens.
fn running() -> World {
    let mut world = World::sharing();
    let mut wanted = assignment(&attempt(1), &[]);
    wanted.spec.checkpoint.every = Some(Span(EVERY));
    wanted.spec.checkpoint.stop_max = Span(STOP_MAX);
    world.run_this(wanted);
    world.alone();
    world
}

fn stopped(world: &mut World) {
    let seq = stop_seq(&world.effects).expect("it is told to stop");
    world.init(&attempt(1), FromInit::Stopped { seq, processes: 1, running: 0, took_us: 1 });
}

fn published(world: &mut World) {
    world.relay(ToAgent::Published { attempt: attempt(1), snapshot: snapshot(7) });
}

#[test]
fn a_machine_with_nothing_to_do_sleeps() {
    let mut world = World::new();
    assert_eq!(world.wakes_in(), Some(5_001), "figures of GPUs get old first");
    world.no_gpu();
    assert_eq!(world.wakes_in(), Some(10_000), "then a renewal is due");
    world.on(Event::LinkDown { why: "cut".to_owned() });
    assert_eq!(world.wakes_in(), Some(30_000), "then containers are listed");
    world.pass(Millis(30_000));
    assert_eq!(world.wakes_in(), None);
    world.on(Event::LinkUp { terms: Terms::default(), epoch: Epoch(1) });
    assert_eq!(world.wakes_in(), Some(10_000));
}

#[test]
fn each_step_of_a_checkpoint_wakes_when_its_time_is_over_and_an_answer_is_not_waited_for_by_clock() {
    let name = attempt(1);
    let mut world = running();
    assert_eq!(world.wakes_in(), Some(EVERY.0 - 30_000), "it is due");
    world.pass(Millis(EVERY.0 - 30_000));
    assert_eq!(world.op(&name), Some(Operation::PassOne));
    assert_eq!(world.wakes_in(), None);
    world.work(&name);
    assert_eq!(world.wakes_in(), Some(STOP_MAX.0), "it may stand still for so long");
    world.pass(Millis(500));
    stopped(&mut world);
    assert_eq!(world.wakes_in(), Some(STOP_MAX.0 - 500));
    world.work(&name);
    assert_eq!((world.op(&name).is_some(), world.wakes_in()), (true, None), "it uploads");
    world.away(&name);
    assert_eq!(world.wakes_in(), Some(1_000), "and tries again");
    world.on(Event::Engine(Engine::Unknown { why: "away".to_owned() }));
    assert_eq!(world.wakes_in(), None, "nothing is tried without an engine");
    world.on(engine());
    world.found(vec![world.running_container(&name)]);
    assert_eq!(world.wakes_in(), Some(1_000));
    world.pass(Millis(1_000));
    world.pass(Millis(29_000));
    world.work(&name);
    assert_eq!(world.wakes_in(), None, "it is published");
    published(&mut world);
    assert_eq!(world.wakes_in(), Some(EVERY.0));
    let took = 500 + 1_000 + 29_000;
    world.init(&name, FromInit::Saved { at_ns: 1 });
    assert_eq!(world.wakes_in(), Some(3 * took), "for the sake of the word it rests");
}

#[test]
fn a_guest_that_is_not_attached_has_no_checkpoint_due() {
    let name = attempt(1);
    let mut world = running();
    world.crash();
    world.on(engine());
    world.found(vec![world.running_container(&name)]);
    world.pass(Millis(30_000));
    assert_eq!(world.wakes_in(), None);
    world.pass(EVERY);
    assert_eq!(world.op(&name), None);
    world.init(&name, FromInit::Hello { version: 1, begun: true });
    assert_eq!(world.op(&name), Some(Operation::PassOne), "as soon as it is heard of");
}

#[test]
fn a_guest_that_leaves_wakes_for_its_grace_for_each_way_of_ending_it_and_for_giving_up() {
    let name = attempt(1);
    let mut world = running();
    world.share(false);
    assert_eq!(world.wakes_in(), Some(60_000), "its grace");
    world.pass(Millis(59_999));
    assert_eq!(world.wakes_in(), Some(1));
    world.pass(Millis(1));
    assert_eq!(world.wakes_in(), Some(150), "the next way of ending it");
    world.gone(&name);
    assert!(world.op(&name).is_some());
    // What is waited for now is its answer; it computed for 90 s, and is not waited for longer.
    world.pass(Millis(30_000));
    assert_eq!(world.wakes_in(), Some(60_000));
    world.pass(Millis(59_999));
    assert_eq!(world.wakes_in(), Some(1));
    world.away(&name);
    assert_eq!(world.wakes_in(), Some(1), "a try after that would be in vain");
    world.pass(Millis(1));
    assert_eq!(world.op(&name), Some(Operation::Clean));
}

#[test]
fn who_exited_when_it_was_told_is_not_given_up_while_its_init_waits() {
    let name = attempt(1);
    let mut world = running();
    world.share(false);
    world.init(&name, FromInit::Exited(Exit::Code { code: 0 }));
    assert_eq!(world.wakes_in(), None, "its end is an event");
    world.pass(Millis(200_000));
    assert!(!world.provider.attempt(&name).unwrap().record.phase.is_over());
    world.gone(&name);
    assert!(world.provider.attempt(&name).unwrap().record.phase.is_over(), "then its time is over too");
}

#[test]
fn a_last_checkpoint_at_the_relay_is_waited_for_and_not_tried_again() {
    let name = attempt(1);
    let mut world = running();
    world.share(false);
    world.init(&name, FromInit::Exited(Exit::Code { code: 0 }));
    world.gone(&name);
    world.away(&name);
    assert_eq!(world.wakes_in(), Some(1_000), "a first pass may be tried again");
    world.pass(Millis(1_000));
    world.work(&name);
    world.away(&name);
    assert_eq!(world.wakes_in(), Some(1_000), "an upload too");
    world.pass(Millis(1_000));
    world.work(&name);
    assert_eq!(world.wakes_in(), Some(58_000), "the relay has it");
    published(&mut world);
    assert_eq!(world.op(&name), Some(Operation::Clean));
}

#[test]
fn a_result_and_the_cleaning_are_tried_again_in_time() {
    let name = attempt(1);
    let mut world = running();
    world.init(&name, FromInit::Exited(Exit::Code { code: 0 }));
    assert_eq!(world.wakes_in(), None, "its init still holds the report");
    world.gone(&name);
    assert_eq!(world.wakes_in(), None);
    world.away(&name);
    assert_eq!(world.wakes_in(), Some(1_000));
    world.pass(Millis(1_000));
    world.work(&name);
    world.work(&name);
    assert_eq!(world.op(&name), Some(Operation::Clean));
    world.pass(Millis(30_000));
    assert_eq!(world.wakes_in(), None, "the list that follows an end is done");
    world.away(&name);
    assert_eq!(world.wakes_in(), Some(1_000));
    world.pass(Millis(1_000));
    world.work(&name);
    assert_eq!(world.wakes_in(), None);
}

#[test]
fn an_end_is_followed_by_a_list_of_containers_soon() {
    let mut world = running();
    world.gone(&attempt(1));
    assert_eq!(world.wakes_in(), Some(30_000));
}

#[test]
fn a_guest_that_must_end_wakes_for_each_way() {
    let name = attempt(1);
    let mut world = running();
    world.relay(ToAgent::End { attempt: name.clone(), cause: EndCause::Cancelled });
    for wait in [150, 150, 1_000, 1_000] {
        assert_eq!(world.wakes_in(), Some(wait));
        world.pass(Millis(wait));
    }
    world.gone(&name);
    assert_eq!(world.wakes_in(), Some(30_000), "nobody ends what is gone");
}

#[test]
fn a_reclaim_is_answered_in_ten_seconds_and_what_a_gpu_may_still_hold_is_forgotten_in_a_minute() {
    let mut world = World::sharing();
    let call = world.call();
    let no_salvage = ShareRequest { salvage: Some(false), ..ShareRequest::default() };
    world.on(Event::Share { call, request: no_salvage });
    world.run(&attempt(1));
    world.alone();
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    assert_eq!(world.wakes_in(), Some(20), "its init may say that all stands still");
    world.pass(Millis(10));
    world.gone(&attempt(1));
    assert_eq!(world.wakes_in(), Some(9_990));
    world.pass(Millis(9_989));
    assert_eq!(super::flows::receipt(&world.effects), None);
    world.pass(Millis(1));
    assert!(super::flows::receipt(&world.effects).is_some());
    // Containers are listed, and the last is the GPU.
    while world.wakes_in().is_some_and(|wait| wait < 1_000_000) {
        let wait = world.wakes_in().unwrap();
        world.pass(Millis(wait));
    }
    assert_eq!(world.now.boot, BootMs(31_000 + 10 + 60_000), "a minute after its guest had ended");
}

#[test]
fn an_end_of_the_owner_s_hours_wakes_when_the_first_guest_must_be_told() {
    let mut world = World::new();
    world.alone();
    let until = |world: &mut World, left: u64| {
        let request = ShareRequest {
            on: Some(true),
            until: Some(WallMs(world.now.wall.0 + left as i64)),
            ..ShareRequest::default()
        };
        let call = world.call();
        world.on(Event::Share { call, request });
    };
    until(&mut world, 100_000);
    assert_eq!(world.wakes_in(), Some(30_000), "clocks of walls jump");
    until(&mut world, 20_000);
    assert_eq!(world.wakes_in(), Some(20_000));
    world.pass(Millis(20_000));
    assert_eq!(world.wakes_in(), None);

    let mut world = World::new();
    world.on(Event::LinkDown { why: "cut".to_owned() });
    until(&mut world, 40_000);
    let mut wanted = assignment(&attempt(1), &[]);
    wanted.spec.checkpoint.grace = Span(Millis(15_000));
    world.run_this(wanted);
    world.no_gpu();
    assert_eq!(world.wakes_in(), Some(25_000), "it is told before the end");
    world.pass(Millis(25_000));
    assert!(world.provider.attempt(&attempt(1)).unwrap().record.told_to_leave.is_some());
}

#[test]
fn figures_of_gpus_wake_as_long_as_they_are_believed() {
    let mut world = World::new();
    world.alone();
    world.gpu(BASELINE, &[]);
    assert_eq!(world.wakes_in(), Some(5_001));
    world.pass(Millis(5_001));
    assert_eq!(world.wakes_in(), None, "they are old, and that is no news twice");
}
