//! Random events in any order: the machine is total, its invariants hold at every step, and what
//! it loads from disk after a crash is what it knew.

use gpunion_protocol::guest::{Exit, FromInit};
use gpunion_protocol::ids::Epoch;
use gpunion_protocol::job::EndCause;
use gpunion_protocol::local::PauseRequest;
use gpunion_protocol::rules::RulesRequest;
use gpunion_protocol::session::{Assignment, Terms, ToAgent};
use gpunion_protocol::time::{Millis, WallMs};
use gpunion_protocol::units::Span;
use jiff::tz::TimeZone;
use proptest::prelude::*;

use super::super::Attempt;
use super::super::effect::{Effect, Word};
use super::super::event::{Engine, Event, Inventory, Trouble, Zones};
use super::super::record::Phase;
use super::super::word::{ReclaimWord, Wanted};
use super::world::{BASELINE, GPU, PROCESS, World, assignment, attempt, engine, snapshot};

#[derive(Debug, Clone)]
enum Step {
    Share(bool),
    Pause(u64),
    Wipe,
    Rules(u8),
    Battery(bool),
    OwnWork(u64),
    Reclaim,
    ByHand,
    Assign(u32),
    Ahead(u32),
    Work(u32),
    Away(u32),
    Refuse(u32),
    Init(u32, FromInit),
    Gone(u32),
    SecondWay(u32, u32, bool),
    EngineAway,
    EngineBack(bool),
    Link(bool),
    Relay(u8, u32),
    Pass(u64),
    Gpu(bool),
    Left(u32),
    LeaveGroup,
    CannotBegin(u32),
    Progress(u32),
    Crash,
}

fn word() -> impl Strategy<Value = FromInit> {
    prop_oneof![
        any::<bool>().prop_map(|begun| FromInit::Hello { version: 1, begun }),
        Just(FromInit::Started { pid: 2 }),
        Just(FromInit::NotStarted { reason: "no such file".to_owned() }),
        (0u64..40).prop_map(|seq| FromInit::Stopped { seq, processes: 1, running: 0, took_us: 1 }),
        (0i64..1000).prop_map(|at_ns| FromInit::Saved { at_ns }),
        (0i32..3).prop_map(|code| FromInit::Exited(Exit::Code { code })),
        (0u64..1 << 40).prop_map(|bytes| FromInit::Usage { bytes, files: 1 }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let n = 1u32..4;
    prop_oneof![
        3 => any::<bool>().prop_map(Step::Share),
        1 => (0u64..4).prop_map(Step::Pause),
        1 => Just(Step::Wipe),
        1 => (0u8..5).prop_map(Step::Rules),
        1 => any::<bool>().prop_map(Step::Battery),
        1 => (1u64..20).prop_map(Step::OwnWork),
        1 => Just(Step::Reclaim),
        1 => Just(Step::ByHand),
        4 => n.clone().prop_map(Step::Assign),
        2 => n.clone().prop_map(Step::Ahead),
        12 => n.clone().prop_map(Step::Work),
        1 => n.clone().prop_map(Step::Away),
        1 => n.clone().prop_map(Step::Refuse),
        5 => (n.clone(), word()).prop_map(|(n, word)| Step::Init(n, word)),
        2 => n.clone().prop_map(Step::Gone),
        1 => (n.clone(), 0u32..3, any::<bool>()).prop_map(|(n, killed, gone)| Step::SecondWay(n, killed, gone)),
        1 => Just(Step::EngineAway),
        2 => any::<bool>().prop_map(Step::EngineBack),
        1 => any::<bool>().prop_map(Step::Link),
        3 => (0u8..6, n).prop_map(|(kind, n)| Step::Relay(kind, n)),
        4 => (1u64..20_000).prop_map(Step::Pass),
        2 => any::<bool>().prop_map(Step::Gpu),
        1 => (1u32..6).prop_map(Step::Left),
        1 => Just(Step::LeaveGroup),
        1 => (1u32..4).prop_map(Step::CannotBegin),
        1 => (1u32..4).prop_map(Step::Progress),
        1 => Just(Step::Crash),
    ]
}

fn apply(world: &mut World, step: Step) {
    match step {
        Step::Share(on) => world.share(on),
        Step::Pause(kind) => {
            let call = world.call();
            let length = (kind > 1).then_some(Span(Millis(kind * 5_000)));
            let request = PauseRequest { length, until: None, resume: kind == 0 };
            world.on(Event::Pause { call, request });
            assert!(kind == 0 || !world.provider.is_open(), "nothing is lent in a pause");
        }
        Step::Wipe => {
            let call = world.call();
            world.on(Event::Wipe { call });
        }
        Step::Rules(kind) => {
            let words = [
                ("hours", "Mon 16:00-16:02,16:03-17:00"),
                ("hours", "always"),
                ("own_work", "stop"),
                ("own_work_after", "0 s"),
                ("battery", "off"),
            ];
            world.zone = Some(TimeZone::UTC);
            let (key, value) = words[usize::from(kind)];
            let set = [(key.to_owned(), value.to_owned())].into();
            let zones = Zones { named: None, here: Some(TimeZone::UTC) };
            let call = world.call();
            world.on(Event::Rules { call, request: RulesRequest { set }, zones });
        }
        Step::Battery(empties) => world.on(Event::Battery { discharging: Some(empties) }),
        Step::OwnWork(seconds) => {
            for _ in 0..seconds {
                world.pass(Millis(1_000));
                world.gpu(BASELINE + (2 << 30), &[(7, 7, 2 << 30)]);
            }
        }
        Step::Reclaim => {
            let call = world.call();
            world.on(Event::Reclaim { call, gpu: None });
            assert!(!world.provider.is_open(), "nothing is lent after a reclaim");
        }
        Step::ByHand => {
            world.on(Event::ReclaimedByHand { word: ReclaimWord { wanted: Wanted::All, at: WallMs(1) } })
        }
        Step::Assign(n) => world.assign(&attempt(n)),
        Step::Ahead(n) => {
            let name = attempt(n);
            world.assign_this(Assignment { wait: true, ..assignment(&name, &[GPU]) });
        }
        Step::Work(n) => {
            world.work(&attempt(n));
        }
        Step::Away(n) => answer(world, n, Trouble::Away { why: "away".to_owned() }),
        Step::Refuse(n) => answer(world, n, Trouble::Refused { reason: "refused".to_owned() }),
        Step::Init(n, word) => world.init(&attempt(n), word),
        Step::Gone(n) => world.gone(&attempt(n)),
        Step::SecondWay(n, killed, gone) => {
            let stopped = (killed > 0).then_some(world.now.boot);
            world.on(Event::SecondWay { attempt: attempt(n), killed, stopped, gone });
        }
        Step::EngineAway => world.on(Event::Engine(Engine::Unknown { why: "away".to_owned() })),
        Step::EngineBack(runs) => {
            world.on(engine());
            let found = (1..4).map(|n| world.running_container(&attempt(n))).filter(|_| runs).collect();
            world.found(found);
        }
        Step::Link(true) => world.on(Event::LinkUp { terms: Terms::default(), epoch: Epoch(1) }),
        Step::Link(false) => world.on(Event::LinkDown { why: "cut".to_owned() }),
        Step::Relay(kind, n) => {
            let attempt = attempt(n);
            let message = match kind {
                0 => ToAgent::End { attempt, cause: EndCause::Cancelled },
                1 => ToAgent::EndSeen { attempt },
                2 => ToAgent::Published { attempt, snapshot: snapshot(7) },
                4 => ToAgent::Go { attempt, from: Some(snapshot(9)).filter(|_| n > 1) },
                3 => ToAgent::PublishRefused { attempt, snapshot: snapshot(7), reason: "stale".to_owned() },
                _ => ToAgent::Renewed {
                    seq: u64::from(n),
                    counting: Vec::new(),
                    stale: vec![attempt],
                    put_aside: None,
                },
            };
            world.on(Event::Relay(Box::new(message)));
        }
        Step::Pass(ms) => world.pass(Millis(ms)),
        Step::Gpu(held) if held => world.gpu(BASELINE + 5, &[(PROCESS.pid, PROCESS.start_time, 5)]),
        Step::Gpu(_) => world.gpu(BASELINE, &[]),
        Step::Left(n) => {
            world
                .on(Event::Found(Inventory { containers: Vec::new(), left: (1..=n).map(attempt).collect() }));
        }
        Step::LeaveGroup => {
            world.on(Event::GroupLeft);
            let lives_on =
                |a: &&Attempt| !matches!(a.record.phase, Phase::Ending { .. } | Phase::Over { .. });
            assert_eq!(world.provider.attempts().find(lives_on).map(Attempt::name), None);
        }
        Step::CannotBegin(n) => {
            world.on(Event::CannotBegin { attempt: attempt(n), reason: "its image is gone".to_owned() });
        }
        Step::Progress(n) => world.on(Event::Progress { attempt: attempt(n), note: "half".to_owned() }),
        Step::Crash => {
            let before = world.provider.wishes().clone();
            world.crash();
            assert_eq!(world.provider.wishes(), &before, "the wish is on disk before it is acted on");
        }
    }
}

fn answer(world: &mut World, n: u32, trouble: Trouble) {
    if let Some((op, _)) = world.ops.remove(&attempt(n)) {
        world.on(Event::Done { attempt: attempt(n), op, outcome: Err(trouble) });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_events_keeps_the_invariants(steps in proptest::collection::vec(step(), 1..120)) {
        let mut world = World::sharing();
        for step in steps {
            apply(&mut world, step);
            // What time alone brings about is done when its time has come: no busy waiting.
            world.on(Event::Timeout);
            let next = world.provider.poll_timeout();
            prop_assert!(next.is_none_or(|at| at > world.now.boot), "due again at once: {:?}", world.provider);
            for effect in world.take() {
                // A program is begun only on a guest that was started and recorded.
                if let Effect::Say { attempt, word: Word::Begin } = effect {
                    let phase = world.provider.attempt(&attempt).map(|a| a.record.phase.clone());
                    prop_assert_eq!(phase, Some(Phase::Running));
                } else if let Effect::RemoveLeft { attempt } = effect {
                    prop_assert!(world.provider.attempt(&attempt).is_none(), "what is on the books stays");
                }
            }
        }
    }

    /// However it went: when the world behaves again, no attempt stays on the books for ever.
    #[test]
    fn every_attempt_comes_to_its_end(steps in proptest::collection::vec(step(), 1..80)) {
        let mut world = World::sharing();
        for step in steps {
            apply(&mut world, step);
        }
        world.crash();
        world.arrive();
        for _ in 0..60 {
            for n in 1..4 {
                let name = attempt(n);
                world.on(Event::Relay(Box::new(ToAgent::End { attempt: name.clone(), cause: EndCause::Cancelled })));
                world.gone(&name);
                world.work(&name);
                world.on(Event::Relay(Box::new(ToAgent::EndSeen { attempt: name })));
            }
            world.pass(Millis::from_secs(31));
        }
        prop_assert_eq!(world.provider.attempts().count(), 0);
    }
}
