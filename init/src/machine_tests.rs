//! The guarantees of the machine, held against any order of events in a small model world.

use proptest::prelude::*;

use super::*;

const PID: i32 = 2;

/// What may happen, in any order.
#[derive(Debug, Clone)]
enum Step {
    Pass {
        ms: u64,
    },
    AgentComes,
    AgentGoes,
    Begin {
        deadline_in: Option<u64>,
    },
    Adopt {
        deadline_in: Option<u64>,
    },
    Deadline {
        deadline_in: u64,
    },
    Stop,
    GoOn,
    LaunchDone {
        works: bool,
    },
    ProgramEnds {
        code: i32,
    },
    OutputEnds,
    ExitSeen,
    End,
    Garbage,
    Saved,
    /// From now on, stopping or killing takes so many looks.
    Stubborn {
        looks: u32,
    },
}

/// Processes, agent and clock as the machine's effects leave them.
struct World {
    machine: Machine,
    now: BootUs,
    agent: bool,
    up: bool,
    launching: bool,
    alive: bool,
    stopped: bool,
    stubborn: u32,
    begun: bool,
    word_hold: bool,
    deadline: Option<BootMs>,
    ended: Option<Exit>,
    gone: bool,
    next_seq: u64,
    /// Answers that this connection owes, by Stop word.
    owed: BTreeMap<u64, u32>,
    heard: Vec<FromInit>,
    launches: u32,
}

impl World {
    fn new() -> Self {
        let now = BootUs(5_000_000);
        Self {
            machine: Machine::new(now),
            now,
            agent: false,
            up: false,
            launching: false,
            alive: false,
            stopped: false,
            stubborn: 0,
            begun: false,
            word_hold: false,
            deadline: None,
            ended: None,
            gone: false,
            next_seq: 0,
            owed: BTreeMap::new(),
            heard: Vec::new(),
            launches: 0,
        }
    }

    fn feed(&mut self, event: Event) {
        let mut events = std::collections::VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let effects = self.machine.handle(event, self.now);
            assert!(!self.gone || effects.is_empty(), "after the end nothing else is done");
            for effect in effects {
                events.extend(self.act(effect));
            }
        }
        self.check();
    }

    fn act(&mut self, effect: Effect) -> Option<Event> {
        assert!(!self.gone, "Exit is the last effect");
        match effect {
            Effect::Connect => {
                self.up = self.agent;
                self.heard.clear();
                return Some(if self.agent { Event::Connected } else { Event::ConnectFailed });
            }
            Effect::Say(message) => {
                assert!(self.up);
                if let FromInit::Stopped { seq, running, .. } = &message {
                    *self.owed.entry(*seq).or_insert(2) += 1;
                    assert!(*running == 0 || self.alive);
                }
                self.heard.push(message);
            }
            Effect::Launch(_) => {
                assert!(!self.machine.held());
                self.launching = true;
                self.launches += 1;
            }
            Effect::SignalAll(ToAll::Stop) => self.stopped = true,
            Effect::SignalAll(ToAll::GoOn) => self.stopped = false,
            Effect::SignalAll(ToAll::Kill) => self.alive &= self.stubborn > 0,
            Effect::Look => {
                let busy = self.stubborn > 0;
                self.stubborn = self.stubborn.saturating_sub(1);
                let alive = u32::from(self.alive);
                let running = if self.stopped && !busy { 0 } else { alive };
                return Some(Event::Census(Census { alive, running, waiting: 0 }));
            }
            Effect::Exit { .. } => self.gone = true,
            Effect::Pong { .. }
            | Effect::TakeRing
            | Effect::SignalJob { .. }
            | Effect::WriteLeaving { .. }
            | Effect::CountUsage
            | Effect::WatchSpace { .. } => {}
        }
        None
    }

    /// What holds after every event.
    fn check(&self) {
        if self.gone {
            assert_eq!(self.machine.poll_timeout(), None);
            return;
        }
        assert!(self.launches <= 1);
        let over = self.deadline.is_some_and(|at| BootUs::from(at) <= self.now);
        if self.alive && self.ended.is_none() {
            assert_eq!(self.stopped, self.word_hold || over, "it runs exactly when nothing forbids it");
        }
    }

    fn pass(&mut self, us: u64) {
        let until = self.now.plus(us);
        while let Some(at) = self.machine.poll_timeout().filter(|at| *at <= until) {
            self.now = at.max(self.now);
            self.feed(Event::Time);
            assert!(self.machine.poll_timeout().is_none_or(|at| at > self.now), "the loop would spin");
        }
        self.now = until;
        self.feed(Event::Time);
    }

    fn drop_agent(&mut self) {
        self.agent = false;
        if std::mem::take(&mut self.up) {
            self.owed.clear();
            self.feed(Event::Disconnected);
        }
    }

    fn at(&self, ms: u64) -> BootMs {
        BootMs(self.now.0 / 1_000 + ms)
    }

    fn word(&mut self, word: ToInit) {
        if self.up {
            self.feed(Event::Word(word));
        }
    }

    fn step(&mut self, step: Step) {
        if self.gone {
            return self.feed(Event::Word(ToInit::Stop { seq: u64::MAX }));
        }
        match step {
            Step::Pass { ms } => self.pass(ms * 1_000),
            Step::AgentComes => {
                self.agent = true;
                self.feed(Event::ControlChanged);
            }
            Step::AgentGoes => self.drop_agent(),
            Step::Begin { deadline_in } => {
                let egress_deadline = deadline_in.map(|ms| self.at(ms));
                if self.up && !self.begun {
                    (self.begun, self.deadline) = (true, egress_deadline);
                }
                let command = vec!["train".to_owned()];
                let (env, directory) = (Vec::new(), "/workspace".to_owned());
                self.word(ToInit::Begin(Begin { command, env, directory, egress_deadline, disk_limit: 1 }));
            }
            Step::Adopt { deadline_in } => {
                let egress_deadline = deadline_in.map(|ms| self.at(ms));
                if self.up && self.begun {
                    self.deadline = egress_deadline;
                }
                self.word(ToInit::Adopt { egress_deadline });
            }
            Step::Deadline { deadline_in } => {
                let at = self.at(deadline_in);
                if self.up {
                    self.deadline = Some(at);
                }
                self.word(ToInit::Deadline { at });
            }
            Step::Stop if self.up => {
                self.word_hold = true;
                self.next_seq += 1;
                if self.machine.asked.len() < ASKED_MAX {
                    self.owed.insert(self.next_seq, 0);
                }
                self.word(ToInit::Stop { seq: self.next_seq });
            }
            Step::GoOn if self.up => {
                self.word_hold = false;
                self.next_seq += 1;
                self.word(ToInit::GoOn { seq: self.next_seq });
                assert!(self.owed.values().all(|answers| *answers == 1), "GoOn leaves no Stop unanswered");
            }
            Step::LaunchDone { works } if self.launching && !self.gone => {
                self.launching = false;
                if works {
                    // Born after the others were stopped, at worst.
                    (self.alive, self.stopped) = (true, false);
                    self.feed(Event::Launched { pid: PID });
                } else {
                    self.feed(Event::NotLaunched { reason: "not found".to_owned() });
                }
            }
            Step::ProgramEnds { code } if self.alive && self.ended.is_none() => {
                self.ended = Some(Exit::Code { code });
                self.feed(Event::Reaped { pid: 77, exit: Exit::Code { code: 99 } });
                self.feed(Event::Reaped { pid: PID, exit: Exit::Code { code } });
            }
            Step::OutputEnds if self.ended.is_some() => self.feed(Event::OutputEnded),
            Step::ExitSeen => self.word(ToInit::ExitSeen),
            Step::End if self.up => {
                self.word(ToInit::End { seq: 0 });
                assert!(self.gone, "the end is had at once");
            }
            Step::Garbage => self.feed(Event::Trouble("garbage".to_owned())),
            Step::Saved => self.feed(Event::Saved { at_ns: 5 }),
            Step::Stubborn { looks } => self.stubborn = looks,
            Step::Stop
            | Step::GoOn
            | Step::LaunchDone { .. }
            | Step::ProgramEnds { .. }
            | Step::OutputEnds
            | Step::End => {}
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let deadline = || proptest::option::of(0u64..3_000);
    prop_oneof![
        6 => prop_oneof![0u64..5, 0u64..4_000].prop_map(|ms| Step::Pass { ms }),
        4 => Just(Step::AgentComes),
        1 => Just(Step::AgentGoes),
        4 => deadline().prop_map(|deadline_in| Step::Begin { deadline_in }),
        1 => deadline().prop_map(|deadline_in| Step::Adopt { deadline_in }),
        2 => (0u64..3_000).prop_map(|deadline_in| Step::Deadline { deadline_in }),
        3 => Just(Step::Stop),
        3 => Just(Step::GoOn),
        5 => prop_oneof![5 => Just(true), 1 => Just(false)].prop_map(|works| Step::LaunchDone { works }),
        2 => (0i32..3).prop_map(|code| Step::ProgramEnds { code }),
        2 => Just(Step::OutputEnds),
        1 => Just(Step::ExitSeen),
        1 => prop_oneof![9 => Just(Step::Garbage), 1 => Just(Step::End)],
        1 => Just(Step::Saved),
        1 => prop_oneof![0u32..4, Just(5_000)].prop_map(|looks| Step::Stubborn { looks }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn guarantees_hold_in_any_order_of_events(steps in proptest::collection::vec(step(), 1..80)) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        // Every Stop of this connection gets exactly one answer, within the limit.
        world.pass(STOP_LIMIT + 2 * LOOK_EVERY);
        if !world.gone && !world.launching {
            prop_assert!(world.owed.values().all(|answers| *answers == 1), "{:?}", world.owed);
        }
        // Whatever came before, a new agent learns how the program ended, each time it comes.
        world.step(Step::LaunchDone { works: true });
        world.step(Step::ProgramEnds { code: 1 });
        world.step(Step::OutputEnds);
        world.pass(CLEAR_LIMIT);
        for _ in 0..2 {
            world.drop_agent();
            world.step(Step::AgentComes);
            world.pass(1_000);
            if let (false, Some(exit)) = (world.gone, world.ended) {
                let told = world.heard.iter().filter(|word| **word == FromInit::Exited(exit)).count();
                prop_assert_eq!(told, 1, "{:?}", world.heard);
            }
        }
        // And the end is always to be had.
        world.step(Step::End);
        world.pass(10_000_000);
        prop_assert!(world.gone);
    }
}

#[test]
fn the_owner_can_take_back_and_give_again() {
    let mut world = World::new();
    let steps = [
        Step::AgentComes,
        Step::Begin { deadline_in: Some(100) },
        Step::LaunchDone { works: true },
        Step::Pass { ms: 200 },
        Step::Stop,
        Step::Deadline { deadline_in: 60_000 },
    ];
    steps.into_iter().for_each(|step| world.step(step));
    assert!(world.stopped, "the renewal does not undo the owner's word");
    world.step(Step::GoOn);
    assert!(!world.stopped);
    assert_eq!(world.heard.last(), Some(&FromInit::GoingOn { seq: 2 }));
}

#[test]
fn waiting_for_an_agent_backs_off_and_hurries_when_one_shows() {
    let mut world = World::new();
    world.pass(10_000_000);
    let next = world.machine.poll_timeout().unwrap();
    assert!(next.since(world.now) > RETRY_LAST / 100 && next.since(world.now) <= RETRY_LAST);
    world.step(Step::AgentComes);
    assert!(world.up);
}

#[test]
fn counting_the_workspace_takes_a_twentieth_of_the_time_at_most() {
    let mut machine = Machine::new(BootUs(0));
    machine.phase = Phase::Running { pid: PID };
    let took_us = 3_000_000;
    machine.handle(Event::Counted { usage: None, took_us }, BootUs(1));
    assert_eq!(machine.count_at, Some(BootUs(60_000_001)));
}

#[test]
fn a_disk_that_fills_is_counted_at_once_but_no_more_than_that_twentieth() {
    let mut machine = Machine::new(BootUs(0));
    machine.phase = Phase::Running { pid: PID };
    machine.disk_limit = 100 << 20;
    let usage = |bytes| Some(Usage { bytes, files: 1 });
    let watched = |effects: Vec<Effect>| {
        effects.into_iter().find_map(|effect| match effect {
            Effect::WatchSpace { least, .. } => Some(least),
            _ => None,
        })
    };
    let took_us = 10_000;
    let first = machine.handle(Event::Counted { usage: usage(20 << 20), took_us }, BootUs(1));
    assert_eq!(watched(first), Some(40 << 20), "half of what it may still take");
    // Too soon after a count that took so long; then at the first moment that is allowed.
    assert!(!machine.handle(Event::SpaceTaken, BootUs(2)).contains(&Effect::CountUsage));
    assert_eq!(machine.count_at, Some(BootUs(200_001)));
    assert!(machine.handle(Event::Time, BootUs(200_001)).contains(&Effect::CountUsage));
    // One that is under way is not doubled.
    assert!(!machine.handle(Event::SpaceTaken, BootUs(900_000)).contains(&Effect::CountUsage));
    let second = machine.handle(Event::Counted { usage: usage(200 << 20), took_us }, BootUs(1_000_000));
    assert_eq!(watched(second), Some(TAKEN_LEAST), "one that has too much doesn't count without end");
    assert!(machine.handle(Event::SpaceTaken, BootUs(1_200_000)).contains(&Effect::CountUsage));
}

/// What the world's agent has heard of `saved`, in order.
fn saved(world: &World) -> Vec<i64> {
    let told = |word: &FromInit| match word {
        FromInit::Saved { at_ns } => Some(*at_ns),
        _ => None,
    };
    world.heard.iter().filter_map(told).collect()
}

#[test]
fn saved_in_a_loop_is_told_a_few_times_a_second_and_the_last_is_not_lost() {
    let mut world = World::new();
    let begin = [Step::AgentComes, Step::Begin { deadline_in: None }, Step::LaunchDone { works: true }];
    begin.into_iter().for_each(|step| world.step(step));
    for at_ns in 1..=2_000 {
        world.feed(Event::Saved { at_ns });
        world.pass(1_000);
    }
    assert!((4..=9).contains(&saved(&world).len()), "{:?} in two seconds", saved(&world));
    world.pass(crate::saved::EVERY);
    assert_eq!(saved(&world).last(), Some(&2_000));
    let told = saved(&world).len();
    world.pass(10_000_000);
    assert_eq!(saved(&world).len(), told, "each is told once");
}

#[test]
fn what_was_saved_is_told_before_what_is_judged_by_it() {
    for ending in [Step::Stop, Step::ProgramEnds { code: 0 }] {
        let mut world = World::new();
        let begin = [Step::AgentComes, Step::Begin { deadline_in: None }, Step::LaunchDone { works: true }];
        begin.into_iter().for_each(|step| world.step(step));
        world.feed(Event::Saved { at_ns: 1 });
        world.feed(Event::Saved { at_ns: 2 });
        world.step(ending);
        world.step(Step::OutputEnds);
        world.pass(10_000);
        let place = |wanted: &dyn Fn(&FromInit) -> bool| world.heard.iter().position(wanted);
        let told = place(&|word| *word == FromInit::Saved { at_ns: 2 }).unwrap();
        let judged = place(&|word| matches!(word, FromInit::Stopped { .. } | FromInit::Exited(_))).unwrap();
        assert!(told < judged, "{:?}", world.heard);
    }
}

#[test]
fn a_program_is_signalled_once_however_often_its_agent_says_that_it_must_leave() {
    let mut machine = Machine::new(BootUs(0));
    let signals = |machine: &mut Machine, deadline| {
        let word = ToInit::Leave { seq: 1, signal: 15, deadline: BootMs(deadline) };
        let effects = machine.handle(Event::Word(word), BootUs(1_000));
        assert!(effects.iter().any(|effect| matches!(effect, Effect::WriteLeaving { .. })));
        effects.iter().filter(|effect| matches!(effect, Effect::SignalJob { .. })).count()
    };
    assert_eq!(signals(&mut machine, 60_000), 1);
    assert_eq!(signals(&mut machine, 90_000), 0, "only the deadline is written anew");
}
