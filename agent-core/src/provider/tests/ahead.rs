//! Attempts that are made ready while the one before them still runs elsewhere.

use gpunion_protocol::job::{AttemptState, EndCause};
use gpunion_protocol::session::{Assignment, ToAgent, ToRelay};
use gpunion_protocol::time::Millis;

use super::super::effect::{Effect, Operation};
use super::super::event::{Event, Found, Trouble};
use super::super::record::Phase;
use super::flows::ended;
use super::world::{GPU, World, assignment, attempt, engine, snapshot};

fn waiting() -> Assignment {
    Assignment { wait: true, from: Some(snapshot(1)), ..assignment(&attempt(1), &[GPU]) }
}

/// Image, workspace and container are there.
fn prepared() -> World {
    let mut world = World::sharing();
    world.assign_this(waiting());
    while world.work(&attempt(1)).is_some() {}
    world
}

fn go(world: &mut World, from: u8) {
    let from = Some(snapshot(from));
    world.on(Event::Relay(Box::new(ToAgent::Go { attempt: attempt(1), from })));
}

fn phase(world: &World) -> Phase {
    world.provider.attempt(&attempt(1)).unwrap().record.phase.clone()
}

fn leaves_told(effects: &[Effect]) -> usize {
    effects.iter().filter(|e| matches!(e, Effect::ToRelay(ToRelay::Leaving { .. }))).count()
}

#[test]
fn it_is_made_ready_and_does_not_begin() {
    let mut world = prepared();
    assert_eq!(phase(&world), Phase::Start);
    assert_eq!(world.provider.attempt(&attempt(1)).unwrap().state(), AttemptState::Ready);
    world.take();
    world.pass(Millis(3_600_000));
    let ready = |e: &Effect| matches!(e, Effect::ToRelay(ToRelay::State { state: AttemptState::Ready, .. }));
    assert!(world.take().iter().any(ready), "it says so with each renewal");
    assert_eq!(phase(&world), Phase::Start);
    assert!(!world.ops.contains_key(&attempt(1)), "nothing starts it");
    let busy = Assignment { wait: false, ..assignment(&attempt(2), &[GPU]) };
    world.take();
    world.assign_this(busy);
    assert!(matches!(ended(&world.take()), Some((EndCause::CouldNotStart { .. }, _))), "it holds its GPU");
}

#[test]
fn it_begins_at_once_when_nothing_was_saved_since() {
    let mut world = prepared();
    go(&mut world, 1);
    assert_eq!(world.work(&attempt(1)), Some(Operation::Start));
    assert_eq!(phase(&world), Phase::Running);
}

#[test]
fn what_was_saved_since_is_fetched_first() {
    let mut world = prepared();
    go(&mut world, 2);
    assert_eq!(phase(&world), Phase::Stage);
    let record = &world.provider.attempt(&attempt(1)).unwrap().record;
    assert_eq!(record.assignment.from, Some(snapshot(2)));
    let done: Vec<Operation> = std::iter::from_fn(|| world.work(&attempt(1))).collect();
    assert_eq!(done, [Operation::Stage, Operation::Create, Operation::Start]);
}

#[test]
fn what_is_under_way_goes_on_and_the_rest_is_fetched_on_top() {
    let mut world = World::sharing();
    world.assign_this(waiting());
    world.work(&attempt(1));
    let before = world.ops[&attempt(1)];
    go(&mut world, 2);
    assert_eq!(world.ops[&attempt(1)], before, "no second helper writes there meanwhile");
    let done: Vec<Operation> = std::iter::from_fn(|| world.work(&attempt(1))).collect();
    let (stage, create) = (Operation::Stage, Operation::Create);
    assert_eq!(done, [stage, stage, create, Operation::Start]);
    // A container that is being made is made, and its workspace filled again.
    let mut world = World::sharing();
    world.assign_this(waiting());
    world.work(&attempt(1));
    world.work(&attempt(1));
    let before = world.ops[&attempt(1)];
    go(&mut world, 2);
    assert_eq!((world.ops[&attempt(1)], phase(&world)), (before, Phase::Stage), "also after a crash");
    let done: Vec<Operation> = std::iter::from_fn(|| world.work(&attempt(1))).collect();
    assert_eq!(done, [create, stage, create, Operation::Start]);
    // One that failed is tried again from the newest, once.
    let mut world = World::sharing();
    world.assign_this(waiting());
    world.work(&attempt(1));
    go(&mut world, 2);
    let (op, _) = world.ops.remove(&attempt(1)).unwrap();
    let outcome = Err(Trouble::Away { why: "the relay is away".to_owned() });
    world.on(Event::Done { attempt: attempt(1), op, outcome });
    world.pass(Millis(1_000));
    let done: Vec<Operation> = std::iter::from_fn(|| world.work(&attempt(1))).collect();
    assert_eq!(done, [stage, create, Operation::Start]);
    // One that has not begun to fill its workspace only learns from where.
    let mut world = World::sharing();
    world.assign_this(waiting());
    let before = world.ops[&attempt(1)].0;
    go(&mut world, 2);
    assert_eq!(world.ops[&attempt(1)], (before, Operation::Image));
}

#[test]
fn the_word_to_go_outlasts_a_crash_and_may_come_twice_or_in_an_assignment() {
    let mut world = prepared();
    go(&mut world, 2);
    world.crash();
    assert!(!world.provider.attempt(&attempt(1)).unwrap().record.assignment.wait);
    world.arrive();
    go(&mut world, 3);
    let record = &world.provider.attempt(&attempt(1)).unwrap().record;
    assert_eq!(record.assignment.from, Some(snapshot(2)), "the first word stands");
    while world.work(&attempt(1)).is_some() {}
    assert_eq!(phase(&world), Phase::Running);
    world.take();
    go(&mut world, 3);
    let told = world.take();
    assert!(told.iter().any(|e| matches!(e, Effect::ToRelay(ToRelay::State { .. }))), "it is answered");

    let mut world = prepared();
    world.assign_this(Assignment { wait: false, from: Some(snapshot(1)), ..waiting() });
    assert_eq!(world.work(&attempt(1)), Some(Operation::Start));
    // An assignment that still says wait is an old one.
    world.assign_this(waiting());
    assert_eq!(phase(&world), Phase::Running);
}

#[test]
fn one_whose_init_went_while_it_waited_is_made_anew() {
    let mut world = prepared();
    world.crash();
    world.on(engine());
    let container = Found { attempt: attempt(1), container: "container".to_owned(), process: None };
    world.found(vec![container]);
    assert_eq!(phase(&world), Phase::Create);
    world.on(Event::LinkUp { terms: Default::default(), epoch: gpunion_protocol::ids::Epoch(1) });
    go(&mut world, 1);
    let done: Vec<Operation> = std::iter::from_fn(|| world.work(&attempt(1))).collect();
    assert_eq!(done, [Operation::Create, Operation::Start]);
    // One that lives is watched.
    let mut world = prepared();
    world.crash();
    world.on(engine());
    world.found(vec![world.running_container(&attempt(1))]);
    assert!(world.take().iter().any(|e| matches!(e, Effect::Attach { .. })));
}

#[test]
fn it_does_not_wait_for_ever_for_a_relay_that_is_gone() {
    let mut world = prepared();
    let renewed = ToAgent::Renewed { seq: 1, counting: vec![attempt(1)], stale: Vec::new(), put_aside: None };
    world.on(Event::Relay(Box::new(renewed)));
    world.on(Event::LinkDown { why: "cut".to_owned() });
    world.take();
    // A lease, and ten minutes.
    world.pass(Millis(644_999));
    assert_eq!(phase(&world), Phase::Start);
    world.pass(Millis(1));
    assert!(matches!(phase(&world), Phase::Over { cause: EndCause::Stale, .. }));
}

#[test]
fn its_owner_may_close_or_reclaim_while_it_waits() {
    let mut world = prepared();
    world.take();
    world.share(false);
    assert_eq!(ended(&world.take()).map(|(cause, _)| cause), Some(EndCause::Left));
    let mut world = prepared();
    world.take();
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    assert_eq!(ended(&world.take()).map(|(cause, _)| cause), Some(EndCause::Reclaimed));
}

#[test]
fn the_relay_hears_that_a_job_leaves_as_long_as_it_runs() {
    let mut world = World::sharing();
    world.run(&attempt(1));
    assert_eq!(leaves_told(&world.take()), 0);
    world.share(false);
    assert_eq!(leaves_told(&world.take()), 1);
    world.on(Event::LinkUp { terms: Default::default(), epoch: gpunion_protocol::ids::Epoch(1) });
    assert!(leaves_told(&world.take()) >= 1, "a relay that was away hears it too");
    world.pass(Millis(60_000));
    world.take();
    world.pass(Millis(60_000));
    assert_eq!(leaves_told(&world.take()), 0, "its program is being ended");
}
