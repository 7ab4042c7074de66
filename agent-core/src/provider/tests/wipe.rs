//! What a wipe ends, and what it leaves alone.

use gpunion_protocol::guest::{Exit, FromInit};
use gpunion_protocol::job::EndCause;
use gpunion_protocol::time::Millis;

use super::super::effect::{Effect, Operation};
use super::super::event::Event;
use super::super::record::Phase;
use super::flows::ended;
use super::leave::{phase, reclaimed_after};
use super::world::{World, attempt};

/// How many salvages it gave up.
fn wipe(world: &mut World) -> Option<u32> {
    let call = world.call();
    world.on(Event::Wipe { call });
    world.effects.iter().rev().find_map(|effect| match effect {
        Effect::Wipe { call: answered, salvages } => (*answered == call).then_some(*salvages),
        _ => None,
    })
}

#[test]
fn a_salvage_is_given_up_and_its_workspace_removed() {
    let mut world = reclaimed_after(Millis(30_000));
    let name = attempt(1);
    world.gone(&name);
    assert_eq!(phase(&world), Phase::Leaving { exited: false, reclaimed: true });
    assert_eq!(wipe(&mut world), Some(1));
    assert_eq!(ended(&world.effects), Some((EndCause::Reclaimed, false)));
    assert_eq!(world.work(&name), Some(Operation::Clean));
}

#[test]
fn a_salvage_that_waits_to_be_known_dead_after_a_restart_is_given_up_then() {
    let mut world = reclaimed_after(Millis(30_000));
    let name = attempt(1);
    world.gone(&name);
    world.crash();
    assert_eq!(wipe(&mut world), Some(1));
    world.arrive();
    assert_eq!(ended(&world.effects), Some((EndCause::Reclaimed, false)));
}

#[test]
fn who_runs_and_what_a_job_waits_for_stay() {
    let mut world = World::sharing();
    world.run(&attempt(1));
    world.take();
    assert_eq!(wipe(&mut world), Some(0));
    assert_eq!(phase(&world), Phase::Running);
    world.init(&attempt(1), FromInit::Exited(Exit::Code { code: 0 }));
    world.gone(&attempt(1));
    assert_eq!(wipe(&mut world), Some(0));
    assert!(matches!(phase(&world), Phase::Finishing { .. }), "its result is still to be sent");
}
