//! Leaving with notice: who is told, what is waited for, and what of the work is kept.

use gpunion_protocol::guest::{Exit, FromInit, ToInit};
use gpunion_protocol::ids::Epoch;
use gpunion_protocol::job::{AttemptState, Checkpoint, EndCause, Quality};
use gpunion_protocol::local::ShareRequest;
use gpunion_protocol::session::{Terms, ToAgent, ToRelay};
use gpunion_protocol::time::{BootMs, Millis, WallMs};
use gpunion_protocol::units::Span;

use super::super::effect::{Effect, Operation, Word};
use super::super::event::{Event, Outcome, Taken, Trouble};
use super::super::record::Phase;
use super::flows::{ended, receipt, stop_seq};
use super::world::{BASELINE, GPU, World, assignment, attempt, engine, snapshot};

const MINUTE: Millis = Millis(60_000);

fn leave_word(effects: &[Effect]) -> Option<(i32, BootMs)> {
    effects.iter().rev().find_map(|effect| match effect {
        Effect::Say { word: Word::Plain(ToInit::Leave { signal, deadline, .. }), .. } => {
            Some((*signal, *deadline))
        }
        _ => None,
    })
}

fn is_ended_by_word(effects: &[Effect]) -> bool {
    effects.iter().any(|e| matches!(e, Effect::Say { word: Word::Plain(ToInit::End { .. }), .. }))
}

fn published(effects: &[Effect]) -> Option<Checkpoint> {
    effects.iter().rev().find_map(|effect| match effect {
        Effect::ToRelay(ToRelay::Publish { checkpoint, .. }) => Some(checkpoint.clone()),
        _ => None,
    })
}

pub(super) fn phase(world: &World) -> Phase {
    world.provider.attempt(&attempt(1)).unwrap().record.phase.clone()
}

/// A guest that computes, and whose owner has just stopped lending.
fn told() -> World {
    let mut world = World::sharing();
    world.run(&attempt(1));
    world.take();
    world.share(false);
    world
}

/// In nanoseconds, as the guest's files tell it.
fn wall_ns(world: &World) -> i64 {
    world.now.wall.0 * 1_000_000
}

/// Its processes are gone and nothing fails: the last checkpoint is taken, sent and accepted.
fn leaves(world: &mut World) -> Checkpoint {
    let name = attempt(1);
    world.gone(&name);
    while world.work(&name).is_some_and(|done| !matches!(done, Operation::Upload { .. })) {}
    let checkpoint = published(&world.effects).expect("a last checkpoint is published");
    let answer = ToAgent::Published { attempt: name, snapshot: checkpoint.snapshot };
    world.on(Event::Relay(Box::new(answer)));
    checkpoint
}

#[test]
fn a_job_that_must_leave_is_told_and_given_its_grace() {
    let world = told();
    let (signal, deadline) = leave_word(&world.effects).expect("it is told");
    assert_eq!((signal, deadline), (15, world.now.boot + MINUTE));
    assert!(!is_ended_by_word(&world.effects), "it may compute until then");
    let record = &world.provider.attempt(&attempt(1)).unwrap().record;
    assert_eq!(record.told_to_leave, Some(world.now.wall), "written before it hears of it");
    assert_eq!(world.provider.share_status().leaving, 1);
}

#[test]
fn a_job_that_says_saved_leaves_at_once_and_loses_nothing() {
    let mut world = told();
    world.pass(Millis(3_000));
    world.take();
    let at_ns = wall_ns(&world);
    world.init(&attempt(1), FromInit::Saved { at_ns });
    assert!(is_ended_by_word(&world.effects));
    assert_eq!(phase(&world), Phase::Leaving { exited: false, reclaimed: false });
    assert_eq!(world.provider.attempt(&attempt(1)).unwrap().state(), AttemptState::Saving);
    assert_eq!(leaves(&mut world).quality, Quality::Quiet);
    assert_eq!(ended(&world.take()), Some((EndCause::Left, false)));
}

#[test]
fn what_it_saved_before_it_was_told_is_no_answer() {
    let mut world = told();
    let at_ns = wall_ns(&world) - 1;
    world.init(&attempt(1), FromInit::Saved { at_ns });
    assert_eq!(phase(&world), Phase::Running);
}

#[test]
fn a_job_that_ignores_the_word_is_ended_when_its_grace_is_over() {
    let mut world = told();
    world.pass(Millis(MINUTE.0 - 1));
    assert_eq!(phase(&world), Phase::Running);
    world.pass(Millis(1));
    assert!(is_ended_by_word(&world.effects));
    leaves(&mut world);
    assert_eq!(ended(&world.take()), Some((EndCause::Left, false)));
}

#[test]
fn the_owners_limit_on_grace_wins_over_the_specs() {
    let mut world = World::sharing();
    world.run(&attempt(1));
    let call = world.call();
    let grace = Some(Span(Millis(5_000)));
    let request = ShareRequest { on: Some(false), grace, ..ShareRequest::default() };
    world.on(Event::Share { call, request });
    assert_eq!(leave_word(&world.effects).unwrap().1, world.now.boot + Millis(5_000));
    world.pass(Millis(5_000));
    assert_eq!(phase(&world), Phase::Leaving { exited: false, reclaimed: false });
}

#[test]
fn whoever_exits_when_it_is_told_has_not_finished_its_work() {
    for (exit, quality) in [
        (Exit::Code { code: 0 }, Quality::Quiet),
        (Exit::Code { code: 1 }, Quality::Quiet),
        // It was killed in the middle of whatever it did.
        (Exit::Code { code: 143 }, Quality::Running),
        (Exit::Signal { signal: 15 }, Quality::Running),
    ] {
        let mut world = told();
        world.init(&attempt(1), FromInit::Exited(exit));
        assert_eq!(phase(&world), Phase::Leaving { exited: true, reclaimed: false });
        assert_eq!(leaves(&mut world).quality, quality, "{exit:?}");
        assert_eq!(ended(&world.take()), Some((EndCause::Left, false)), "{exit:?}");
    }
}

#[test]
fn an_exit_after_the_word_is_a_leave_also_when_the_agent_was_killed_in_between() {
    let mut world = told();
    world.crash();
    world.on(engine());
    let runs = world.running_container(&attempt(1));
    world.found(vec![runs]);
    world.on(Event::LinkUp { terms: Terms::default(), epoch: Epoch(1) });
    world.init(&attempt(1), FromInit::Hello { version: 1, begun: true });
    assert!(leave_word(&world.effects).is_some(), "the word may have been lost: it is said again");
    world.init(&attempt(1), FromInit::Exited(Exit::Code { code: 0 }));
    leaves(&mut world);
    assert_eq!(ended(&world.take()), Some((EndCause::Left, false)));
}

#[test]
fn a_guest_that_is_killed_by_others_on_its_way_out_keeps_what_it_wrote() {
    let mut world = told();
    leaves(&mut world);
    assert_eq!(ended(&world.take()), Some((EndCause::Left, false)));
}

#[test]
fn the_memory_limit_stays_its_members() {
    let mut world = told();
    let word = FromInit::Exited(Exit::Signal { signal: 9 });
    world.on(Event::Init { attempt: attempt(1), word, memory_limit: true });
    world.gone(&attempt(1));
    while world.work(&attempt(1)).is_some() {}
    assert_eq!(ended(&world.take()).map(|(cause, _)| cause), Some(EndCause::MemoryLimit));
}

#[test]
fn what_has_not_begun_goes_at_once() {
    let mut world = World::sharing();
    world.assign(&attempt(1));
    world.take();
    world.share(false);
    assert_eq!(ended(&world.take()), Some((EndCause::Left, false)));
}

#[test]
fn a_first_pass_that_is_under_way_is_used() {
    let mut world = told();
    let name = attempt(1);
    assert_eq!(world.ops.get(&name).map(|(_, what)| *what), Some(Operation::PassOne), "taken meanwhile");
    let at_ns = wall_ns(&world);
    world.init(&name, FromInit::Saved { at_ns });
    assert_eq!(world.work(&name), Some(Operation::PassOne));
    world.gone(&name);
    assert_eq!(world.work(&name), Some(Operation::PassTwo), "only what has changed since is read");
}

#[test]
fn a_first_pass_that_is_lost_costs_a_whole_one() {
    let mut world = told();
    let name = attempt(1);
    let at_ns = wall_ns(&world);
    world.init(&name, FromInit::Saved { at_ns });
    world.work(&name);
    world.gone(&name);
    let (op, what) = world.ops.remove(&name).unwrap();
    assert_eq!(what, Operation::PassTwo);
    let why = "the first pass is gone".to_owned();
    world.on(Event::Done { attempt: name.clone(), op, outcome: Err(Trouble::Away { why }) });
    world.pass(Millis(1_000));
    assert_eq!(world.work(&name), Some(Operation::Whole));
}

#[test]
fn what_the_relay_has_already_is_not_sent_again() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    world.init(&name, FromInit::Saved { at_ns: 600 });
    assert_eq!(world.work(&name), Some(Operation::PassOne));
    let seq = stop_seq(&world.effects).unwrap();
    world.init(&name, FromInit::Stopped { seq, processes: 1, running: 0, took_us: 1 });
    assert_eq!(world.work(&name), Some(Operation::PassTwo));
    assert!(matches!(world.work(&name), Some(Operation::Upload { .. })));
    let message = ToAgent::Published { attempt: name.clone(), snapshot: snapshot(7) };
    world.on(Event::Relay(Box::new(message)));
    assert!(world.provider.attempt(&name).unwrap().record.published.is_some());
    world.share(false);
    world.take();
    world.pass(MINUTE);
    world.gone(&name);
    while world.work(&name).is_some_and(|what| what != Operation::Clean) {}
    let effects = world.take();
    assert_eq!(published(&effects), None);
    assert_eq!(ended(&effects), Some((EndCause::Left, false)));
}

#[test]
fn a_reclaim_ends_who_is_leaving_and_a_saved_workspace_stays_wanted() {
    let mut world = told();
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    assert_eq!(phase(&world), Phase::Ending { cause: EndCause::Reclaimed }, "now is sooner than soon");

    let mut world = told();
    world.init(&attempt(1), FromInit::Exited(Exit::Code { code: 0 }));
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    assert_eq!(phase(&world), Phase::Leaving { exited: true, reclaimed: false });
    leaves(&mut world);
}

#[test]
fn lending_until_a_time_ends_with_the_machine_free() {
    let mut world = World::new();
    let until = Some(WallMs(world.now.wall.0 + 600_000));
    let call = world.call();
    world.on(Event::Share {
        call,
        request: ShareRequest { on: Some(true), until, ..ShareRequest::default() },
    });
    let mut wanted = assignment(&attempt(1), &[GPU]);
    wanted.spec.checkpoint.grace = Span(Millis(30_000));
    world.assign_this(wanted);
    for _ in 0..4 {
        world.work(&attempt(1));
    }
    world.init(&attempt(1), FromInit::Started { pid: 2 });
    world.take();
    world.pass(Millis(569_999));
    assert_eq!(leave_word(&world.effects), None);
    let next = world.provider.poll_timeout().unwrap();
    assert!(next <= world.now.boot + Millis(1), "it is told on time, not at the next look");
    world.pass(Millis(1));
    assert!(leave_word(&world.effects).is_some());
    world.pass(Millis(30_000));
    assert_eq!(phase(&world), Phase::Leaving { exited: false, reclaimed: false });
}

#[test]
fn a_workspace_that_can_not_be_read_is_given_up_and_the_job_goes_on() {
    let mut world = told();
    let name = attempt(1);
    world.init(&name, FromInit::Exited(Exit::Code { code: 0 }));
    world.gone(&name);
    for _ in 0..20 {
        if let Some((op, what)) = world.ops.remove(&name) {
            let reason = "a file can't be read".to_owned();
            let outcome: Result<Outcome, Trouble> = Err(Trouble::Refused { reason });
            world.on(Event::Done { attempt: name.clone(), op, outcome });
            if what == Operation::Clean {
                break;
            }
        }
        world.pass(Millis::from_secs(31));
    }
    assert_eq!(ended(&world.take()), Some((EndCause::Left, false)));
}

#[test]
fn a_last_checkpoint_that_is_refused_is_sent_again_until_the_end_is_told() {
    let mut world = told();
    let name = attempt(1);
    world.init(&name, FromInit::Exited(Exit::Code { code: 0 }));
    world.gone(&name);
    while world.work(&name).is_some_and(|done| !matches!(done, Operation::Upload { .. })) {}
    let snapshot = published(&world.effects).unwrap().snapshot;
    let reason = "its snapshot is not here".to_owned();
    world.on(Event::Relay(Box::new(ToAgent::PublishRefused { attempt: name.clone(), snapshot, reason })));
    assert_eq!(ended(&world.effects), None);
    world.pass(Millis(1_000));
    assert!(matches!(world.work(&name), Some(Operation::Upload { .. })));
    world.on(Event::Relay(Box::new(ToAgent::End { attempt: name, cause: EndCause::Stale })));
    assert_eq!(ended(&world.take()), Some((EndCause::Stale, false)));
}

#[test]
fn nobody_waits_for_a_last_checkpoint_longer_than_its_work_took() {
    for (computed, waits) in [(10_u64, 60_u64), (600, 600)] {
        let mut world = World::sharing();
        let name = attempt(1);
        world.run(&name);
        world.ops.clear();
        world.pass(Millis::from_secs(computed));
        world.ops.clear();
        world.share(false);
        world.init(&name, FromInit::Exited(Exit::Code { code: 0 }));
        world.gone(&name);
        world.take();
        world.pass(Millis(waits * 1_000 - 1));
        assert_eq!(ended(&world.effects), None, "{computed}");
        world.pass(Millis(1));
        assert_eq!(ended(&world.take()), Some((EndCause::Left, false)), "{computed}");
    }
}

#[test]
fn the_receipt_of_a_job_that_is_salvaged_is_kept_and_its_end_is_that_of_its_guest() {
    let mut world = reclaimed_after(Millis(30_000));
    let end = world.now.wall;
    world.gone(&attempt(1));
    world.now.boot = world.now.boot + Millis(200);
    world.gpu(BASELINE, &[]);
    let made = receipt(&world.effects).expect("the receipt waits for no salvage");
    world.crash();
    assert_eq!(world.provider.last_receipt(), Some(&made), "it is on disk");
    world.arrive();
    world.pass(Millis::from_secs(5));
    leaves(&mut world);
    let entry = world.provider.history().last().unwrap();
    assert_eq!((entry.receipt.as_ref(), entry.until), (Some(&made), end));
}

#[test]
fn an_agent_that_is_killed_while_the_last_checkpoint_is_taken_takes_it_again() {
    let mut world = told();
    let name = attempt(1);
    let at_ns = wall_ns(&world);
    world.init(&name, FromInit::Saved { at_ns });
    world.crash();
    world.arrive();
    world.found(Vec::new());
    assert_eq!(world.work(&name), Some(Operation::Whole));
    world.work(&name);
    assert!(published(&world.effects).is_some());
}

/// A guest that computed for this long since it began, and was reclaimed.
pub(super) fn reclaimed_after(time: Millis) -> World {
    let mut world = World::sharing();
    world.run(&attempt(1));
    world.pass(time);
    world.ops.clear();
    world.take();
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    world
}

#[test]
fn what_a_reclaimed_job_left_is_salvaged_and_the_end_is_told_after_that() {
    let mut world = reclaimed_after(Millis(30_000));
    world.gone(&attempt(1));
    assert_eq!(phase(&world), Phase::Leaving { exited: false, reclaimed: true });
    assert_eq!(ended(&world.effects), None);
    assert_eq!(world.provider.share_status().leaving, 0, "its GPU is the owner's already");
    leaves(&mut world);
    assert_eq!(ended(&world.take()), Some((EndCause::Reclaimed, false)));
}

#[test]
fn little_work_or_an_owner_who_forbids_it_leaves_nothing_to_salvage() {
    let mut world = reclaimed_after(Millis(1_000));
    world.gone(&attempt(1));
    assert_eq!(ended(&world.take()), Some((EndCause::Reclaimed, false)));

    let mut world = World::sharing();
    let call = world.call();
    world
        .on(Event::Share { call, request: ShareRequest { salvage: Some(false), ..ShareRequest::default() } });
    world.run(&attempt(1));
    world.pass(Millis(30_000));
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    world.gone(&attempt(1));
    assert_eq!(ended(&world.take()), Some((EndCause::Reclaimed, false)));
}

#[test]
fn a_salvage_that_fails_or_takes_longer_than_it_saves_is_given_up() {
    let name = attempt(1);
    let mut world = reclaimed_after(Millis(30_000));
    world.gone(&name);
    let (op, _) = world.ops.remove(&name).unwrap();
    let why = "the engine does not answer".to_owned();
    world.on(Event::Done { attempt: name.clone(), op, outcome: Err(Trouble::Away { why }) });
    assert_eq!(ended(&world.take()), Some((EndCause::Reclaimed, false)), "the job is not kept waiting");

    let mut world = reclaimed_after(Millis(30_000));
    world.gone(&name);
    world.pass(Millis(29_999));
    assert_eq!(ended(&world.effects), None);
    world.pass(Millis(1));
    assert_eq!(ended(&world.take()), Some((EndCause::Reclaimed, false)));
}

#[test]
fn one_refusal_or_a_relay_that_is_away_for_long_gives_nothing_up() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    world.pass(Millis::from_secs(3_600));
    world.share(false);
    world.take();
    world.init(&name, FromInit::Exited(Exit::Code { code: 0 }));
    world.gone(&name);
    assert_eq!(world.work(&name), Some(Operation::PassOne));
    let fails = |world: &mut World, trouble: Trouble| {
        let (op, _) = world.ops.remove(&name).unwrap();
        world.on(Event::Done { attempt: name.clone(), op, outcome: Err(trouble) });
        world.pass(Millis::from_secs(31));
    };
    fails(&mut world, Trouble::Refused { reason: "a file changed".to_owned() });
    for _ in 0..20 {
        fails(&mut world, Trouble::Away { why: "no answer".to_owned() });
    }
    assert_eq!(ended(&world.effects), None);
    assert_eq!(world.work(&name), Some(Operation::Whole));
}

#[test]
fn a_salvage_waits_for_a_relay_that_is_away_and_for_nothing_else() {
    let name = attempt(1);
    let away = |world: &mut World| {
        let (op, what) = world.ops.remove(&name).unwrap();
        assert!(matches!(what, Operation::Upload { .. }));
        let why = "no answer".to_owned();
        world.on(Event::Done { attempt: name.clone(), op, outcome: Err(Trouble::Away { why }) });
    };
    let mut world = reclaimed_after(Millis(60_000));
    world.gone(&name);
    assert_eq!(world.work(&name), Some(Operation::Whole));
    world.on(Event::LinkDown { why: "cut".to_owned() });
    away(&mut world);
    world.pass(Millis(1_000));
    assert!(matches!(world.work(&name), Some(Operation::Upload { .. })), "it is tried again");

    let mut world = reclaimed_after(Millis(60_000));
    world.gone(&name);
    world.work(&name);
    away(&mut world);
    assert_eq!(ended(&world.take()), Some((EndCause::Reclaimed, false)));
}

#[test]
fn a_salvage_whose_upload_would_take_longer_than_it_saves_is_not_sent() {
    let name = attempt(1);
    for (new_bytes, sent) in [(200_u64 << 20, true), (1_000 << 20, false)] {
        // At 10 MiB/s, which is what is taken until something was measured: 20 s and 100 s.
        let mut world = reclaimed_after(Millis(30_000));
        world.gone(&name);
        let (op, _) = world.ops.remove(&name).unwrap();
        let taken = Taken { snapshot: snapshot(9), bytes: new_bytes, new_bytes, newest_change_ns: 900 };
        world.on(Event::Done { attempt: name.clone(), op, outcome: Ok(Outcome::Taken(taken)) });
        let upload = world.ops.get(&name).map(|(_, what)| *what);
        assert_eq!(matches!(upload, Some(Operation::Upload { .. })), sent, "{new_bytes}");
        assert_eq!(ended(&world.take()).is_none(), sent);
    }
}

#[test]
fn an_agent_that_is_told_to_stop_lets_its_guests_leave_first() {
    let mut world = World::sharing();
    world.run(&attempt(1));
    assert!(world.provider.may_stop(), "nobody asked it to wait");
    world.take();
    world.on(Event::Stopping);
    assert!(leave_word(&world.effects).is_some());
    assert!(!world.provider.may_stop() && !world.provider.is_open());
    assert!(world.provider.share_status().why.contains("stopping"));
    let at_ns = wall_ns(&world);
    world.init(&attempt(1), FromInit::Saved { at_ns });
    leaves(&mut world);
    assert!(!world.provider.may_stop(), "its end is not told yet");
    world.on(Event::Relay(Box::new(ToAgent::EndSeen { attempt: attempt(1) })));
    assert!(!world.provider.may_stop(), "its container is there");
    world.work(&attempt(1));
    assert!(world.provider.may_stop());
    // The owner lends as before: the next agent opens again by itself.
    world.crash();
    world.arrive();
    assert!(world.provider.is_open());
}

#[test]
fn one_whose_relay_is_away_stops_at_once_and_leaves_its_guests_as_they_are() {
    let mut world = World::sharing();
    world.run(&attempt(1));
    world.take();
    world.on(Event::LinkDown { why: "cut".to_owned() });
    world.on(Event::Stopping);
    assert!(world.provider.may_stop());
    assert_eq!(leave_word(&world.effects), None);
    // A relay that goes while they leave: what could be done without it is done first.
    let mut world = World::sharing();
    world.run(&attempt(1));
    world.on(Event::Stopping);
    world.on(Event::LinkDown { why: "cut".to_owned() });
    assert!(!world.provider.may_stop());
    world.pass(MINUTE);
    world.gone(&attempt(1));
    for _ in 0..10 {
        world.work(&attempt(1));
        world.pass(MINUTE);
    }
    assert!(world.provider.may_stop(), "{:?}", phase(&world));
}
