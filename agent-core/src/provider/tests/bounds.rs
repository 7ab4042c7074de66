//! Limits, each at its edge: what just fits is taken, one more is not; what is kept of a list that
//! grows, and how often something is tried.

use std::collections::BTreeMap;

use gpunion_protocol::guest::{Exit, FromInit, ToInit};
use gpunion_protocol::ids::{Epoch, GpuUuid};
use gpunion_protocol::job::EndCause;
use gpunion_protocol::receipt::HistoryEntry;
use gpunion_protocol::session::{Assignment, Terms, ToAgent, ToRelay};
use gpunion_protocol::time::{Millis, WallMs};
use gpunion_protocol::units::{Bytes, Span};

use super::super::effect::{Effect, Operation, Word};
use super::super::event::{Event, Outcome};
use super::super::record::{Change, Key, Record, WishRecord};
use super::flows::{ended, stop_seq};
use super::world::{GPU, World, assignment, attempt, caps, snapshot};

/// Why it was not taken; absent when it was.
fn refusal(world: &mut World, assignment: Assignment) -> Option<String> {
    world.take();
    world.assign_this(assignment);
    match ended(&world.take()) {
        Some((EndCause::CouldNotStart { reason }, _)) => Some(reason),
        Some((cause, _)) => panic!("{cause:?}"),
        None => None,
    }
}

fn on_no_gpu(n: u32, change: impl FnOnce(&mut Assignment)) -> Assignment {
    let mut assignment = assignment(&attempt(n), &[]);
    change(&mut assignment);
    assignment
}

#[test]
fn all_guests_together_may_use_what_the_owner_lends_and_no_more() {
    let cpus = |n, cpus| on_no_gpu(n, |a| a.spec.resources.cpus = cpus);
    let mut world = World::sharing();
    assert_eq!(refusal(&mut world, cpus(1, 5)), None);
    assert!(refusal(&mut world, cpus(2, 4)).unwrap().contains("caps"), "9 of 8");
    assert_eq!(refusal(&mut world, cpus(3, 3)), None);

    let memory = |n, gib: u64| on_no_gpu(n, |a| a.spec.resources.memory = Bytes(gib << 30));
    let mut world = World::sharing();
    assert_eq!(refusal(&mut world, memory(1, 40)), None);
    assert!(refusal(&mut world, memory(2, 25)).unwrap().contains("caps"), "65 of 64");
    assert_eq!(refusal(&mut world, memory(3, 24)), None);

    let disk = |n, gib: u64| on_no_gpu(n, |a| a.spec.resources.disk = Bytes(gib << 30));
    let mut world = World::sharing();
    assert_eq!(refusal(&mut world, disk(1, 60)), None);
    assert!(refusal(&mut world, disk(2, 41)).unwrap().contains("caps"), "101 of 100");
    assert_eq!(refusal(&mut world, disk(3, 40)), None);
}

#[test]
fn a_gpu_is_for_one_attempt_of_a_spec_that_asks_for_it_and_only_while_it_is_lent() {
    let mut world = World::sharing();
    let mut two = assignment(&attempt(1), &[GPU]);
    two.spec.resources.gpus = 2;
    assert!(refusal(&mut world, two).unwrap().contains("another number of GPUs"));
    assert_eq!(refusal(&mut world, assignment(&attempt(2), &[GPU])), None);
    assert!(refusal(&mut world, assignment(&attempt(3), &[GPU])).unwrap().contains("another attempt"));
    world.relay(ToAgent::End { attempt: attempt(2), cause: EndCause::Cancelled });
    assert_eq!(refusal(&mut world, assignment(&attempt(4), &[GPU])), None, "the one before it is over");
    world.relay(ToAgent::End { attempt: attempt(4), cause: EndCause::Cancelled });
    let request = gpunion_protocol::local::ShareRequest {
        on: Some(false),
        gpu: Some(GpuUuid(GPU.to_owned())),
        ..Default::default()
    };
    let call = world.call();
    world.on(Event::Share { call, request });
    assert!(refusal(&mut world, assignment(&attempt(5), &[GPU])).unwrap().contains("not lent now"));
    assert_eq!(refusal(&mut world, on_no_gpu(6, |_| {})), None, "the rest is");
}

/// Its program has finished, and its result is being read.
fn finished() -> World {
    let mut world = World::sharing();
    world.run(&attempt(1));
    world.init(&attempt(1), FromInit::Exited(Exit::Code { code: 0 }));
    world.gone(&attempt(1));
    world.take();
    world
}

#[test]
fn a_result_that_is_refused_is_given_up_the_fifth_time_and_one_that_waits_never_is() {
    let name = attempt(1);
    let mut world = finished();
    for _ in 0..20 {
        world.away(&name);
        world.pass(Millis(30_000));
    }
    assert_eq!(ended(&world.take()), None);

    let mut world = finished();
    for _ in 0..4 {
        world.refuse(&name);
        world.pass(Millis(30_000));
        assert_eq!((ended(&world.effects), world.op(&name)), (None, Some(Operation::Whole)));
    }
    world.refuse(&name);
    let (cause, _) = ended(&world.take()).unwrap();
    assert!(matches!(&cause, EndCause::Broken { reason } if reason.contains("can't be read")), "{cause:?}");
}

#[test]
fn a_result_is_read_anew_when_it_can_not_be_sent_as_it_is() {
    let name = attempt(1);
    for refused in [false, true] {
        let mut world = finished();
        world.work(&name);
        if refused {
            world.refuse(&name);
        } else {
            world.away(&name);
        }
        world.pass(Millis(1_000));
        assert_eq!(world.op(&name) == Some(Operation::Whole), refused);
        while world.work(&name).is_some_and(|what| what != Operation::Clean) {}
        assert_eq!(ended(&world.take()), Some((EndCause::Exited { code: 0 }, true)));
    }
}

#[test]
fn a_checkpoint_is_sent_again_until_the_next_is_due_or_for_a_minute() {
    let name = attempt(1);
    for (every, until) in [(300_000, 300_000), (10_000, 60_000)] {
        for (late, again) in [(1, true), (0, false)] {
            let mut world = World::sharing();
            let mut wanted = assignment(&name, &[GPU]);
            wanted.spec.checkpoint.every = Some(Span(Millis(every)));
            world.run_this(wanted);
            world.pass(Millis(every));
            world.work(&name);
            let seq = stop_seq(&world.effects).unwrap();
            world.init(&name, FromInit::Stopped { seq, processes: 1, running: 0, took_us: 1 });
            world.work(&name);
            world.pass(Millis(until - late));
            world.away(&name);
            world.pass(Millis(1_000));
            let upload = matches!(world.op(&name), Some(Operation::Upload { .. }));
            assert_eq!(upload, again, "every {every}, {late} ms before {until}");
        }
    }
}

#[test]
fn a_thousand_ends_are_told_and_the_oldest_goes_from_the_disk_too() {
    let entry = |n: u32| HistoryEntry {
        attempt: attempt(n),
        name: "digits".to_owned(),
        member: "ada".to_owned(),
        gpus: Vec::new(),
        from: WallMs(0),
        until: WallMs(i64::from(n)),
        lasted: Millis(1),
        ended: String::new(),
        cause: None,
        receipt: None,
        contacts: None,
    };
    let mut world = World::new();
    for n in 1..=1_000 {
        world.provider.remember(entry(n));
    }
    let changes = world.provider.take_changes();
    assert!(changes.len() == 1_000 && changes.iter().all(|change| matches!(change, Change::Put(_))));
    world.provider.remember(entry(1_001));
    assert_eq!(world.provider.history().len(), 1_000);
    let oldest = Record::History(Box::new(entry(1))).key();
    let changes = world.provider.take_changes();
    assert!(changes.contains(&Change::Delete(oldest)), "{changes:?}");
    assert!(changes.contains(&Change::Put(Record::History(Box::new(entry(1_001))))), "{changes:?}");
}

#[test]
fn the_history_is_told_from_the_oldest_on_whatever_the_disk_says_first() {
    let entry = |n: u32| {
        let mut world = World::sharing();
        world.pass(Millis(u64::from(n) * 1_000));
        world.run(&attempt(n));
        world.gone(&attempt(n));
        world.provider.history()[0].clone()
    };
    let records = [2, 3, 1].map(|n| Record::History(Box::new(entry(n))));
    let world = World::new();
    let loaded = super::super::Provider::load(records.to_vec(), caps(), world.now);
    let order: Vec<u32> = loaded.history().iter().map(|e| e.attempt.token.attempt.0).collect();
    assert_eq!(order, [1, 2, 3]);
}

#[test]
fn of_the_guests_that_a_gpu_may_still_hold_something_of_the_last_sixteen_are_known() {
    let mut world = World::sharing();
    for n in 1..=18 {
        let name = attempt(n);
        world.run(&name);
        // Its GPU was read before that, and not since.
        world.pass(Millis(1));
        world.gone(&name);
        world.work(&name);
        world.relay(ToAgent::EndSeen { attempt: name });
        let traces = &world.provider.vestiges[&GpuUuid(GPU.to_owned())].traces;
        assert_eq!(traces.len(), n.min(16) as usize);
    }
}

#[test]
fn the_answer_to_one_of_the_last_sixteen_renewals_counts() {
    for (renewals, counts) in [(16, true), (17, false)] {
        let name = attempt(1);
        let mut world = World::sharing();
        world.run(&name);
        world.on(Event::LinkUp { terms: Terms::default(), epoch: Epoch(1) });
        let seq = world.effects.iter().rev().find_map(|effect| match effect {
            Effect::ToRelay(ToRelay::Renew { seq, .. }) => Some(*seq),
            _ => None,
        });
        let sent = world.now.boot;
        for _ in 1..renewals {
            world.pass(Terms::default().renew);
        }
        let counting = vec![name.clone()];
        world.relay(ToAgent::Renewed { seq: seq.unwrap(), counting, stale: Vec::new(), put_aside: None });
        let until = world.provider.attempt(&name).unwrap().lease_until;
        assert_eq!(until, counts.then_some(sent + Terms::default().lease), "{renewals}");
    }
}

#[test]
fn the_pace_is_that_of_what_was_saved_last() {
    let name = attempt(1);
    let mut world = World::sharing();
    world.run(&name);
    world.share(false);
    world.init(&name, FromInit::Exited(Exit::Code { code: 0 }));
    world.gone(&name);
    world.work(&name);
    let (op, _) = world.ops.remove(&name).unwrap();
    let new_bytes = 64 << 20;
    let taken =
        super::super::event::Taken { snapshot: snapshot(9), bytes: 1, new_bytes, newest_change_ns: 1 };
    world.on(Event::Done { attempt: name.clone(), op, outcome: Ok(Outcome::Taken(taken)) });
    world.pass(Millis(2_000));
    world.work(&name);
    let worth = |at_stake| world.provider.is_worth_sending(Some(Millis(at_stake)), 32 << 20);
    assert!(worth(1_000) && !worth(999), "64 MiB took 2 s");
}

#[test]
fn an_earlier_version_s_wish_is_read_with_what_was_so_then() {
    let old = r#"{"machine": {"wish": "not_sharing"}, "gpus": {}, "caps": {"cpus": 1, "memory": "1 GiB", "disk": "1 GiB"}}"#;
    let wish: WishRecord = serde_json::from_str(old).unwrap();
    assert_eq!((wish.grace, wish.salvage), (Millis(60_000), true));
}

#[test]
fn what_stops_a_guest_waits_for_no_disk_and_all_else_does() {
    let name = attempt(1);
    let say = |word| Effect::Say { attempt: name.clone(), word };
    let plain = |word| say(Word::Plain(word));
    let urgent = [
        plain(ToInit::Stop { seq: 1 }),
        plain(ToInit::GoOn { seq: 1 }),
        plain(ToInit::End { seq: 1 }),
        Effect::EndFile { attempt: name.clone() },
        Effect::SecondWay { attempt: name.clone() },
        Effect::EngineKill { attempt: name.clone() },
        Effect::GiveUp { attempt: name.clone() },
        Effect::WatchGpus { fast: true },
    ];
    assert!(urgent.iter().all(Effect::is_urgent));
    let patient = [
        say(Word::Begin),
        say(Word::Adopt),
        plain(ToInit::ExitSeen),
        plain(ToInit::Ping { seq: 1 }),
        Effect::ListOurs,
        Effect::ForgetLog { attempt: name.clone() },
        Effect::RemoveLeft { attempt: name.clone() },
        Effect::RemoveContainer { container: "container".to_owned() },
    ];
    assert!(!patient.iter().any(Effect::is_urgent));
}

#[test]
fn each_change_is_written_once_and_only_what_changed() {
    let mut world = World::sharing();
    world.run(&attempt(1));
    assert_eq!(world.provider.take_changes(), []);
    let disk: BTreeMap<Key, Record> = world.disk.clone();
    world.pass(Millis(1));
    assert_eq!(world.disk, disk, "time alone changes nothing");
}
