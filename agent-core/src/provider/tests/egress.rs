//! Guests with egress: the owner's word on it, the deadline that they live by, what they contacted.

use gpunion_protocol::egress::{Contact, Contacts};
use gpunion_protocol::guest::{Exit, FromInit, ToInit};
use gpunion_protocol::ids::{AttemptRef, Epoch};
use gpunion_protocol::job::{AttemptState, EndCause, StopWhy};
use gpunion_protocol::session::{Terms, ToAgent, ToRelay};
use gpunion_protocol::time::{BootMs, Millis, WallMs};

use super::super::Provider;
use super::super::effect::{Effect, Word};
use super::super::event::Event;
use super::super::record::Record;
use super::world::{GPU, World, assignment, attempt, caps};

fn allowing(rule: &str) -> World {
    let mut world = World::sharing();
    let provider = std::mem::replace(&mut world.provider, Provider::new(caps()));
    world.provider = provider.with_egress(rule.parse().unwrap());
    world
}

fn assign(world: &mut World, name: &AttemptRef) {
    let mut assignment = assignment(name, &[GPU]);
    assignment.spec.network.egress = vec!["github.com".to_owned()];
    world.on(Event::Relay(Box::new(ToAgent::Assign(Box::new(assignment)))));
}

fn run(world: &mut World, name: &AttemptRef) {
    assign(world, name);
    for _ in 0..4 {
        world.work(name);
    }
    world.init(name, FromInit::Started { pid: 2 });
}

/// Deadlines and first words, in order.
fn told(effects: &[Effect]) -> Vec<Result<BootMs, Word>> {
    let told = |effect: &Effect| match effect {
        Effect::Say { word: Word::Plain(ToInit::Deadline { at }), .. } => Some(Ok(*at)),
        Effect::Say { word: word @ (Word::Begin | Word::Adopt), .. } => Some(Err(word.clone())),
        _ => None,
    };
    effects.iter().filter_map(told).collect()
}

/// The relay answers the next renewal; when that was sent.
fn renewed(world: &mut World, name: &AttemptRef) -> BootMs {
    world.take();
    for _ in 0..100 {
        world.pass(Millis(500));
        let seq = world.effects.iter().find_map(|effect| match effect {
            Effect::ToRelay(ToRelay::Renew { seq, .. }) => Some(*seq),
            _ => None,
        });
        if let Some(seq) = seq {
            let sent = world.now.boot;
            world.now.boot = world.now.boot + Millis(70);
            let counting = vec![name.clone()];
            world.on(Event::Relay(Box::new(ToAgent::Renewed {
                seq,
                counting,
                stale: Vec::new(),
                put_aside: None,
            })));
            return sent;
        }
    }
    panic!("no renewal");
}

#[test]
fn an_owner_who_allows_nothing_or_something_else_takes_no_such_job() {
    for mut world in [World::sharing(), allowing("pypi.org")] {
        let name = attempt(1);
        assign(&mut world, &name);
        let refused = world.effects.iter().any(|effect| {
            matches!(effect, Effect::ToRelay(ToRelay::Ended { cause: EndCause::CouldNotStart { reason }, .. })
                if reason.contains("does not let jobs reach github.com"))
        });
        assert!(refused && world.provider.attempt(&name).is_none());
    }
    let mut world = allowing("asked");
    assign(&mut world, &attempt(1));
    assert!(world.provider.attempt(&attempt(1)).is_some());
}

#[test]
fn it_hears_the_deadline_before_its_first_word_and_with_each_lease() {
    let mut world = allowing("github.com");
    let name = attempt(1);
    run(&mut world, &name);
    let first = told(&world.take());
    assert_eq!(first, [Ok(BootMs(0)), Err(Word::Begin)], "no lease is known: it may not run yet");
    let sent = renewed(&mut world, &name);
    let lease = Terms::default().lease;
    assert_eq!(told(&world.take()), [Ok(sent + lease)], "counted from when the renewal was sent");
    let sent = renewed(&mut world, &name);
    assert_eq!(told(&world.take()), [Ok(sent + lease)]);
}

#[test]
fn a_guest_without_egress_hears_of_no_deadline() {
    let mut world = allowing("asked");
    let name = attempt(1);
    world.run(&name);
    assert_eq!(told(&world.take()), [Err(Word::Begin)]);
    renewed(&mut world, &name);
    assert_eq!(told(&world.take()), []);
}

#[test]
fn after_a_restart_it_stands_still_until_the_relay_says_that_it_counts() {
    let mut world = allowing("asked");
    let name = attempt(1);
    run(&mut world, &name);
    renewed(&mut world, &name);
    world.crash();
    world.on(super::world::engine());
    let found = world.running_container(&name);
    world.found(vec![found]);
    world.on(Event::LinkUp { terms: Terms::default(), epoch: Epoch(1) });
    world.take();
    world.init(&name, FromInit::Hello { version: 1, begun: true });
    assert_eq!(told(&world.take()), [Ok(BootMs(0)), Err(Word::Adopt)]);
    world.init(&name, FromInit::DeadlinePassed);
    let sent = renewed(&mut world, &name);
    assert_eq!(told(&world.take()), [Ok(sent + Terms::default().lease)]);
}

#[test]
fn one_that_stopped_by_itself_is_told_so_and_runs_again_with_the_next_lease() {
    let mut world = allowing("asked");
    let name = attempt(1);
    run(&mut world, &name);
    renewed(&mut world, &name);
    let state = |world: &World| world.provider.attempt(&name).unwrap().state();
    assert_eq!(state(&world), AttemptState::Running);
    world.on(Event::LinkDown { why: "cut".to_owned() });
    world.pass(Terms::default().lease);
    world.take();
    world.init(&name, FromInit::DeadlinePassed);
    assert_eq!(state(&world), AttemptState::Stopped { why: StopWhy::LeaseOver });
    assert!(world.take().iter().any(|effect| matches!(effect, Effect::ToRelay(ToRelay::State { .. }))));
    world.arrive();
    renewed(&mut world, &name);
    assert_eq!(state(&world), AttemptState::Running);
}

#[test]
fn what_it_contacted_is_kept_and_told_by_history() {
    let mut world = allowing("asked");
    let name = attempt(1);
    run(&mut world, &name);
    let contact = |up| Contact {
        name: "github.com".to_owned(),
        port: 443,
        up,
        down: 1,
        times: 1,
        first: WallMs(1),
        last: WallMs(2),
        refused: None,
    };
    let contacts = |up| Contacts { list: vec![contact(up)], left_out: 0, up, down: 1 };
    let on_disk = |world: &World| {
        world.disk.values().find_map(|record| match record {
            Record::Attempt(attempt) => attempt.contacts.clone(),
            _ => None,
        })
    };
    let on = |world: &mut World, up| {
        world.on(Event::Contacts { attempt: name.clone(), contacts: contacts(up) });
    };
    on(&mut world, 5);
    assert_eq!(on_disk(&world), Some(contacts(5)), "who was contacted is written at once");
    on(&mut world, 6);
    assert_eq!(on_disk(&world), Some(contacts(5)), "bytes alone are not");
    world.pass(Millis::from_secs(60));
    on(&mut world, 7);
    assert_eq!(on_disk(&world), Some(contacts(7)));
    on(&mut world, 8);
    world.init(&name, FromInit::Exited(Exit::Code { code: 0 }));
    world.gone(&name);
    world.work(&name);
    world.work(&name);
    assert_eq!(world.provider.history()[0].contacts, Some(contacts(8)));
}
