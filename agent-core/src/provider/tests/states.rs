//! What the same word of init, engine or driver means in each state of an attempt.

use gpunion_protocol::guest::{Exit, FromInit, ToInit};
use gpunion_protocol::job::{AttemptState, EndCause, PrepareStep, StopWhy};
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_protocol::time::Millis;

use super::super::effect::{Effect, Operation, Word};
use super::super::event::{Engine, Event, Found};
use super::super::record::Phase;
use super::flows::{ended, stop_seq};
use super::world::{PROCESS, World, assignment, attempt, engine, snapshot};
use crate::gpu::verify::ProcessId;

fn running() -> World {
    let mut world = World::sharing();
    world.run(&attempt(1));
    world.take();
    world
}

/// Prepared by so many operations: its image, its workspace, its container, its start.
fn prepared(steps: usize) -> World {
    let mut world = World::sharing();
    world.assign(&attempt(1));
    for _ in 0..steps {
        world.work(&attempt(1));
    }
    world.take();
    world
}

/// In the stop of a checkpoint.
fn stopping() -> World {
    let mut world = running();
    world.init(&attempt(1), FromInit::Saved { at_ns: 1 });
    world.work(&attempt(1));
    world
}

fn phase(world: &World) -> Phase {
    world.provider.attempt(&attempt(1)).unwrap().record.phase.clone()
}

fn state(world: &World) -> AttemptState {
    world.provider.attempt(&attempt(1)).unwrap().state()
}

fn words(world: &mut World) -> Vec<Word> {
    let said = |effect| match effect {
        Effect::Say { word, .. } => Some(word),
        _ => None,
    };
    world.take().into_iter().filter_map(said).collect()
}

fn hello(world: &mut World, begun: bool) -> Vec<Word> {
    world.take();
    world.init(&attempt(1), FromInit::Hello { version: 1, begun });
    words(world)
}

fn gives_up(world: &mut World) -> bool {
    world.take().contains(&Effect::GiveUp { attempt: attempt(1) })
}

fn exits(world: &mut World) {
    world.take();
    world.init(&attempt(1), FromInit::Exited(Exit::Code { code: 0 }));
}

#[test]
fn an_init_that_says_hello_again_hears_what_it_may_have_missed() {
    assert_eq!(hello(&mut running(), false), [Word::Begin], "the word was lost");
    let again = hello(&mut running(), true);
    assert!(matches!(&again[..], [Word::Adopt, Word::Plain(ToInit::GoOn { .. })]), "{again:?}");
    assert_eq!(hello(&mut stopping(), true), [Word::Adopt], "it stands still for a checkpoint");

    let mut told = running();
    told.share(false);
    let again = hello(&mut told, true);
    let [Word::Adopt, Word::Plain(ToInit::GoOn { .. }), Word::Plain(ToInit::Leave { .. })] = &again[..]
    else {
        panic!("{again:?}")
    };
    let again = hello(&mut told, false);
    assert!(matches!(&again[..], [Word::Plain(ToInit::End { .. })]), "it has not begun: {again:?}");
    assert_eq!(phase(&told), Phase::Ending { cause: EndCause::Left });

    let mut exited = running();
    exits(&mut exited);
    assert_eq!(hello(&mut exited, true), [Word::Plain(ToInit::ExitSeen)]);
    let mut left = running();
    left.share(false);
    exits(&mut left);
    assert_eq!(hello(&mut left, true), [Word::Plain(ToInit::ExitSeen)]);
    let mut leaving = running();
    leaving.share(false);
    leaving.pass(Millis(60_000));
    let mut ending = running();
    ending.relay(ToAgent::End { attempt: attempt(1), cause: EndCause::Cancelled });
    for mut world in [leaving, ending] {
        let again = hello(&mut world, true);
        assert!(matches!(&again[..], [Word::Plain(ToInit::End { .. })]), "{again:?}");
    }
}

#[test]
fn an_init_that_was_started_early_may_live_and_what_began_stays_begun() {
    for steps in [1, 2] {
        let mut world = prepared(steps);
        assert!(!world.provider.attempt(&attempt(1)).unwrap().may_live());
        assert_eq!(hello(&mut world, false), []);
        assert!(world.provider.attempt(&attempt(1)).unwrap().may_live(), "after {steps} steps");
    }
    for (crash, begun) in [(false, true), (false, false), (true, true)] {
        let mut world = running();
        if crash {
            world.crash();
        }
        hello(&mut world, begun);
        let reason = "its image is gone".to_owned();
        world.on(Event::CannotBegin { attempt: attempt(1), reason });
        assert_eq!(phase(&world), Phase::Running, "crashed {crash}, begun {begun}");
    }
}

#[test]
fn how_a_program_ended_is_told_as_it_was() {
    for (exit, memory_limit, cause) in [
        (Exit::Code { code: 0 }, true, EndCause::Exited { code: 0 }),
        (Exit::Code { code: 137 }, true, EndCause::MemoryLimit),
        (Exit::Code { code: 137 }, false, EndCause::Exited { code: 137 }),
        (Exit::Signal { signal: 9 }, true, EndCause::MemoryLimit),
        (Exit::Signal { signal: 11 }, false, EndCause::Signalled { signal: 11 }),
    ] {
        let mut world = running();
        world.on(Event::Init { attempt: attempt(1), word: FromInit::Exited(exit), memory_limit });
        world.gone(&attempt(1));
        while world.work(&attempt(1)).is_some_and(|what| what != Operation::Clean) {}
        assert_eq!(ended(&world.take()), Some((cause, true)), "{exit:?}");
    }
    let mut world = running();
    world.init(&attempt(1), FromInit::NotStarted { reason: "no such file".to_owned() });
    assert_eq!(phase(&world), Phase::Finishing { exit: Exit::Code { code: 127 }, memory_limit: false });
    assert_eq!(world.provider.attempt(&attempt(1)).unwrap().note, Some("no such file".to_owned()));
}

#[test]
fn an_exit_is_answered_until_init_may_forget_it_and_otherwise_it_is_told_to_end() {
    let mut world = running();
    exits(&mut world);
    assert_eq!(words(&mut world), [Word::Plain(ToInit::ExitSeen)]);
    exits(&mut world);
    assert_eq!(words(&mut world), [Word::Plain(ToInit::ExitSeen)], "it may not have heard");
    let mut world = running();
    world.relay(ToAgent::End { attempt: attempt(1), cause: EndCause::Cancelled });
    exits(&mut world);
    assert!(matches!(words(&mut world)[..], [Word::Plain(ToInit::End { .. })]));
    assert_eq!(phase(&world), Phase::Ending { cause: EndCause::Cancelled }, "the first reason stands");
}

/// What an operation reads or sends is of no use any more once its program has ended.
#[test]
fn an_end_gives_up_what_is_under_way_and_nothing_else() {
    type End = fn(&mut World);
    let ends: [(&str, End); 2] = [("exit", exits), ("gone", |world| world.gone(&attempt(1)))];
    for (end, ends) in ends {
        let mut idle = running();
        ends(&mut idle);
        assert!(!gives_up(&mut idle), "{end}: nothing was under way");

        let mut stopping = stopping();
        stopping.take();
        assert_eq!(stopping.op(&attempt(1)), None);
        ends(&mut stopping);
        assert!(gives_up(&mut stopping), "{end} in a stop");

        let mut reading = stopping_to_pass_two();
        ends(&mut reading);
        assert_ne!(reading.op(&attempt(1)), Some(Operation::PassTwo), "{end}");

        let mut starting = prepared(3);
        assert_eq!(starting.op(&attempt(1)), Some(Operation::Start));
        ends(&mut starting);
        assert!(gives_up(&mut starting), "{end} while it starts");
        assert_ne!(starting.op(&attempt(1)), Some(Operation::Start), "{end}");
    }
}

fn stopping_to_pass_two() -> World {
    let mut world = stopping();
    let seq = stop_seq(&world.take()).unwrap();
    world.init(&attempt(1), FromInit::Stopped { seq, processes: 1, running: 0, took_us: 1 });
    assert_eq!(world.op(&attempt(1)), Some(Operation::PassTwo));
    world
}

/// The cgroup says so, whoever else wanted it to end.
#[test]
fn a_guest_that_its_memory_limit_killed_is_told_so() {
    let gone = |world: &mut World| {
        world.on(Event::GuestGone { attempt: attempt(1), memory_limit: true });
        ended(&world.take()).map(|(cause, _)| cause)
    };
    assert_eq!(gone(&mut running()), Some(EndCause::MemoryLimit));
    let mut told = running();
    told.share(false);
    assert_eq!(gone(&mut told), Some(EndCause::MemoryLimit), "also one that was told to leave");
    let mut ending = running();
    ending.relay(ToAgent::End { attempt: attempt(1), cause: EndCause::Cancelled });
    assert_eq!(gone(&mut ending), Some(EndCause::Cancelled), "but not one that was being ended");
}

#[test]
fn a_guest_whose_end_is_told_twice_has_ended_once() {
    let mut world = running();
    world.gone(&attempt(1));
    world.take();
    world.gone(&attempt(1));
    let ends = |effect: &Effect| matches!(effect, Effect::ToRelay(ToRelay::Ended { .. }));
    assert!(!world.take().iter().any(ends));
    assert_eq!(world.provider.history().len(), 1);
}

#[test]
fn a_checkpoint_s_stop_is_over_with_the_guest_s_end() {
    let mut world = stopping();
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    world.take();
    world.pass(Millis(2_000));
    let goes_on = |word: &Word| matches!(word, Word::Plain(ToInit::GoOn { .. }));
    assert!(!words(&mut world).iter().any(goes_on), "who is ended must not be told to go on");
}

#[test]
fn only_the_answer_to_what_is_at_the_relay_counts() {
    let mut world = stopping_to_pass_two();
    world.work(&attempt(1));
    world.work(&attempt(1));
    let step = |world: &World| world.provider.attempt(&attempt(1)).unwrap().checkpoint_step();
    world.relay(ToAgent::Published { attempt: attempt(1), snapshot: snapshot(8) });
    let reason = "no room".to_owned();
    world.relay(ToAgent::PublishRefused { attempt: attempt(1), snapshot: snapshot(8), reason });
    assert_eq!(step(&world), Some("publishing"));
    let one = world.provider.attempt(&attempt(1)).unwrap();
    assert_eq!((one.note.clone(), one.last_checkpoint(), one.record.published), (None, None, None));
    world.pass(Millis(500));
    world.relay(ToAgent::Published { attempt: attempt(1), snapshot: snapshot(7) });
    let one = world.provider.attempt(&attempt(1)).unwrap();
    assert_eq!(one.last_checkpoint(), Some((world.now.wall, Millis(0))));
    assert_eq!((one.record.published, step(&world)), (Some(snapshot(7)), None));
}

#[test]
fn how_long_the_last_checkpoint_s_stop_was_is_known() {
    let mut world = stopping_to_pass_two();
    world.pass(Millis(700));
    world.work(&attempt(1));
    world.work(&attempt(1));
    world.relay(ToAgent::Published { attempt: attempt(1), snapshot: snapshot(7) });
    let last = world.provider.attempt(&attempt(1)).unwrap().last_checkpoint();
    assert_eq!(last, Some((world.now.wall, Millis(700))));
}

#[test]
fn an_upload_that_runs_is_not_begun_again() {
    let mut world = stopping_to_pass_two();
    world.work(&attempt(1));
    world.take();
    world.pass(Millis(10_000));
    assert!(!world.take().iter().any(|effect| matches!(effect, Effect::Do { .. })));
}

#[test]
fn each_state_has_its_word_and_holds_its_gpus_until_its_guest_is_gone() {
    let seen = |world: &World| {
        let one = world.provider.attempt(&attempt(1)).unwrap();
        (one.state(), one.uses_gpus())
    };
    let preparing = |step| (AttemptState::Preparing { step }, true);
    assert_eq!(seen(&prepared(0)), preparing(PrepareStep::Pull));
    assert_eq!(seen(&prepared(1)), preparing(PrepareStep::Stage));
    assert_eq!(seen(&prepared(2)), preparing(PrepareStep::Stage));
    assert_eq!(seen(&prepared(3)), (AttemptState::Ready, true));
    let mut world = running();
    assert_eq!(seen(&world), (AttemptState::Running, true));
    assert_eq!(state(&stopping()), AttemptState::Stopped { why: StopWhy::Checkpoint });
    world.share(false);
    exits(&mut world);
    assert_eq!(seen(&world), (AttemptState::Saving, true), "its init is still there");
    world.gone(&attempt(1));
    assert_eq!(seen(&world), (AttemptState::Saving, false), "only files are left");
    let mut world = running();
    world.relay(ToAgent::End { attempt: attempt(1), cause: EndCause::Cancelled });
    assert_eq!(seen(&world), (AttemptState::Stopped { why: StopWhy::Reclaim }, true));
    world.gone(&attempt(1));
    assert_eq!(seen(&world), (AttemptState::Ended { cause: EndCause::Cancelled }, false));
}

#[test]
fn an_answer_is_awaited_once_and_a_first_word_only_for_who_runs() {
    let mut world = World::sharing();
    world.assign(&attempt(1));
    let op = world.ops[&attempt(1)].0;
    let awaits = |world: &World| world.provider.attempt(&attempt(1)).unwrap().awaits(op);
    assert!(awaits(&world));
    world.work(&attempt(1));
    assert!(!awaits(&world));

    let mut world = running();
    let say = |word| Effect::Say { attempt: attempt(1), word };
    let [begin, adopt] = [say(Word::Begin), say(Word::Adopt)];
    assert!(world.provider.still_wants(&begin) && world.provider.still_wants(&adopt));
    world.relay(ToAgent::End { attempt: attempt(1), cause: EndCause::Cancelled });
    assert!(!world.provider.still_wants(&begin) && !world.provider.still_wants(&adopt));
}

fn container(name: &str, process: Option<ProcessId>) -> Found {
    Found { attempt: attempt(1), container: name.to_owned(), process }
}

fn removed(world: &mut World, found: Vec<Found>) -> Vec<String> {
    world.take();
    world.found(found);
    let removed = |effect| match effect {
        Effect::RemoveContainer { container } => Some(container),
        _ => None,
    };
    world.take().into_iter().filter_map(removed).collect()
}

#[test]
fn which_container_may_stay_is_a_matter_of_the_books() {
    let other = || vec![container("other", None)];
    assert_eq!(removed(&mut prepared(0), other()), ["other"], "its image is still being pulled");
    for steps in [1, 2] {
        assert_eq!(removed(&mut prepared(steps), other()), [""; 0], "the one that is being made");
        let two = vec![container("one", None), container("two", None)];
        assert_eq!(removed(&mut prepared(steps), two), ["two"], "one attempt has one");
    }
    for mut world in [prepared(3), running()] {
        assert_eq!(removed(&mut world, other()), ["other"], "it has another one");
        assert_eq!(removed(&mut world, vec![container("container", Some(PROCESS))]), [""; 0]);
    }
    let mut over = running();
    over.gone(&attempt(1));
    assert_eq!(removed(&mut over, vec![container("container", None)]), [""; 0], "it is being cleaned away");
    over.work(&attempt(1));
    assert_eq!(removed(&mut over, vec![container("container", None)]), ["container"]);
}

/// After a restart of the agent; before, its init is watched.
#[test]
fn what_the_list_says_of_a_guest_that_nobody_watches() {
    let compared = |mut world: World, found: Vec<Found>| {
        world.crash();
        world.on(engine());
        world.take();
        world.found(found);
        let attached = world.take().iter().any(|effect| matches!(effect, Effect::Attach { .. }));
        (attached, phase(&world).is_over())
    };
    let mine = |process| vec![container("container", process)];
    let stranger = ProcessId { pid: PROCESS.pid, start_time: PROCESS.start_time + 1 };
    assert_eq!(compared(running(), mine(Some(PROCESS))), (true, false));
    assert_eq!(compared(running(), mine(Some(stranger))), (false, true), "that is not the one we started");
    assert_eq!(compared(running(), mine(None)), (false, true), "it does not run");
    assert_eq!(compared(running(), Vec::new()), (false, true));
    assert_eq!(compared(prepared(3), mine(None)), (false, false), "it is still to be started");
    assert_eq!(compared(prepared(3), Vec::new()), (false, true), "what is to be started is gone");

    // The list is older than what was done since it was asked for.
    let mut starting = prepared(3);
    starting.found(Vec::new());
    assert_eq!((phase(&starting), starting.op(&attempt(1))), (Phase::Start, Some(Operation::Start)));
    let mut watched = running();
    watched.found(Vec::new());
    assert_eq!(phase(&watched), Phase::Running);
}

#[test]
fn an_engine_that_was_known_all_along_is_not_asked_for_its_list() {
    let lists = |world: &mut World, event| {
        world.take();
        world.on(event);
        world.take().contains(&Effect::ListOurs)
    };
    let mut world = World::sharing();
    assert!(!lists(&mut world, engine()));
    assert!(!lists(&mut world, Event::Engine(Engine::Unknown { why: "away".to_owned() })));
    assert!(lists(&mut world, engine()));
    assert_eq!(world.provider.share_status().why, "Looking at what an earlier run left behind");
    assert!(!world.provider.is_open());
    world.found(Vec::new());
    assert!(world.provider.is_open());
}

#[test]
fn progress_of_an_operation_that_failed_does_not_hide_why() {
    let mut world = World::sharing();
    world.assign(&attempt(1));
    world.away(&attempt(1));
    world.on(Event::Progress { attempt: attempt(1), note: "half".to_owned() });
    assert_eq!(world.provider.attempt(&attempt(1)).unwrap().note, Some("no answer".to_owned()));
}

#[test]
fn a_renewal_names_what_may_count_and_nothing_that_is_over_or_of_another_group() {
    let named = |world: &mut World| {
        world.take();
        world.pass(Millis(10_000));
        let named = world.take().into_iter().find_map(|effect| match effect {
            Effect::ToRelay(ToRelay::Renew { attempts, .. }) => Some(attempts),
            _ => None,
        });
        named.expect("a renewal is due")
    };
    let mut world = running();
    world.run_this(assignment(&attempt(2), &[]));
    assert_eq!(named(&mut world), [attempt(1), attempt(2)]);
    world.gone(&attempt(2));
    assert_eq!(named(&mut world), [attempt(1)], "its end is told apart");
    world.on(Event::GroupLeft);
    assert!(world.provider.attempt(&attempt(1)).unwrap().may_live());
    assert_eq!(named(&mut world), []);
}
