//! The pause: who leaves, what is lent afterwards, and what a clock that is set does to it.

use gpunion_protocol::guest::ToInit;
use gpunion_protocol::ids::GpuUuid;
use gpunion_protocol::local::{PauseRequest, ShareRequest, Wish};
use gpunion_protocol::problem::Code;
use gpunion_protocol::time::{Millis, WallMs};
use gpunion_protocol::units::Span;

use super::super::effect::{Effect, Word};
use super::super::event::Event;
use super::world::{GPU, World, attempt};

const HOUR: Millis = Millis(3_600_000);

fn pause(world: &mut World, request: PauseRequest) {
    let call = world.call();
    world.on(Event::Pause { call, request });
}

fn for_an_hour(world: &mut World) {
    pause(world, PauseRequest { length: Some(Span(HOUR)), ..PauseRequest::default() });
}

fn resume(world: &mut World) {
    pause(world, PauseRequest { resume: true, ..PauseRequest::default() });
}

fn gpu() -> GpuUuid {
    GpuUuid(GPU.to_owned())
}

fn is_told_to_leave(world: &World) -> bool {
    let leave = |e: &Effect| matches!(e, Effect::Say { word: Word::Plain(ToInit::Leave { .. }), .. });
    world.effects.iter().any(leave)
}

fn refusal(world: &World) -> Option<Code> {
    world.effects.iter().rev().find_map(|effect| match effect {
        Effect::ShareAnswer { answer: Err(problem), .. } => Some(problem.code),
        _ => None,
    })
}

/// The clock on the wall is set.
fn set_clock(world: &mut World, by: i64) {
    world.now.wall.0 += by;
    world.on(Event::Timeout);
}

#[test]
fn f47_a_pause_ends_when_it_was_said_to_and_not_before() {
    let mut world = World::sharing();
    world.run(&attempt(1));
    world.take();
    for_an_hour(&mut world);
    let until = Some(WallMs(world.now.wall.0 + 3_600_000));
    assert!(is_told_to_leave(&world), "guests leave");
    assert_eq!(world.provider.share_status().wish, Wish::PausedUntil { until }, "with its end (F48)");
    assert!(!world.provider.is_open() && !world.provider.offer(world.now).open);
    world.pass(Millis(HOUR.0 - 1));
    assert!(!world.provider.is_open());
    let next = world.provider.poll_timeout().unwrap();
    assert!(next <= world.now.boot + Millis(1), "it lends again on time, not at the next look");
    world.pass(Millis(1));
    assert!(world.provider.is_open());
    assert_eq!(world.provider.wish_of(&gpu()), Wish::Sharing { until: None });
}

#[test]
fn f47_a_pause_without_an_end_lasts_until_it_is_ended() {
    let mut world = World::sharing();
    pause(&mut world, PauseRequest::default());
    world.pass(Millis::from_secs(400 * 24 * 3_600));
    assert!(!world.provider.is_open());
    world.crash();
    world.arrive();
    assert_eq!(world.provider.share_status().wish, Wish::PausedUntil { until: None }, "after a restart");
    resume(&mut world);
    assert!(world.provider.is_open());
}

#[test]
fn a_pause_gives_back_what_was_lent_and_nothing_more() {
    let mut world = World::sharing();
    let request = ShareRequest { on: Some(false), gpu: Some(gpu()), ..ShareRequest::default() };
    let call = world.call();
    world.on(Event::Share { call, request });
    for_an_hour(&mut world);
    assert_eq!(world.provider.wish_of(&gpu()), Wish::NotSharing);
    resume(&mut world);
    assert!(world.provider.is_open());
    assert_eq!(world.provider.wish_of(&gpu()), Wish::NotSharing, "it was not lent before");
}

#[test]
fn what_is_taken_back_in_a_pause_is_not_lent_after_it() {
    let mut world = World::sharing();
    for_an_hour(&mut world);
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    world.gpu(0, &[]);
    world.pass(HOUR);
    assert_eq!(world.provider.wish_of(&gpu()), Wish::NotSharing);
    assert!(!world.provider.is_open());
    world.share(true);
    assert!(world.provider.is_open(), "and no pause is left over");
}

#[test]
fn lending_the_machine_ends_a_pause_and_lending_that_was_to_end_in_it_is_over() {
    let mut world = World::sharing();
    for_an_hour(&mut world);
    world.share(true);
    assert!(world.provider.is_open());

    let until = Some(WallMs(world.now.wall.0 + 60_000));
    let call = world.call();
    world.on(Event::Share {
        call,
        request: ShareRequest { on: Some(true), until, ..ShareRequest::default() },
    });
    for_an_hour(&mut world);
    world.pass(HOUR);
    assert_eq!(world.provider.share_status().wish, Wish::NotSharing);
}

#[test]
fn a_clock_that_is_set_changes_no_length_and_moves_a_time_of_day() {
    for by in [-7_200_000, 7_200_000] {
        let mut world = World::sharing();
        for_an_hour(&mut world);
        set_clock(&mut world, by);
        assert!(!world.provider.is_open(), "{by}");
        world.pass(Millis(HOUR.0 - 1));
        assert!(!world.provider.is_open(), "{by}");
        world.pass(Millis(1));
        assert!(world.provider.is_open(), "{by}");
    }
    let mut world = World::sharing();
    let until = Some(WallMs(world.now.wall.0 + 3_600_000));
    pause(&mut world, PauseRequest { until, ..PauseRequest::default() });
    set_clock(&mut world, 3_600_000);
    assert!(world.provider.is_open(), "the clock shows that time");
}

#[test]
fn a_pause_of_nothing_and_one_that_makes_no_sense_are_refused() {
    let mut world = World::new();
    for_an_hour(&mut world);
    assert_eq!(refusal(&world), Some(Code::Conflict));
    let mut world = World::sharing();
    let past = Some(WallMs(world.now.wall.0));
    let both = PauseRequest { length: Some(Span(HOUR)), until: past, resume: false };
    for request in [
        PauseRequest { until: past, ..PauseRequest::default() },
        both,
        PauseRequest { length: Some(Span(HOUR)), resume: true, ..PauseRequest::default() },
    ] {
        world.take();
        pause(&mut world, request);
        assert_eq!(refusal(&world), Some(Code::BadRequest));
        assert!(world.provider.is_open());
    }
}
