//! What the relay is told of an attempt, again and again where nobody answers; and that a checkpoint
//! which fails says so.

use gpunion_protocol::guest::FromInit;
use gpunion_protocol::ids::AttemptRef;
use gpunion_protocol::job::{EndCause, Image};
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_protocol::time::Millis;

use super::super::effect::{Effect, Operation};
use super::super::event::{Event, Outcome, Trouble};
use super::flows::stop_seq;
use super::world::{World, assignment, attempt, snapshot};

fn digests(effects: &[Effect]) -> usize {
    let told = |effect: &&Effect| matches!(effect, Effect::ToRelay(ToRelay::ImageDigest { .. }));
    effects.iter().filter(told).count()
}

fn note(effects: &[Effect]) -> Option<String> {
    effects.iter().rev().find_map(|effect| match effect {
        Effect::ToRelay(ToRelay::State { note, .. }) => note.clone(),
        _ => None,
    })
}

fn image(world: &World, name: &AttemptRef) -> Image {
    world.provider.attempt(name).unwrap().record.assignment.image.clone()
}

fn pulled(world: &mut World, name: &AttemptRef, found: &str) {
    let (op, what) = world.ops.remove(name).unwrap();
    assert_eq!(what, Operation::Image);
    let outcome = Ok(Outcome::Image { digest: Some(found.to_owned()) });
    world.on(Event::Done { attempt: name.clone(), op, outcome });
}

#[test]
fn the_image_that_was_found_is_the_one_from_there_on_and_is_told_until_the_end() {
    let found = format!("sha256:{}", "a".repeat(64));
    let mut world = World::sharing();
    let name = attempt(1);
    world.assign(&name);
    world.take();
    pulled(&mut world, &name, &found);
    assert!(digests(&world.take()) > 0);
    let fixed = Image::Registry { reference: "digits:latest".to_owned(), digest: Some(found) };
    assert_eq!(image(&world, &name), fixed, "what is created is what was pulled");
    world.pass(Millis::from_secs(10));
    assert!(digests(&world.take()) > 0, "said again with a renewal");
    world.crash();
    assert_eq!(image(&world, &name), fixed, "a restart pulls no other");
    world.arrive();
    assert!(digests(&world.take()) > 0, "and in the next session");
    world.on(Event::Relay(Box::new(ToAgent::End { attempt: name.clone(), cause: EndCause::Cancelled })));
    world.on(Event::Relay(Box::new(ToAgent::EndSeen { attempt: name.clone() })));
    world.take();
    world.pass(Millis::from_secs(10));
    assert_eq!(digests(&world.take()), 0);
}

#[test]
fn a_digest_that_the_relay_gave_is_not_told_back() {
    let given = format!("sha256:{}", "b".repeat(64));
    let mut world = World::sharing();
    let name = attempt(1);
    let mut assignment = assignment(&name, &[]);
    assignment.image = Image::Registry { reference: "digits:latest".to_owned(), digest: Some(given.clone()) };
    world.assign_this(assignment);
    pulled(&mut world, &name, &given);
    assert_eq!(digests(&world.take()), 0);
}

/// In the stop of a checkpoint.
fn stopped(world: &mut World) -> AttemptRef {
    let name = attempt(1);
    world.run(&name);
    world.init(&name, FromInit::Saved { at_ns: 1 });
    world.work(&name);
    let seq = stop_seq(&world.effects).unwrap();
    world.init(&name, FromInit::Stopped { seq, processes: 1, running: 0, took_us: 100 });
    name
}

#[test]
fn a_checkpoint_that_did_not_fit_into_its_stop_says_so() {
    let mut world = World::sharing();
    let name = stopped(&mut world);
    world.take();
    world.pass(Millis(2_000));
    let told = note(&world.take()).unwrap();
    assert!(told.contains("given up") && told.contains("stop_max"), "{told}");
    assert_eq!(world.provider.attempt(&name).unwrap().note, Some(told), "the owner sees it too");
}

#[test]
fn a_checkpoint_that_could_not_be_read_says_so() {
    let mut world = World::sharing();
    let name = stopped(&mut world);
    let (op, _) = world.ops.remove(&name).unwrap();
    world.take();
    let outcome = Err(Trouble::Refused { reason: "weights.bin: it can't be read".to_owned() });
    world.on(Event::Done { attempt: name, op, outcome });
    assert!(note(&world.take()).unwrap().contains("weights.bin"));
}

#[test]
fn a_checkpoint_that_the_relay_refuses_says_so_and_is_not_taken_again_at_once() {
    let mut world = World::sharing();
    let name = stopped(&mut world);
    world.pass(Millis(1_000));
    world.work(&name);
    world.work(&name);
    world.take();
    let (attempt, snapshot) = (name.clone(), snapshot(7));
    world.init(&name, FromInit::Saved { at_ns: 2 });
    let refused = ToAgent::PublishRefused { attempt, snapshot, reason: "the job is over".to_owned() };
    world.on(Event::Relay(Box::new(refused)));
    let effects = world.take();
    assert!(note(&effects).unwrap().contains("the job is over"));
    world.pass(Millis(98_999));
    assert_eq!(world.ops.get(&name), None, "it stood still for a second, and rests for a hundred");
    world.pass(Millis(1));
    assert!(world.ops.contains_key(&name), "and is tried again");
}

#[test]
fn a_first_pass_that_took_long_is_repeated_so_that_the_stop_is_short() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    world.init(&name, FromInit::Saved { at_ns: 1 });
    world.take();
    for round in 1..=3 {
        assert_eq!(stop_seq(&world.effects), None, "it computes in round {round}");
        world.pass(Millis(2_500));
        assert_eq!(world.work(&name), Some(Operation::PassOne));
    }
    assert!(stop_seq(&world.take()).is_some(), "but not for ever");
}

#[test]
fn a_preparation_tells_how_far_it_is_now_and_then_and_nothing_when_it_is_over() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.assign(&name);
    world.take();
    let says = |world: &mut World, percent: u32| {
        let note = format!("pulling the image: {percent} MiB of 100 MiB");
        world.on(Event::Progress { attempt: attempt(1), note });
        note_of(world)
    };
    fn note_of(world: &mut World) -> Option<String> {
        note(&world.take())
    }
    assert!(says(&mut world, 1).unwrap().contains("1 MiB"));
    for percent in 2..20 {
        world.pass(Millis(100));
        assert_eq!(says(&mut world, percent), None, "not a word for each piece");
    }
    let owners = world.provider.attempt(&name).unwrap().note.clone();
    assert!(owners.unwrap().contains("19 MiB"), "the owner sees the newest");
    world.pass(Millis(300));
    assert!(says(&mut world, 30).unwrap().contains("30 MiB"));
    for _ in 0..4 {
        world.work(&name);
    }
    world.pass(Millis(5_000));
    world.take();
    assert_eq!(says(&mut world, 99), None, "a late word");
    assert_eq!(world.provider.attempt(&name).unwrap().note, None);
}

#[test]
fn an_end_that_is_asked_for_again_is_told_again_and_not_as_a_mere_state() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    let end = || ToAgent::End { attempt: name.clone(), cause: EndCause::Cancelled };
    world.on(Event::Relay(Box::new(end())));
    world.gone(&name);
    world.on(Event::Relay(Box::new(ToAgent::EndSeen { attempt: name.clone() })));
    assert!(world.provider.attempt(&name).is_some(), "it is told, and not cleaned away yet");
    world.take();
    world.on(Event::Relay(Box::new(end())));
    let told: Vec<Effect> = world.take();
    // The relay answers a state by the same word, so that it would go on for ever.
    assert!(told.iter().any(|effect| matches!(effect, Effect::ToRelay(ToRelay::Ended { .. }))), "{told:?}");
    assert!(!told.iter().any(|effect| matches!(effect, Effect::ToRelay(ToRelay::State { .. }))), "{told:?}");
}

#[test]
fn a_receipt_that_goes_out_ahead_of_the_disk_says_so() {
    let mut world = World::sharing();
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    // Nothing was lent: the answer comes with the very step whose commit may fail.
    let answer = world.take().into_iter().find(|effect| matches!(effect, Effect::ReclaimAnswer { .. }));
    let Effect::ReclaimAnswer { answer: Ok(receipt), .. } = answer.unwrap().ahead_of_disk() else {
        panic!("no receipt")
    };
    assert!(!receipt.wish_saved && receipt.troubles.iter().any(|trouble| trouble.contains("disk")));
}

#[test]
fn what_a_preparation_waits_for_is_told_once() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.assign(&name);
    let mut told = Vec::new();
    for why in ["the registry is away", "the registry is away", "the disk is full"] {
        let (op, _) = world.ops.remove(&name).unwrap();
        world.take();
        let outcome = Err(Trouble::Away { why: why.to_owned() });
        world.on(Event::Done { attempt: name.clone(), op, outcome });
        told.extend(note(&world.take()));
        world.pass(Millis::from_secs(4));
    }
    assert_eq!(told, ["the registry is away", "the disk is full"]);
}

#[test]
fn f16_an_owner_reads_why_the_relay_sends_no_jobs_for_as_long_as_that_is_so() {
    let mut world = World::sharing();
    let why = |world: &World| world.provider.share_status().why;
    let lent = why(&world);
    let renewed = |put_aside: Option<&str>| {
        let put_aside = put_aside.map(str::to_owned);
        Event::Relay(Box::new(ToAgent::Renewed {
            seq: 1,
            counting: Vec::new(),
            stale: Vec::new(),
            put_aside,
        }))
    };
    world.on(renewed(Some("3 jobs in a row could not start here")));
    assert_eq!(why(&world), format!("{lent}. No job comes for now: 3 jobs in a row could not start here"));
    world.share(false);
    assert!(!why(&world).contains("No job comes"), "of course none does");
    world.share(true);
    world.on(renewed(None));
    assert_eq!(why(&world), lent);
    world.on(renewed(Some("3 jobs in a row could not start here")));
    world.on(Event::LinkDown { why: "the session was cut".to_owned() });
    assert_eq!(why(&world), lent, "nobody knows now");
}
