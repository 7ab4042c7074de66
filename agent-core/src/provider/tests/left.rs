//! What attempts leave behind, in the engine and on disk: whoever is not on the books has no right
//! to it, and it is looked for again and again.

use std::collections::BTreeSet;

use gpunion_protocol::guest::{Exit, FromInit, ToInit};
use gpunion_protocol::job::EndCause;
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_protocol::time::Millis;

use super::super::effect::{Effect, Operation, Word};
use super::super::event::{Event, Inventory};
use super::world::{BASELINE, World, attempt};

fn removed(effects: &[Effect]) -> Vec<&Effect> {
    effects.iter().filter(|effect| matches!(effect, Effect::RemoveLeft { .. })).collect()
}

#[test]
fn f78_a_workspace_goes_when_its_attempt_is_not_on_the_books_as_they_are_now() {
    let mut world = World::sharing();
    let (mine, gone) = (attempt(1), attempt(9));
    world.assign(&mine);
    world.take();
    let left = BTreeSet::from([mine.clone(), gone.clone()]);
    world.on(Event::Found(Inventory { containers: Vec::new(), left }));
    let sweep = Effect::RemoveLeft { attempt: gone.clone() };
    assert_eq!(removed(&world.take()), vec![&sweep]);
    // It waits for the disk, and the attempt comes back meanwhile.
    assert!(world.provider.still_wants(&sweep));
    let cancel = ToAgent::End { attempt: mine, cause: EndCause::Cancelled };
    world.on(Event::Relay(Box::new(cancel)));
    world.assign(&gone);
    assert!(!world.provider.still_wants(&sweep));
}

#[test]
fn what_the_engine_does_after_its_answer_was_given_up_is_looked_for() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.assign(&name);
    world.work(&name);
    world.pass(Millis::from_secs(200));
    world.gpu(BASELINE, &[]);
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    assert_eq!(world.work(&name), Some(Operation::Clean));
    world.on(Event::Relay(Box::new(ToAgent::EndSeen { attempt: name.clone() })));
    assert_eq!(world.provider.attempts().count(), 0);
    world.take();
    world.pass(Millis::from_secs(30));
    assert!(world.take().contains(&Effect::ListOurs), "soon");
    let left = Inventory { left: BTreeSet::from([name.clone()]), ..Inventory::default() };
    world.on(Event::Found(left));
    assert_eq!(removed(&world.take()), vec![&Effect::RemoveLeft { attempt: name }]);
    world.pass(Millis::from_secs(30));
    assert!(world.take().contains(&Effect::ListOurs), "a container may have held it");
    world.on(Event::Found(Inventory::default()));
    world.pass(Millis::from_secs(299));
    assert!(!world.take().contains(&Effect::ListOurs));
    world.pass(Millis::from_secs(1));
    assert!(world.take().contains(&Effect::ListOurs), "and now and then for ever");
}

#[test]
fn whoever_leaves_the_group_has_its_guests_ended_and_tells_nobody() {
    let mut world = World::sharing();
    let (runs, saves) = (attempt(1), attempt(2));
    world.run(&saves);
    world.init(&saves, FromInit::Exited(Exit::Code { code: 0 }));
    world.gone(&saves);
    assert_eq!(world.ops[&saves].1, Operation::Whole, "its result is being saved");
    world.on(Event::Relay(Box::new(ToAgent::End { attempt: attempt(3), cause: EndCause::Cancelled })));
    world.gpu(BASELINE, &[]);
    world.assign_this(super::world::assignment(&runs, &[]));
    for _ in 0..4 {
        world.work(&runs);
    }
    world.on(Event::LinkDown { why: "the device's membership changed".to_owned() });
    world.take();
    world.on(Event::GroupLeft);
    let ends = |effect: &Effect| matches!(effect, Effect::Say { word: Word::Plain(ToInit::End { .. }), .. });
    assert!(world.take().iter().any(ends));
    // Killed in the middle of it: the record knows.
    world.crash();
    world.arrive();
    world.gone(&runs);
    for name in [&runs, &saves] {
        assert_eq!(world.work(name), Some(Operation::Clean));
    }
    world.gpu(BASELINE, &[]);
    let effects = world.take();
    let told = |effect: &Effect| matches!(effect, Effect::ToRelay(ToRelay::Ended { .. }));
    assert!(!effects.iter().any(told), "the next group has nothing to do with it: {effects:?}");
    assert!(effects.contains(&Effect::ForgetLog { attempt: runs }));
    assert_eq!(world.provider.attempts().count(), 0);
}
