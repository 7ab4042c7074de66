//! The agent was killed and is back, and the container engine says nothing: what its guests need of
//! it, and a reclaim, do not wait for the engine.

use gpunion_protocol::guest::{Exit, FromInit, ToInit};
use gpunion_protocol::job::EndCause;
use gpunion_protocol::receipt::How;
use gpunion_protocol::time::{Millis, WallMs};

use super::super::effect::{Effect, Word};
use super::super::event::{Engine, Event};
use super::super::record::Phase;
use super::super::word::{ReclaimWord, Wanted};
use super::flows::{ended, receipt, stop_seq};
use super::world::{BASELINE, PROCESS, World, attempt, engine};

fn back_without_an_engine(world: &mut World) {
    world.crash();
    world.take();
    world.on(Event::Engine(Engine::Unknown { why: "it does not answer".to_owned() }));
}

#[test]
fn f63_f74_a_guest_is_taken_up_before_the_engine_answers_and_a_reclaim_of_it_is_verified() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    world.gpu(BASELINE + 900, &[(PROCESS.pid, PROCESS.start_time, 900)]);
    back_without_an_engine(&mut world);
    let container = "container".to_owned();
    assert_eq!(
        world.take(),
        vec![Effect::Attach { attempt: name.clone(), container, process: PROCESS }],
        "its container and init are in the record"
    );
    world.gpu(BASELINE + 900, &[(PROCESS.pid, PROCESS.start_time, 900)]);
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    world.gone(&name);
    world.now.boot = world.now.boot + Millis(100);
    world.gpu(BASELINE, &[]);
    let receipt = receipt(&world.take()).unwrap();
    assert!(receipt.verified && receipt.how == How::ProcessList, "{receipt:?}");
}

#[test]
fn a_guest_that_had_to_end_when_the_agent_died_is_ended_by_the_next_one() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    back_without_an_engine(&mut world);
    assert!(
        world.take().iter().any(|e| matches!(e, Effect::Say { word: Word::Plain(ToInit::End { .. }), .. }))
    );
    world.pass(Millis(150));
    assert!(world.take().contains(&Effect::EndFile { attempt: name.clone() }), "and again by the file");
    world.gone(&name);
    world.take();
    world.arrive();
    assert_eq!(ended(&world.take()), Some((EndCause::Reclaimed, false)));
}

#[test]
fn numbers_of_words_are_larger_than_those_of_any_earlier_run() {
    let mut world = World::sharing();
    world.run(&attempt(1));
    let seq = |world: &mut World| {
        world.take();
        let call = world.call();
        world.on(Event::Reclaim { call, gpu: None });
        stop_seq(&world.effects).unwrap()
    };
    let before = seq(&mut world);
    world.crash();
    world.now.boot = world.now.boot + Millis(1);
    world.on(engine());
    let runs = world.running_container(&attempt(1));
    world.found(vec![runs]);
    assert!(seq(&mut world) > before, "an answer to the run before must not pass for one to this");
}

#[test]
fn a_reclaim_by_hand_ends_who_computes_and_keeps_the_result_of_who_had_ended() {
    let by_hand = || Event::ReclaimedByHand { word: ReclaimWord { wanted: Wanted::All, at: WallMs(1) } };
    let mut world = World::sharing();
    world.run(&attempt(1));
    world.on(by_hand());
    let ending = Phase::Ending { cause: EndCause::Reclaimed };
    assert_eq!(world.provider.attempt(&attempt(1)).unwrap().record.phase, ending);

    let mut world = World::sharing();
    world.run(&attempt(1));
    world.init(&attempt(1), FromInit::Exited(Exit::Code { code: 0 }));
    world.gone(&attempt(1));
    world.on(by_hand());
    while world.work(&attempt(1)).is_some() {}
    assert_eq!(ended(&world.take()), Some((EndCause::Exited { code: 0 }, true)));
}

#[test]
fn memory_that_an_ended_guest_still_held_is_looked_for_after_a_restart_too() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    let held = [(PROCESS.pid, PROCESS.start_time, 900)];
    world.gpu(BASELINE + 900, &held);
    world.init(&name, FromInit::Exited(Exit::Code { code: 3 }));
    world.gone(&name);
    while world.work(&name).is_some() {}
    world.crash();
    world.take();
    world.gpu(BASELINE + 900, &held);
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    world.now.boot = world.now.boot + Millis(200);
    world.gpu(BASELINE + 900, &held);
    assert_eq!(receipt(&world.effects), None, "it is not called free");
    world.now.boot = world.now.boot + Millis(200);
    world.gpu(BASELINE, &[]);
    assert!(receipt(&world.take()).unwrap().verified);
}

#[test]
fn a_reclaim_ends_what_is_being_prepared_and_leaves_a_result_that_is_being_saved() {
    let reclaim = |world: &mut World| {
        world.take();
        let call = world.call();
        world.on(Event::Reclaim { call, gpu: None });
    };
    let mut world = World::sharing();
    world.assign(&attempt(1));
    reclaim(&mut world);
    assert_eq!(ended(&world.effects), Some((EndCause::Reclaimed, false)));

    let mut world = World::sharing();
    world.run(&attempt(1));
    world.init(&attempt(1), FromInit::Exited(Exit::Code { code: 0 }));
    world.gone(&attempt(1));
    reclaim(&mut world);
    assert_eq!(ended(&world.effects), None);
    while world.work(&attempt(1)).is_some() {}
    assert_eq!(ended(&world.take()), Some((EndCause::Exited { code: 0 }, true)));
}
