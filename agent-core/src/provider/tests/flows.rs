//! The life of an attempt, step by step, and the field cases that fit it.

use gpunion_protocol::guest::{Exit, FromInit, ToInit};
use gpunion_protocol::job::{EndCause, Quality};
use gpunion_protocol::local::Wish;
use gpunion_protocol::receipt::{How, Receipt, Way};
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_protocol::time::{BootMs, Millis};

use super::super::effect::{Effect, Operation, Word};
use super::super::event::{Engine, Event, Trouble};
use super::super::record::Phase;
use super::world::{BASELINE, PROCESS, World, attempt, snapshot};

pub(super) fn ended(effects: &[Effect]) -> Option<(EndCause, bool)> {
    effects.iter().rev().find_map(|effect| match effect {
        Effect::ToRelay(ToRelay::Ended { cause, result, .. }) => Some((cause.clone(), result.is_some())),
        _ => None,
    })
}

pub(super) fn receipt(effects: &[Effect]) -> Option<Receipt> {
    effects.iter().rev().find_map(|effect| match effect {
        Effect::ReclaimAnswer { answer: Ok(receipt), .. } => Some((**receipt).clone()),
        _ => None,
    })
}

pub(super) fn stop_seq(effects: &[Effect]) -> Option<u64> {
    effects.iter().rev().find_map(|effect| match effect {
        Effect::Say { word: Word::Plain(ToInit::Stop { seq }), .. } => Some(*seq),
        _ => None,
    })
}

#[test]
fn a_job_runs_and_its_result_is_told_with_its_end() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    assert!(world.effects.iter().any(|e| matches!(e, Effect::Say { word: Word::Begin, .. })));
    world.take();
    world.init(&name, FromInit::Exited(Exit::Code { code: 0 }));
    assert!(
        world.effects.contains(&Effect::Say { attempt: name.clone(), word: Word::Plain(ToInit::ExitSeen) })
    );
    world.gone(&name);
    assert_eq!(world.work(&name), Some(Operation::Whole));
    assert!(matches!(world.work(&name), Some(Operation::Upload { .. })));
    assert_eq!(ended(&world.take()), Some((EndCause::Exited { code: 0 }, true)));
    assert_eq!(world.work(&name), Some(Operation::Clean));
    world.on(Event::Relay(Box::new(ToAgent::EndSeen { attempt: name.clone() })));
    assert!(world.provider.attempt(&name).is_none(), "nothing of it is left on the books");
    assert_eq!(world.provider.history().len(), 1);
}

#[test]
fn an_end_whose_result_is_not_at_the_relay_any_more_is_told_without_it() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    world.init(&name, FromInit::Exited(Exit::Code { code: 0 }));
    world.gone(&name);
    world.work(&name);
    world.work(&name);
    let told = |effects: &[Effect]| {
        effects.iter().rev().find_map(|effect| match effect {
            Effect::ToRelay(ToRelay::Ended { result, .. }) => Some(*result),
            _ => None,
        })
    };
    let result = told(&world.take()).unwrap().unwrap();
    let refuse = |world: &mut World, snapshot| {
        let (attempt, reason) = (name.clone(), "it is not here".to_owned());
        world.on(Event::Relay(Box::new(ToAgent::PublishRefused { attempt, snapshot, reason })));
    };
    refuse(&mut world, snapshot(99));
    assert_eq!(told(&world.take()), None, "of something else");
    refuse(&mut world, result);
    assert_eq!(ended(&world.take()), Some((EndCause::Exited { code: 0 }, false)));
    world.crash();
    world.arrive();
    assert_eq!(told(&world.take()), Some(None), "and it stays so");
    world.on(Event::Relay(Box::new(ToAgent::EndSeen { attempt: name.clone() })));
    refuse(&mut world, result);
    assert_eq!(told(&world.take()), None, "nor when the relay knows it");
}

#[test]
fn the_exit_is_on_disk_before_init_may_forget_it() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    world.init(&name, FromInit::Exited(Exit::Code { code: 3 }));
    world.crash();
    world.arrive();
    // The list shows no container: init ended after its report was seen.
    assert_eq!(world.work(&name), Some(Operation::Whole));
    world.work(&name);
    assert_eq!(ended(&world.take()), Some((EndCause::Exited { code: 3 }, true)));
}

#[test]
fn reclaim_stops_ends_verifies_and_lasts() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    world.gpu(BASELINE + (300 << 20), &[(PROCESS.pid, PROCESS.start_time, 300 << 20)]);
    world.take();
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    let urgent: Vec<&Effect> = world.effects.iter().filter(|e| e.is_urgent()).collect();
    assert!(matches!(urgent[0], Effect::Say { word: Word::Plain(ToInit::Stop { .. }), .. }), "{urgent:?}");
    let seq = stop_seq(&world.effects).unwrap();
    world.now.boot = world.now.boot + Millis(2);
    world.take();
    world.init(&name, FromInit::Stopped { seq, processes: 2, running: 0, took_us: 300 });
    assert!(
        world.effects.iter().any(|e| matches!(e, Effect::Say { word: Word::Plain(ToInit::End { .. }), .. }))
    );
    world.now.boot = world.now.boot + Millis(3);
    world.gone(&name);
    assert_eq!(receipt(&world.effects), None, "ended is not verified");
    world.now.boot = world.now.boot + Millis(90);
    world.gpu(BASELINE, &[]);
    let receipt = receipt(&world.take()).unwrap();
    assert!(receipt.verified && receipt.how == How::ProcessList, "{receipt:?}");
    assert_eq!((receipt.stopped_ms, receipt.ended_ms, receipt.verified_ms), (Some(2), Some(5), Some(95)));
    assert_eq!(receipt.gpus[0].memory_before, Some(BASELINE + (300 << 20)));
    assert_eq!(receipt.gpus[0].memory_after, Some(BASELINE));
    assert_eq!(receipt.guests[0].processes, 2);
    // F49: the wish outlives a restart.
    world.crash();
    world.arrive();
    assert_eq!(world.provider.share_status().wish, Wish::NotSharing);
    assert!(!world.provider.is_open());
}

#[test]
fn f01_a_leaked_child_that_holds_memory_is_never_called_free() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    world.gpu(BASELINE + 900, &[(PROCESS.pid, PROCESS.start_time, 900)]);
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    world.gone(&name);
    world.take();
    for _ in 0..50 {
        world.now.boot = world.now.boot + Millis(300);
        world.gpu(BASELINE + 500, &[(PROCESS.pid, PROCESS.start_time, 500)]);
    }
    let first = receipt(&world.take()).unwrap();
    assert!(!first.verified && first.how == How::NotVerified && !first.troubles.is_empty(), "{first:?}");
    world.now.boot = world.now.boot + Millis(300);
    world.gpu(BASELINE, &[]);
    assert!(world.provider.last_receipt().unwrap().verified, "it goes on trying after the answer");
}

#[test]
fn a_guest_that_does_not_answer_is_ended_by_file_second_way_and_engine() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    world.take();
    world.pass(Millis(20));
    assert!(
        world.take().iter().any(|e| matches!(e, Effect::Say { word: Word::Plain(ToInit::End { .. }), .. }))
    );
    world.pass(Millis(150));
    let effects = world.take();
    assert!(effects.contains(&Effect::EndFile { attempt: name.clone() }));
    assert!(effects.contains(&Effect::SecondWay { attempt: name.clone() }));
    assert!(effects.iter().all(|effect| !matches!(effect, Effect::EngineKill { .. })));
    world.pass(Millis(150));
    assert!(world.take().contains(&Effect::EngineKill { attempt: name.clone() }));
    world.pass(Millis(1_000));
    let effects = world.take();
    assert!(effects.contains(&Effect::EngineKill { attempt: name.clone() }), "it goes on trying");
    assert!(effects.contains(&Effect::SecondWay { attempt: name }));
}

/// Its answer and the kernel's word on init's end come in either order.
#[test]
fn the_receipt_names_the_second_way_when_that_killed_the_guest() {
    for answer_first in [true, false] {
        let mut world = World::sharing();
        let name = attempt(1);
        world.run(&name);
        let call = world.call();
        world.on(Event::Reclaim { call, gpu: None });
        world.pass(Millis(20));
        world.pass(Millis(150));
        world.pass(Millis(8));
        let stopped = Some(BootMs(world.now.boot.0 - 5));
        let answer = Event::SecondWay { attempt: name.clone(), killed: 3, stopped, gone: false };
        if answer_first {
            world.on(answer.clone());
        }
        world.gone(&name);
        if !answer_first {
            world.on(answer);
        }
        world.pass(Millis(100));
        world.gpu(BASELINE, &[]);
        let receipt = receipt(&world.take()).unwrap();
        assert!(receipt.verified, "{receipt:?}");
        let guest = &receipt.guests[0];
        assert_eq!((guest.way, guest.processes), (Way::SecondWay, 2), "{receipt:?}");
        assert_eq!((guest.stopped_ms, guest.ended_ms), (Some(173), Some(178)), "{receipt:?}");
    }
}

/// What had ended before the second way came was not its doing.
#[test]
fn a_second_way_that_found_nobody_is_not_named() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    world.pass(Millis(20));
    world.pass(Millis(150));
    world.on(Event::SecondWay { attempt: name, killed: 0, stopped: None, gone: true });
    world.pass(Millis(100));
    world.gpu(BASELINE, &[]);
    let receipt = receipt(&world.take()).unwrap();
    assert!(receipt.verified && receipt.guests[0].way == Way::EndFile, "{receipt:?}");
}

#[test]
fn f63_engine_silence_concludes_nothing_and_its_return_is_reconcile() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    world.take();
    world.on(Event::Engine(Engine::Unknown { why: "the engine does not answer".to_owned() }));
    world.pass(Millis::from_secs(600));
    assert_eq!(world.provider.attempt(&name).unwrap().record.phase, Phase::Running);
    assert!(
        !world.effects.iter().any(|e| matches!(e, Effect::Do { .. })),
        "nothing is asked of an engine that is away"
    );
    world.on(super::world::engine());
    assert!(world.take().contains(&Effect::ListOurs));
    let found = world.running_container(&name);
    world.found(vec![found]);
    assert_eq!(world.provider.attempt(&name).unwrap().record.phase, Phase::Running);
}

#[test]
fn a_restarted_agent_adopts_its_guest_and_lets_it_go_on() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    world.crash();
    world.on(super::world::engine());
    let found = world.running_container(&name);
    world.take();
    world.found(vec![found]);
    assert!(world.effects.iter().any(|e| matches!(e, Effect::Attach { .. })));
    world.init(&name, FromInit::Hello { version: 1, begun: true });
    assert!(world.effects.iter().any(|e| matches!(e, Effect::Say { word: Word::Adopt, .. })));
    assert!(
        world.effects.iter().any(|e| matches!(e, Effect::Say { word: Word::Plain(ToInit::GoOn { .. }), .. }))
    );
}

#[test]
fn f02_a_container_without_a_right_to_run_is_removed() {
    let mut world = World::sharing();
    let stray = world.running_container(&attempt(9));
    world.take();
    world.found(vec![stray]);
    assert_eq!(world.take(), vec![Effect::RemoveContainer { container: "container".to_owned() }]);
}

#[test]
fn only_init_reports_the_programs_own_end() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    world.take();
    world.gone(&name);
    let (cause, result) = ended(&world.take()).unwrap();
    assert!(matches!(cause, EndCause::Broken { .. }) && !result, "{cause:?}");
}

#[test]
fn a_refused_preparation_ends_the_attempt_and_an_absent_engine_does_not() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.assign(&name);
    let (op, _) = world.ops[&name];
    let away = Err(Trouble::Away { why: "time-out".to_owned() });
    world.on(Event::Done { attempt: name.clone(), op, outcome: away });
    assert_eq!(world.provider.attempt(&name).unwrap().record.phase, Phase::Pull);
    world.pass(Millis(1_000));
    let (op, what) = world.ops[&name];
    assert_eq!(what, Operation::Image, "it is tried again");
    let refused = Err(Trouble::Refused { reason: "no such image".to_owned() });
    world.on(Event::Done { attempt: name, op, outcome: refused });
    assert!(matches!(ended(&world.take()), Some((EndCause::CouldNotStart { .. }, false))));
}

#[test]
fn a_checkpoint_follows_the_word_saved_and_is_quiet() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    world.take();
    world.init(&name, FromInit::Saved { at_ns: 600 });
    assert_eq!(world.work(&name), Some(Operation::PassOne));
    let seq = stop_seq(&world.effects).unwrap();
    world.init(&name, FromInit::Stopped { seq, processes: 1, running: 0, took_us: 100 });
    assert_eq!(world.work(&name), Some(Operation::PassTwo));
    assert!(
        world.effects.iter().any(|e| matches!(e, Effect::Say { word: Word::Plain(ToInit::GoOn { .. }), .. }))
    );
    assert!(matches!(world.work(&name), Some(Operation::Upload { .. })));
    let published = world.take().into_iter().find_map(|effect| match effect {
        Effect::ToRelay(ToRelay::Publish { checkpoint, .. }) => Some(checkpoint),
        _ => None,
    });
    assert_eq!(published.unwrap().quality, Quality::Quiet);
    // Repeated until it is answered.
    world.pass(Millis::from_secs(10));
    assert!(world.take().iter().any(|e| matches!(e, Effect::ToRelay(ToRelay::Publish { .. }))));
    let seen = ToAgent::Published { attempt: name.clone(), snapshot: snapshot(7) };
    world.on(Event::Relay(Box::new(seen)));
    world.pass(Millis::from_secs(10));
    assert!(!world.take().iter().any(|e| matches!(e, Effect::ToRelay(ToRelay::Publish { .. }))));
}

#[test]
fn a_stop_longer_than_allowed_is_given_up_and_the_job_goes_on() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    world.init(&name, FromInit::Saved { at_ns: 1 });
    world.work(&name);
    let seq = stop_seq(&world.effects).unwrap();
    world.init(&name, FromInit::Stopped { seq, processes: 1, running: 0, took_us: 100 });
    world.take();
    world.pass(Millis(2_000));
    assert!(
        world.effects.iter().any(|e| matches!(e, Effect::Say { word: Word::Plain(ToInit::GoOn { .. }), .. }))
    );
    assert!(world.effects.contains(&Effect::GiveUp { attempt: name }));
}

#[test]
fn a_stale_attempt_ends_and_is_told_as_stale() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    world.pass(Millis::from_secs(10));
    let seq = world.effects.iter().rev().find_map(|effect| match effect {
        Effect::ToRelay(ToRelay::Renew { seq, .. }) => Some(*seq),
        _ => None,
    });
    world.take();
    let renewed = ToAgent::Renewed {
        seq: seq.unwrap(),
        counting: Vec::new(),
        stale: vec![name.clone()],
        put_aside: None,
    };
    world.on(Event::Relay(Box::new(renewed)));
    assert!(
        world.effects.iter().any(|e| matches!(e, Effect::Say { word: Word::Plain(ToInit::End { .. }), .. }))
    );
    world.gone(&name);
    assert_eq!(ended(&world.take()), Some((EndCause::Stale, false)));
}

#[test]
fn sharing_off_takes_no_new_jobs_and_does_not_end_the_present_one_at_once() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    world.share(false);
    world.take();
    assert_eq!(world.provider.attempt(&name).unwrap().record.phase, Phase::Running);
    world.assign(&attempt(2));
    assert_eq!(ended(&world.take()), Some((EndCause::Left, false)));
}

#[test]
fn after_first_install_nothing_is_lent() {
    let world = World::new();
    assert_eq!(world.provider.share_status().wish, Wish::NotSharing);
    assert!(!world.provider.is_open());
}

#[test]
fn what_an_engine_can_not_hold_is_refused_with_the_fix() {
    let mut world = World::sharing();
    let Event::Engine(Engine::Known { architecture, cpus, memory, disk, .. }) = super::world::engine() else {
        panic!("not an engine")
    };
    let blocked =
        Some("guests run without a seccomp filter; start the engine with its default one".to_owned());
    world.on(Event::Engine(Engine::Known { architecture, cpus, memory, disk, blocked }));
    assert!(!world.provider.is_open());
    assert!(world.provider.share_status().why.contains("default one"));
    assert_eq!(world.provider.share_status().wish, Wish::Sharing { until: None }, "the wish is kept apart");
}

#[test]
fn a_wish_that_could_not_be_written_is_in_the_receipt() {
    let mut world = World::sharing();
    let name = attempt(1);
    world.run(&name);
    let call = world.call();
    world.on(Event::Reclaim { call, gpu: None });
    world.provider.wish_not_saved();
    world.gone(&name);
    world.now.boot = world.now.boot + Millis(100);
    world.gpu(BASELINE, &[]);
    let receipt = receipt(&world.take()).unwrap();
    assert!(receipt.verified && !receipt.wish_saved);
    assert!(receipt.troubles.iter().any(|trouble| trouble.contains("could not be written")), "{receipt:?}");
}
