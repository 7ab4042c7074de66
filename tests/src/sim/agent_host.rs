//! The driver of one agent, as the product's is: urgent effects, then the commit (`commit`), then
//! the rest; with a crash possible between any two of them. What is on its disk are bytes; it
//! starts again by the product's own loading code.

use std::collections::BTreeMap;

use gpunion_agent_core::provider::Provider;
use gpunion_agent_core::provider::effect::{Effect, Operation};
use gpunion_agent_core::provider::event::{CallId, Engine, Event, Inventory, OpId, Outcome, Trouble};
use gpunion_agent_core::provider::record::{Change, Key, Record};
use gpunion_agent_core::provider::word::ReclaimWord;
use gpunion_protocol::egress::EgressRule;
use gpunion_protocol::guest::FromInit;
use gpunion_protocol::ids::{AttemptRef, DeviceId, GpuUuid, JobId, MemberId, SnapshotId};
use gpunion_protocol::job::{Blob, WrappedKey};
use gpunion_protocol::local::Caps;
use gpunion_protocol::session::{Assignment, ToAgent, ToRelay};
use gpunion_protocol::units::Bytes;
use gpunion_relay::broker::{Digest, SessionId};
use jiff::tz::TimeZone;

use super::chance::Chance;
use super::commit::Committing;
use super::machine::{GIB, Machine};
use super::pairs::init_word;
use super::program::Content;
use super::stats::Crash;
use super::world::{Due, Plan, World};

pub(super) struct Host {
    pub(super) device: DeviceId,
    /// Of its token, by which the relay knows it.
    pub(super) token: Digest,
    pub(super) member: MemberId,
    pub(super) egress: EgressRule,
    /// It has left its group, and is in no other yet.
    pub(super) out_of_group: bool,
    /// Devices that it would have been, had it heard the answer.
    pub(super) drawn: Vec<DeviceId>,
    /// States that somebody waits for here.
    pub(super) lurking: Vec<&'static str>,
    pub(super) memory: Memory,
    pub(super) machine: Machine,
    pub(super) agent: Option<Provider>,
    disk: BTreeMap<Key, Vec<u8>>,
    pub(super) disk_full: bool,
    pub(super) committing: Option<Committing>,
    /// Effects whose cause is not on the disk yet, and is in no commit that is under way.
    pub(super) held: Vec<Effect>,
    pub(super) chance: Chance,
    /// The machine sleeps, or its agent alone stands still, until then.
    pub(super) asleep_until: u64,
    pub(super) hung_until: u64,
    /// Counts both ends of each sleep.
    pub(super) slept: u64,
    /// Counts starts of the agent, and boots of the machine.
    pub(super) run: u64,
    pub(super) boots: u64,
    pub(super) powered: bool,
    /// It runs on its battery.
    pub(super) discharging: bool,
    pub(super) net: bool,
    pub(super) session: Option<SessionId>,
    pub(super) ops: BTreeMap<AttemptRef, OpId>,
    /// Snapshots taken and kept here until they are uploaded.
    pub(super) snapshots: BTreeMap<SnapshotId, Content>,
    pub(super) fast: bool,
    /// World time of the next reading of the GPUs.
    pub(super) next_read: u64,
    /// Effects and commits until the agent is killed.
    pub(super) dies_in: Option<u64>,
    pub(super) calls: u64,
    pub(super) reclaims: BTreeMap<CallId, Click>,
    /// The word of reclaims that were done without an agent, for the next one.
    pub(super) by_hand: Option<ReclaimWord>,
    /// The one that this run of the agent has heard already.
    pub(super) heard_word: Option<ReclaimWord>,
    pub(super) wake: u64,
    pub(super) last_wake: u64,
    pub(super) spins: u32,
}

/// What this run of the agent was told already, and may be told once more.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) assigned: Vec<Assignment>,
    pub(super) done: BTreeMap<AttemptRef, (OpId, Result<Outcome, Trouble>)>,
    /// Of each kind the last word, with what the cgroup said; gone with the guest's channel.
    pub(super) words: BTreeMap<AttemptRef, Vec<(FromInit, bool)>>,
    pub(super) lists: Vec<Inventory>,
}

/// Of each kind so many.
const REMEMBERED: usize = 12;

/// A reclaim that waits for its receipt.
#[derive(Debug)]
pub(super) struct Click {
    pub(super) gpu: Option<GpuUuid>,
    /// The reference's number of it.
    pub(super) number: u64,
}

pub(super) fn caps() -> Caps {
    Caps { cpus: 8, memory: Bytes(64 * GIB), disk: Bytes(200 * GIB) }
}

impl Memory {
    fn assigned(&mut self, assignment: &Assignment) {
        self.assigned.retain(|known| known.attempt != assignment.attempt);
        self.assigned.push(assignment.clone());
        keep_the_last(&mut self.assigned);
    }

    pub(super) fn listed(&mut self, list: &Inventory) {
        self.lists.push(list.clone());
        keep_the_last(&mut self.lists);
    }

    /// How much of it could be told once more.
    pub(super) fn told(&self, attempt: &AttemptRef) -> usize {
        let lists =
            self.lists.iter().filter(|list| list.containers.iter().any(|one| one.attempt == *attempt));
        lists.count().min(2) * 3 + self.words.get(attempt).map_or(0, Vec::len)
    }

    pub(super) fn has_listed(&self, attempt: &AttemptRef) -> bool {
        self.lists.iter().any(|list| list.containers.iter().any(|one| one.attempt == *attempt))
    }

    pub(super) fn said(&mut self, attempt: &AttemptRef, word: &FromInit, memory_limit: bool) {
        let words = self.words.entry(attempt.clone()).or_default();
        words.retain(|(known, _)| init_word(known) != init_word(word));
        words.push((word.clone(), memory_limit));
    }
}

fn keep_the_last<T>(all: &mut Vec<T>) {
    if all.len() > REMEMBERED {
        all.remove(0);
    }
}

impl Host {
    pub(super) fn new(
        device: DeviceId,
        token: Digest,
        member: MemberId,
        machine: Machine,
        chance: Chance,
    ) -> Self {
        Self {
            device,
            token,
            member,
            egress: EgressRule::Asked,
            out_of_group: false,
            drawn: Vec::new(),
            lurking: Vec::new(),
            memory: Memory::default(),
            machine,
            agent: None,
            disk: BTreeMap::new(),
            disk_full: false,
            committing: None,
            held: Vec::new(),
            chance,
            asleep_until: 0,
            hung_until: 0,
            slept: 0,
            run: 0,
            boots: 0,
            powered: true,
            discharging: false,
            net: true,
            session: None,
            ops: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            fast: false,
            next_read: 0,
            dies_in: None,
            calls: 0,
            reclaims: BTreeMap::new(),
            by_hand: None,
            heard_word: None,
            wake: u64::MAX,
            last_wake: 0,
            spins: 0,
        }
    }

    pub(super) fn call(&mut self) -> CallId {
        self.calls += 1;
        CallId(self.calls)
    }

    pub(super) fn write(&mut self, changes: Vec<Change>) -> Result<(), String> {
        for change in changes {
            match change {
                Change::Put(record) => {
                    let bytes =
                        serde_json::to_vec(&record).map_err(|e| format!("a record can't be saved: {e}"))?;
                    self.disk.insert(record.key(), bytes);
                }
                Change::Delete(key) => {
                    self.disk.remove(&key);
                }
            }
        }
        Ok(())
    }

    fn load(&self) -> Result<Vec<Record>, String> {
        let read = |bytes: &Vec<u8>| serde_json::from_slice(bytes);
        self.disk
            .values()
            .map(read)
            .collect::<Result<_, _>>()
            .map_err(|e| format!("a record can't be loaded: {e}"))
    }

    pub(super) fn knows(&self, attempt: &AttemptRef) -> bool {
        self.agent.as_ref().is_some_and(|agent| agent.attempt(attempt).is_some())
    }

    pub(super) fn is_current(&self, run: u64) -> bool {
        self.agent.is_some() && self.run == run
    }
}

impl World {
    pub(super) fn agent_starts(&mut self, host: usize) {
        let seat = &mut self.hosts[host];
        if !seat.powered {
            seat.powered = true;
            seat.boots += 1;
            seat.machine.clock.boot(self.at);
        }
        if seat.agent.is_some() {
            return;
        }
        let records = match seat.load() {
            Ok(records) => records,
            Err(what) => return self.fail(what),
        };
        seat.run += 1;
        seat.dies_in = None;
        let agent = Provider::load(records, caps(), seat.machine.clock.now(self.at));
        let agent = agent.with_egress(seat.egress.clone());
        let zone = agent.rules().zone.is_some().then_some(TimeZone::UTC);
        let agent = agent.with_zone(zone);
        self.reference.agent_started(host, seat.machine.clock.now(self.at));
        self.pairs.agent_started(&agent);
        seat.agent = Some(agent);
        let run = seat.run;
        self.trace.say(self.at, || format!("agent {host} starts (run {run})"));
        // Before anything is said to anybody.
        self.look_for_word(host);
        if !self.hosts[host].is_current(run) {
            return;
        }
        let discharging = self.hosts[host].discharging;
        self.agent(host, Event::Battery { discharging: Some(discharging) });
        if !self.hosts[host].is_current(run) {
            return;
        }
        let engine_says = self.chance.between(1, 400);
        self.after(engine_says, Due::EngineTold { host });
        let (reads, dials) = (self.chance.between(1, 400), self.chance.between(1, 400));
        self.read_gpus_in(host, reads);
        self.after(dials, Due::Dial { host, run });
        self.set_wake(host);
    }

    pub(super) fn agent_dies(&mut self, host: usize) {
        self.trace.say(self.at, || format!("agent {host} DIES"));
        self.stats.agent_crashes += 1;
        self.reference.agent_died(host);
        let seat = &mut self.hosts[host];
        seat.agent = None;
        seat.ops.clear();
        seat.committing = None;
        seat.held.clear();
        seat.memory = Memory::default();
        seat.lurking.clear();
        seat.heard_word = None;
        seat.hung_until = 0;
        seat.fast = false;
        seat.dies_in = None;
        seat.wake = u64::MAX;
        let unanswered = std::mem::take(&mut seat.reclaims).into_values().map(|click| click.gpu);
        let unanswered: Vec<_> = unanswered.collect();
        if let Some(session) = seat.session.take() {
            self.cut(session, host);
        }
        for gpu in unanswered {
            let again = self.chance.between(200, 2_000);
            self.after(again, Due::Owner { host, what: super::people::Owner::Reclaim { gpu } });
        }
    }

    /// True when the agent is killed at this very point.
    pub(super) fn dies_here(&mut self, host: usize, point: Crash) -> bool {
        let Some(left) = self.hosts[host].dies_in.as_mut() else { return false };
        if *left > 0 {
            *left -= 1;
            return false;
        }
        self.stats.crash("agent", point);
        self.agent_dies(host);
        self.back_later(host);
        true
    }

    pub(super) fn back_later(&mut self, host: usize) {
        let down = self.chance.mostly_short(300, 90_000);
        self.after(down, Due::AgentStarts { host });
    }

    /// One step of the agent's machine, with all that its driver does around it: a reclaim that was
    /// done while the agent stood still came before anything that waited for it.
    pub(super) fn agent(&mut self, host: usize, event: Event) {
        if !matches!(event, Event::ReclaimedByHand { .. }) {
            self.look_for_word(host);
        }
        let now = self.hosts[host].machine.clock.now(self.at);
        let Some(agent) = self.hosts[host].agent.as_mut() else { return };
        if !matches!(event, Event::Gpus(_)) {
            self.trace.say(self.at, || format!("agent {host} <- {}", brief(&event)));
        }
        let told = event.clone();
        self.pairs.at_agent(agent, &event);
        let effects = agent.handle(event, now);
        // What the owner was refused was not said.
        let refused = effects.iter().any(|effect| {
            matches!(
                effect,
                Effect::ShareAnswer { answer: Err(_), .. } | Effect::ReclaimAnswer { answer: Err(_), .. }
            )
        });
        let told = if refused { Event::Timeout } else { told };
        if let Err(what) = agent.check_invariants() {
            return self.fail(format!("agent {host}: {what}"));
        }
        if let Err(what) = self.reference.agent_heard(host, &told, agent, now) {
            return self.fail(format!("agent {host}: {what}"));
        }
        let (urgent, rest): (Vec<Effect>, Vec<Effect>) = effects.into_iter().partition(Effect::is_urgent);
        self.hosts[host].held.extend(rest);
        for effect in urgent {
            if self.dies_here(host, Crash::BetweenUrgent) {
                return;
            }
            self.effect(host, effect);
        }
        self.set_wake(host);
        self.commit(host);
        self.spring(host);
    }

    /// `gpunion reclaim` acts by itself when no agent answers, and leaves word.
    pub(super) fn look_for_word(&mut self, host: usize) {
        let seat = &mut self.hosts[host];
        if seat.agent.is_none() {
            return;
        }
        let Some(word) = seat.by_hand.clone().filter(|word| seat.heard_word.as_ref() != Some(word)) else {
            return;
        };
        seat.heard_word = Some(word.clone());
        self.agent(host, Event::ReclaimedByHand { word });
    }

    pub(super) fn set_wake(&mut self, host: usize) {
        let seat = &mut self.hosts[host];
        let wanted = seat.agent.as_ref().and_then(Provider::poll_timeout);
        seat.wake = wanted.map_or(u64::MAX, |boot| seat.machine.clock.world(boot));
    }

    pub(super) fn effect(&mut self, host: usize, effect: Effect) {
        if !self.hosts[host].agent.as_ref().is_some_and(|agent| agent.still_wants(&effect)) {
            return;
        }
        self.trace.say(self.at, || format!("agent {host} -> {effect:?}"));
        match effect {
            Effect::ToRelay(message) => self.send_to_relay(host, message),
            Effect::Do { attempt, op, what } => self.operation_begins(host, attempt, op, what),
            Effect::GiveUp { attempt } => {
                self.hosts[host].ops.remove(&attempt);
            }
            Effect::Attach { attempt, container: _, process } => self.attach(host, &attempt, process),
            Effect::Say { attempt, word } => self.word_to_init(host, &attempt, word),
            Effect::EndFile { attempt } => self.end_file(host, &attempt),
            Effect::SecondWay { attempt } => self.second_way(host, &attempt),
            Effect::EngineKill { attempt } => self.engine_kill(host, &attempt),
            Effect::RemoveContainer { container } => self.remove_container(host, &container),
            Effect::ListOurs => {
                let (run, delay) = (self.hosts[host].run, self.chance.between(5, 800));
                self.after(delay, Due::List { host, run });
            }
            Effect::RemoveLeft { attempt } => self.remove_left(host, &attempt),
            Effect::ForgetLog { .. } => {}
            Effect::WatchGpus { fast } => {
                let was = std::mem::replace(&mut self.hosts[host].fast, fast);
                if fast && !was {
                    self.read_gpus_in(host, 20);
                }
            }
            Effect::WordHeard { word } => {
                let lies_there = &mut self.hosts[host].by_hand;
                lies_there.take_if(|there| *there == word);
            }
            Effect::ShareAnswer { .. } => {}
            Effect::RulesAnswer { answer: Ok(_), .. } | Effect::Wipe { .. } => {}
            Effect::RulesAnswer { answer: Err(problem), .. } => {
                self.fail(format!("a rule is refused on {host}: {problem}"));
            }
            Effect::ReclaimAnswer { call, answer: Ok(receipt) } => self.receipt_given(host, call, &receipt),
            Effect::ReclaimAnswer { call, answer: Err(problem) } => {
                self.reclaim_refused(host, call, &problem)
            }
        }
    }

    fn operation_begins(&mut self, host: usize, attempt: AttemptRef, op: OpId, what: Operation) {
        let longest = match what {
            Operation::Image | Operation::Upload { .. } => 6_000,
            Operation::Stage | Operation::PassOne | Operation::Whole => 3_000,
            Operation::Create | Operation::Start | Operation::Clean => 800,
            Operation::PassTwo => 2_500,
        };
        let delay = self.chance.mostly_short(5, longest);
        let seat = &mut self.hosts[host];
        seat.ops.insert(attempt.clone(), op);
        let assignment = seat.agent.as_ref().and_then(|a| a.attempt(&attempt)).map(|a| &a.record.assignment);
        let plan = Plan {
            boots: seat.boots,
            gpus: assignment.map(|a| a.gpus.clone()).unwrap_or_default(),
            from: assignment.and_then(|a| a.from.or(a.input)),
        };
        let run = seat.run;
        if what == Operation::Start
            && let Err(broken) = self.reference.may_start(host, &attempt)
        {
            self.fail(format!("agent {host} starts {attempt}: {broken}"));
        }
        self.after(delay, Due::Done { host, run, attempt, op, what, plan });
    }

    pub(super) fn reaches_agent(&mut self, host: usize, session: SessionId, message: ToAgent) {
        if self.hosts[host].session != Some(session) || !self.net.is_up(session) {
            return;
        }
        match message {
            ToAgent::Welcome { terms, epoch, .. } => self.agent(host, Event::LinkUp { terms, epoch }),
            ToAgent::WrapFor { job, device, .. } => self.wrap(host, job, device),
            ToAgent::Assign(assignment) => {
                self.hosts[host].memory.assigned(&assignment);
                self.agent(host, Event::Relay(Box::new(ToAgent::Assign(assignment))));
            }
            message => self.agent(host, Event::Relay(Box::new(message))),
        }
    }

    /// Keys are the driver's: whoever was given a job's key wraps it for others.
    fn wrap(&mut self, host: usize, job: JobId, device: DeviceId) {
        let key = WrappedKey { device, wrapped: Blob(vec![7]) };
        self.send_to_relay(host, ToRelay::Wrapped { job, key });
    }

    pub(super) fn set_engine(&mut self, host: usize, there: bool) {
        self.hosts[host].machine.engine = there;
        self.after(1, Due::EngineTold { host });
    }

    pub(super) fn engine_told(&mut self, host: usize) {
        let there = self.hosts[host].machine.engine;
        let engine = if there {
            let (cpus, memory) = (8, Bytes(64 * GIB));
            Engine::Known {
                architecture: "amd64".to_owned(),
                cpus,
                memory,
                disk: Bytes(200 * GIB),
                blocked: None,
            }
        } else {
            Engine::Unknown { why: "it does not answer".to_owned() }
        };
        self.agent(host, Event::Engine(engine));
    }
}

/// A message in a few words.
fn brief(event: &Event) -> String {
    match event {
        Event::Gpus(_) => "Gpus".to_owned(),
        Event::Relay(message) => match message.as_ref() {
            ToAgent::Assign(a) => {
                format!("Assign {} {:?} from {:?} wait {}", a.attempt, a.gpus, a.from, a.wait)
            }
            other => format!("{other:?}"),
        },
        other => format!("{other:?}"),
    }
}
