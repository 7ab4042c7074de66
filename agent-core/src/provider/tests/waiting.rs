//! How long the machine waits before it does something again, to the millisecond.

use gpunion_protocol::gpu::GpuView;
use gpunion_protocol::guest::{Exit, FromInit};
use gpunion_protocol::ids::{AttemptRef, Epoch};
use gpunion_protocol::local::ShareRequest;
use gpunion_protocol::session::{Terms, ToAgent, ToRelay};
use gpunion_protocol::time::{Millis, WallMs};

use super::super::effect::{Effect, Operation};
use super::super::event::{Event, Inventory, Outcome, Taken, Trouble};
use super::flows::stop_seq;
use super::world::{BASELINE, PROCESS, World, attempt, snapshot};

fn away(world: &mut World, name: &AttemptRef) {
    let (op, _) = world.ops.remove(name).unwrap();
    let outcome = Err(Trouble::Away { why: "no answer".to_owned() });
    world.on(Event::Done { attempt: name.clone(), op, outcome });
}

/// The next try comes after exactly so long, and is asked for.
fn tried_again_after(world: &mut World, name: &AttemptRef, wait: u64) {
    let at = world.now.boot + Millis(wait);
    assert!(world.provider.poll_timeout().is_some_and(|next| next <= at), "nobody would ask at {at:?}");
    world.pass(Millis(wait - 1));
    assert_eq!(world.ops.get(name), None, "not before {wait} ms");
    world.pass(Millis(1));
    assert!(world.ops.contains_key(name), "after {wait} ms");
}

#[test]
fn what_gets_no_answer_is_tried_again_later_and_later_and_half_a_minute_at_most() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.assign(&name);
    for wait in [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000] {
        away(&mut world, &name);
        tried_again_after(&mut world, &name, wait);
    }
    world.work(&name);
    away(&mut world, &name);
    tried_again_after(&mut world, &name, 1_000);
}

#[test]
fn containers_are_listed_soon_after_the_first_list_and_seldom_then() {
    let mut world = World::new();
    let listed = |world: &mut World| world.take().contains(&Effect::ListOurs);
    world.take();
    for wait in [30_000, 300_000, 300_000] {
        world.pass(Millis(wait - 1));
        assert!(!listed(&mut world), "not before {wait} ms");
        world.pass(Millis(1));
        assert!(listed(&mut world), "after {wait} ms");
        world.on(Event::Found(Inventory::default()));
    }
    // What somebody left may still be held by a container.
    let left = [attempt(9)].into();
    world.on(Event::Found(Inventory { left, ..Inventory::default() }));
    world.take();
    world.pass(Millis(29_999));
    assert!(!listed(&mut world));
    world.pass(Millis(1));
    assert!(listed(&mut world));
}

fn offers(effects: &[Effect]) -> usize {
    let told = |effect: &&Effect| matches!(effect, Effect::ToRelay(ToRelay::Offer { .. }));
    effects.iter().filter(told).count()
}

#[test]
fn an_offer_is_said_again_with_each_sixth_renewal_and_time_that_passes_is_no_news() {
    let mut world = World::new();
    // Figures that get old are news.
    world.on(Event::Gpus(Box::new(GpuView::none("no GPU is here"))));
    world.take();
    let until = WallMs(world.now.wall.0 + 3_600_000);
    let until_then = |at| ShareRequest { on: Some(true), until: Some(at), ..ShareRequest::default() };
    let call = world.call();
    world.on(Event::Share { call, request: until_then(until) });
    assert_eq!(offers(&world.take()), 1);
    let mut told = Vec::new();
    for renewal in 2..=13 {
        world.pass(Millis::from_secs(10));
        if offers(&world.take()) > 0 {
            told.push(renewal);
        }
    }
    assert_eq!(told, [6, 12], "the first renewal came with the session");
    let (call, later) = (world.call(), WallMs(until.0 + 1_000));
    world.on(Event::Share { call, request: until_then(later) });
    assert_eq!(offers(&world.take()), 1, "another end is news");
    world.on(Event::LinkUp { terms: Terms::default(), epoch: Epoch(1) });
    assert_eq!(offers(&world.take()), 1, "and so is a session");
}

/// Takes a checkpoint up to its second pass, which finds this newest change.
fn two_passes(world: &mut World, name: &AttemptRef, newest_change_ns: i64) {
    assert_eq!(world.work(name), Some(Operation::PassOne));
    let seq = stop_seq(&world.take()).unwrap();
    world.init(name, FromInit::Stopped { seq, processes: 1, running: 0, took_us: 100 });
    let (op, what) = world.ops.remove(name).unwrap();
    assert_eq!(what, Operation::PassTwo);
    let taken = Taken { snapshot: snapshot(7), bytes: 10, new_bytes: 10, newest_change_ns };
    world.on(Event::Done { attempt: name.clone(), op, outcome: Ok(Outcome::Taken(taken)) });
}

fn is_uploaded(world: &mut World, name: &AttemptRef) -> bool {
    let uploads = matches!(world.ops.get(name), Some((_, Operation::Upload { .. })));
    if uploads {
        world.work(name);
        let seen = ToAgent::Published { attempt: name.clone(), snapshot: snapshot(7) };
        world.on(Event::Relay(Box::new(seen)));
    }
    uploads
}

#[test]
fn a_checkpoint_without_news_does_not_travel_and_one_that_is_quiet_now_does() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    let every = world.provider.attempt(&name).unwrap().record.assignment.spec.checkpoint.every.unwrap().0;
    // Not said to be saved, saved, the same once more, then changed.
    for (saved, newest, travels) in
        [(None, 500, true), (Some(600), 500, true), (None, 500, false), (None, 700, true)]
    {
        match saved {
            // At once.
            Some(at_ns) => world.init(&name, FromInit::Saved { at_ns }),
            None => world.pass(every),
        }
        two_passes(&mut world, &name, newest);
        assert_eq!(is_uploaded(&mut world, &name), travels, "newest change {newest}, saved {saved:?}");
    }
}

#[test]
fn a_result_that_could_not_be_read_is_tried_again_when_its_time_has_come() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    world.init(&name, FromInit::Exited(Exit::Code { code: 0 }));
    world.gone(&name);
    let (op, _) = world.ops.remove(&name).unwrap();
    let why = "no answer".to_owned();
    world.on(Event::Done { attempt: name.clone(), op, outcome: Err(Trouble::Away { why }) });
    let next = world.provider.poll_timeout().unwrap();
    assert!(next <= world.now.boot + Millis(1_000), "{next:?}");
    world.pass(Millis(1_000));
    assert_eq!(world.work(&name), Some(Operation::Whole));
}

#[test]
fn lending_again_forgets_a_reclaim_that_was_answered_and_nothing_else_does() {
    let mut world = World::sharing();
    world.run(&attempt(1));
    world.gpu(BASELINE + 900, &[(PROCESS.pid, PROCESS.start_time, 900)]);
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    world.gone(&attempt(1));
    world.pass(Millis::from_secs(10));
    let share = |world: &mut World, on| {
        let call = world.call();
        world.on(Event::Share { call, request: ShareRequest { on, ..ShareRequest::default() } });
        world.provider.share_status().why
    };
    assert_eq!(share(&mut world, None), "Nothing is lent: sharing is off");
    world.take();
    let why = share(&mut world, Some(true));
    assert!(!why.contains("under way"), "{why}");
    assert!(world.effects.contains(&Effect::WatchGpus { fast: false }), "nobody waits for the GPUs any more");
}

#[test]
fn an_end_that_was_seen_is_followed_by_a_renewal_without_it_soon() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    world.pass(Millis(1));
    world.on(Event::Relay(Box::new(ToAgent::EndSeen { attempt: name })));
    world.take();
    let renews =
        |world: &World| world.effects.iter().any(|e| matches!(e, Effect::ToRelay(ToRelay::Renew { .. })));
    world.pass(Millis(499));
    assert!(!renews(&world));
    world.pass(Millis(1));
    assert!(renews(&world), "the GPU is free for the next job");
}

#[test]
fn the_gpus_are_read_fast_while_a_reclaim_waits_for_them_and_no_longer() {
    let mut world = World::sharing();
    world.run(&attempt(1));
    world.gpu(BASELINE + 900, &[(PROCESS.pid, PROCESS.start_time, 900)]);
    world.take();
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    assert!(world.effects.contains(&Effect::WatchGpus { fast: true }));
    world.gone(&attempt(1));
    assert!(!world.effects.contains(&Effect::WatchGpus { fast: false }));
    world.now.boot = world.now.boot + Millis(100);
    world.gpu(BASELINE, &[]);
    assert!(world.effects.contains(&Effect::WatchGpus { fast: false }));
}
