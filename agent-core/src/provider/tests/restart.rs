//! The agent was killed and is back, and the container engine says nothing: what its guests need of
//! it, and a reclaim, do not wait for the engine.

use gpunion_protocol::guest::ToInit;
use gpunion_protocol::job::EndCause;
use gpunion_protocol::receipt::How;
use gpunion_protocol::time::Millis;

use super::super::effect::{Effect, Word};
use super::super::event::{Engine, Event};
use super::flows::{ended, receipt};
use super::world::{BASELINE, PROCESS, World, attempt};

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
