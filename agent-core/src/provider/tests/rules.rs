//! The owner's rules: they narrow what is lent, of one GPU where they are of one, and lend nothing.

use std::collections::BTreeMap;

use gpunion_protocol::gpu::{GpuProcess, GpuSample, GpuSource, GpuState, GpuView};
use gpunion_protocol::guest::{FromInit, ToInit};
use gpunion_protocol::ids::{AttemptRef, GpuUuid};
use gpunion_protocol::job::EndCause;
use gpunion_protocol::local::{PauseRequest, ShareRequest, Wish};
use gpunion_protocol::problem::Problem;
use gpunion_protocol::rules::{RulesRequest, RulesStatus, Verdict};
use gpunion_protocol::time::{Millis, WallMs};
use gpunion_protocol::units::Span;
use jiff::tz::TimeZone;

use super::super::effect::{Effect, Word};
use super::super::event::{Event, Zones};
use super::super::record::Phase;
use super::flows::ended;
use super::world::{GPU, World, assignment, attempt};

const HOUR: Millis = Millis(3_600_000);
const OTHER: &str = "GPU-b";
const GIB: u64 = 1 << 30;

fn ask(world: &mut World, words: &[(&str, &str)], zones: Zones) -> Result<RulesStatus, Problem> {
    let set = words.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let call = world.call();
    world.on(Event::Rules { call, request: RulesRequest { set }, zones });
    let answer = world.effects.iter().rev().find_map(|effect| match effect {
        Effect::RulesAnswer { answer, .. } => Some(answer.clone()),
        _ => None,
    });
    answer.expect("it is answered")
}

/// In UTC, where the world begins on a Monday at 16:00.
fn set(world: &mut World, words: &[(&str, &str)]) -> RulesStatus {
    world.zone = Some(TimeZone::UTC);
    ask(world, words, Zones { named: None, here: Some(TimeZone::UTC) }).unwrap()
}

fn verdict(world: &World, rule: &str, gpu: Option<&str>) -> Verdict {
    let verdicts = world.provider.share_status().rules;
    let of = |verdict: &&Verdict| verdict.gpu.as_ref().map(|gpu| gpu.0.as_str()) == gpu;
    verdicts.iter().filter(of).find(|verdict| verdict.rule == rule).cloned().expect("it says something")
}

fn sample(world: &World, gpu: &str, processes: Vec<GpuProcess>) -> GpuSample {
    GpuSample {
        uuid: GpuUuid(gpu.to_owned()),
        name: "test".to_owned(),
        standin: true,
        mig: false,
        memory_total: Some(24 * GIB),
        memory_used: Some(processes.iter().filter_map(|p| p.memory).sum()),
        utilisation: None,
        power_mw: None,
        power_limit_mw: None,
        temperature_c: None,
        processes: Some(processes),
        state: GpuState::Ok,
        taken_at: world.now.boot,
    }
}

fn process(pid: u32, memory: u64) -> GpuProcess {
    let (start_time, memory) = (Some(u64::from(pid)), Some(memory));
    GpuProcess { pid, start_time, memory, container: None, draws_only: false }
}

fn read(world: &mut World, samples: Vec<GpuSample>) {
    let gpus = samples.into_iter().map(|sample| (sample.uuid.clone(), sample)).collect();
    let view = GpuView { source: GpuSource::Ready { version: None }, gpus, troubles: Vec::new() };
    world.on(Event::Gpus(Box::new(view)));
}

/// Two GPUs for so many seconds, with somebody of the owner's on the first.
fn works(world: &mut World, seconds: u64, memory: u64) {
    for _ in 0..seconds {
        world.pass(Millis(1_000));
        let own = (memory > 0).then(|| process(7, memory));
        let samples = vec![sample(world, GPU, own.into_iter().collect()), sample(world, OTHER, Vec::new())];
        read(world, samples);
    }
}

/// A machine with two GPUs that lends both, with a guest on each.
fn two_guests() -> World {
    let mut world = World::new();
    works(&mut world, 1, 0);
    world.share(true);
    works(&mut world, 1, 0);
    for (n, gpu) in [(1, GPU), (2, OTHER)] {
        let name = attempt(n);
        world.assign_this(assignment(&name, &[gpu]));
        for _ in 0..4 {
            world.work(&name);
        }
        world.init(&name, FromInit::Started { pid: 2 });
    }
    world.take();
    world
}

fn told_to_leave(world: &World) -> Vec<AttemptRef> {
    let told = world.effects.iter().filter_map(|effect| match effect {
        Effect::Say { attempt, word: Word::Plain(ToInit::Leave { .. }) } => Some(attempt.clone()),
        _ => None,
    });
    told.collect()
}

fn is_free(world: &World, gpu: &str) -> bool {
    let offer = world.provider.offer(world.now);
    offer.open && offer.gpus.iter().any(|one| one.uuid.0 == gpu && one.free_for_guests)
}

#[test]
fn guests_are_gone_when_the_hours_end_and_lending_begins_with_them() {
    let mut world = World::sharing();
    set(&mut world, &[("hours", "Mon 08:00-17:00; Tue 08:00-17:00")]);
    assert!(world.provider.is_open());
    assert_eq!(world.provider.offer(world.now).time_left, Some(HOUR));
    world.run(&attempt(1));
    world.take();
    world.pass(Millis(HOUR.0 - 60_001));
    assert_eq!(told_to_leave(&world), []);
    let next = world.provider.poll_timeout().unwrap();
    assert!(next <= world.now.boot + Millis(1), "it is told on time, not at the next look");
    world.pass(Millis(1));
    assert_eq!(told_to_leave(&world), [attempt(1)], "a grace before the end");
    world.pass(Millis(60_000));
    let phase = world.provider.attempt(&attempt(1)).unwrap().record.phase.clone();
    assert_eq!(phase, Phase::Leaving { exited: false, reclaimed: false });
    assert!(!world.provider.is_open());
    let closed = verdict(&world, "hours", None);
    assert!(!closed.allows && closed.reason.contains("Mon 08:00-17:00") && closed.reason.contains("UTC"));
    assert_eq!(closed.until, Some(WallMs(world.now.wall.0 + 15 * 3_600_000)));
    assert_eq!(world.provider.share_status().wish, Wish::Sharing { until: None }, "the wish is untouched");
    world.gone(&attempt(1));
    world.pass(Millis(15 * HOUR.0 - 1));
    assert!(!world.provider.is_open());
    let next = world.provider.poll_timeout().unwrap();
    assert!(next <= world.now.boot + Millis(1), "it lends on time");
    world.pass(Millis(1));
    assert!(world.provider.is_open());
}

#[test]
fn a_rule_lends_nothing_that_the_owner_does_not() {
    let mut world = World::new();
    set(&mut world, &[("hours", "Mon-Fri")]);
    assert!(verdict(&world, "hours", None).allows);
    assert!(!world.provider.is_open());
    world.share(true);
    let call = world.call();
    let until = Some(WallMs(world.now.wall.0 + 60_000));
    world.on(Event::Share {
        call,
        request: ShareRequest { on: Some(true), until, ..ShareRequest::default() },
    });
    assert_eq!(world.provider.offer(world.now).time_left, Some(Millis(60_000)), "the sooner end counts");
    world.pass(Millis(60_000));
    assert!(!world.provider.is_open());
}

#[test]
fn a_clock_that_is_set_is_believed_for_hours() {
    let mut world = World::sharing();
    set(&mut world, &[("hours", "Mon 15:00-17:00")]);
    for (by, open) in [(3_600_000, false), (-1, true), (-2 * 3_600_000, false), (7_200_001, false)] {
        world.now.wall.0 += by;
        world.on(Event::Timeout);
        assert_eq!(world.provider.is_open(), open, "{by}");
    }
}

#[test]
fn f44_hours_have_a_zone_and_outlive_the_agent() {
    let mut world = World::sharing();
    let nobody_knows = ask(&mut world, &[("hours", "Mon")], Zones::default()).unwrap_err();
    assert!(nobody_knows.to_string().contains("zone=Europe/Berlin"), "{nobody_knows}");
    let unknown = ask(&mut world, &[("zone", "Europe/Brelin")], Zones::default()).unwrap_err();
    assert!(unknown.to_string().contains("Europe/Brelin"), "{unknown}");
    assert_eq!(world.provider.rules(), &Default::default(), "nothing of it is set");
    let status = set(&mut world, &[("hours", "Mon 15:00-17:00")]);
    let zone = status.rules.iter().find(|rule| rule.key == "zone").map(|rule| rule.value.as_str());
    assert_eq!(zone, Some("UTC"), "the machine's own, by name");
    // Its rules are on disk, and hold also when the machine has lost its table of zones.
    world.pass(HOUR);
    world.crash();
    world.arrive();
    assert!(!world.provider.is_open());
    world.zone = None;
    world.crash();
    world.now.wall.0 -= HOUR.0 as i64;
    world.arrive();
    assert!(!world.provider.is_open(), "which time it is for its owner is not known");
    assert!(verdict(&world, "hours", None).reason.contains("tzdata"));
    let lost = ask(&mut world, &[("hours", "Sun")], Zones::default()).unwrap_err();
    assert!(lost.to_string().contains("any more"), "{lost}");
    ask(&mut world, &[], Zones::default()).expect("it is shown all the same");
    ask(&mut world, &[("own_work", "stop")], Zones::default()).expect("and other rules are set");
    let found = Zones { named: Some(TimeZone::UTC), here: None };
    ask(&mut world, &[("zone", "UTC")], found).expect("the table is there again");
    assert!(world.provider.is_open());
    ask(&mut world, &[("hours", "always")], Zones::default()).unwrap();
    assert!(world.provider.is_open());
}

#[test]
fn f55_f57_own_work_sends_the_guest_of_its_gpu_away_and_no_other() {
    let mut world = two_guests();
    works(&mut world, 10, 2 * GIB);
    assert_eq!(told_to_leave(&world), []);
    works(&mut world, 1, 2 * GIB);
    assert_eq!(told_to_leave(&world), [attempt(1)]);
    assert!(!is_free(&world, GPU) && is_free(&world, OTHER));
    let says = verdict(&world, "own_work", Some(GPU));
    assert!(!says.allows && says.reason.contains("process 7"), "{says:?}");
    assert!(verdict(&world, "own_work", Some(OTHER)).allows);
    assert!(world.provider.is_open(), "the other GPU is lent");
    world.gone(&attempt(1));
    works(&mut world, 300, 0);
    assert!(!is_free(&world, GPU), "not yet free for long enough");
    works(&mut world, 1, 0);
    assert!(is_free(&world, GPU));
}

#[test]
fn an_owner_who_does_not_want_to_wait_stops_the_guest() {
    let mut world = two_guests();
    set(&mut world, &[("own_work", "stop")]);
    works(&mut world, 11, 2 * GIB);
    let phase = |n| world.provider.attempt(&attempt(n)).unwrap().record.phase.clone();
    assert_eq!(phase(1), Phase::Ending { cause: EndCause::Reclaimed });
    assert_eq!(phase(2), Phase::Running);
    assert_eq!(world.provider.share_status().wish, Wish::Sharing { until: None }, "it is no reclaim");
}

#[test]
fn a_process_that_nobody_may_look_at_is_not_held_against_a_guest() {
    let mut world = two_guests();
    for _ in 0..30 {
        world.pass(Millis(1_000));
        let hidden = GpuProcess { start_time: None, ..process(7, 2 * GIB) };
        let samples = vec![sample(&world, GPU, vec![hidden]), sample(&world, OTHER, Vec::new())];
        read(&mut world, samples);
    }
    assert_eq!(told_to_leave(&world), []);
}

#[test]
fn own_work_is_nothing_to_guests_where_the_owner_says_so() {
    let mut world = two_guests();
    set(&mut world, &[("own_work", "off")]);
    works(&mut world, 30, 2 * GIB);
    assert_eq!(told_to_leave(&world), []);
    assert!(world.provider.share_status().rules.is_empty());
}

#[test]
fn who_is_placed_on_a_gpu_that_its_owner_has_just_taken_lost_nothing() {
    let mut world = World::new();
    world.share(true);
    works(&mut world, 11, 2 * GIB);
    world.take();
    world.assign_this(assignment(&attempt(1), &[GPU]));
    assert_eq!(ended(&world.take()), Some((EndCause::Left, false)));
}

#[test]
fn f47_a_pause_that_ends_while_the_owner_computes_lends_nothing_of_that_gpu() {
    let mut world = World::new();
    works(&mut world, 1, 0);
    world.share(true);
    let call = world.call();
    let length = Some(Span(Millis(60_000)));
    world.on(Event::Pause { call, request: PauseRequest { length, ..PauseRequest::default() } });
    works(&mut world, 60, 2 * GIB);
    assert!(world.provider.is_open(), "the pause is over");
    assert!(!is_free(&world, GPU) && is_free(&world, OTHER));
}

#[test]
fn what_the_desktop_drew_when_lending_began_is_no_own_work_also_after_a_restart() {
    let mut world = World::new();
    let drawing = |memory| GpuProcess { draws_only: true, ..process(9, memory) };
    let draws = |world: &mut World, memory| {
        for _ in 0..12 {
            world.pass(Millis(1_000));
            let samples = vec![sample(world, GPU, vec![drawing(memory)])];
            read(world, samples);
        }
    };
    draws(&mut world, 2 * GIB);
    world.share(true);
    draws(&mut world, 2 * GIB);
    draws(&mut world, 3 * GIB - 1);
    assert!(is_free(&world, GPU));
    draws(&mut world, 3 * GIB);
    assert!(!is_free(&world, GPU), "a game");
    world.crash();
    world.arrive();
    draws(&mut world, 3 * GIB);
    assert!(!is_free(&world, GPU), "the game is not taken for the desktop");
}

#[test]
fn on_battery_nothing_is_lent_until_it_is_plugged_in() {
    let mut world = two_guests();
    world.on(Event::Battery { discharging: Some(true) });
    assert_eq!(told_to_leave(&world), [attempt(1), attempt(2)]);
    assert!(!world.provider.is_open() && !verdict(&world, "battery", None).allows);
    world.on(Event::Battery { discharging: Some(false) });
    assert!(world.provider.is_open() && verdict(&world, "battery", None).allows);
    set(&mut world, &[("battery", "off")]);
    world.on(Event::Battery { discharging: Some(true) });
    assert!(world.provider.is_open());
}

#[test]
fn a_hot_gpu_is_left_and_lent_again_when_it_is_cool() {
    let mut world = two_guests();
    set(&mut world, &[("temperature", "85/75"), ("power", "300/200")]);
    let mut heats = |seconds: u64, celsius: u32| {
        for _ in 0..seconds {
            world.pass(Millis(1_000));
            let hot = GpuSample { temperature_c: Some(celsius), ..sample(&world, GPU, Vec::new()) };
            let other = GpuSample { power_mw: Some(celsius * 3_600), ..sample(&world, OTHER, Vec::new()) };
            read(&mut world, vec![hot, other]);
        }
        (is_free(&world, GPU), is_free(&world, OTHER), told_to_leave(&world).len())
    };
    assert_eq!(heats(10, 86), (true, true, 0));
    assert_eq!(heats(1, 86), (false, false, 2));
    assert_eq!(heats(100, 80), (false, false, 2));
    assert_eq!(heats(61, 55), (true, true, 2));
}

#[test]
fn what_is_wrong_sets_nothing() {
    let mut world = World::sharing();
    let words: BTreeMap<&str, &str> = [("own_work", "stop"), ("power", "much")].into();
    let words: Vec<(&str, &str)> = words.into_iter().collect();
    ask(&mut world, &words, Zones::default()).unwrap_err();
    assert_eq!(world.provider.rules(), &Default::default());
    assert!(!world.disk.keys().any(|key| key.0 == "rules"));
}
