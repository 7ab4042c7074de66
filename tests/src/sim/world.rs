//! The world: one virtual time, one queue of what is due, a relay, three machines with their
//! agents, a network between them and people in front of them. Everything that happens is one
//! entry of the queue or one timer of a machine; the same seed and script give the same world to
//! the bit.

use std::collections::BTreeMap;

use gpunion_agent_core::gpu::verify::ProcessId;
use gpunion_agent_core::provider::effect::Operation;
use gpunion_agent_core::provider::event::{Event as AgentEvent, Inventory, OpId};
use gpunion_protocol::guest::FromInit;
use gpunion_protocol::ids::{AttemptRef, DeviceId, GpuUuid, JobId, SnapshotId};
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_protocol::time::BootMs;
use gpunion_relay::broker::SessionId;

use super::Stats;
use super::agent_host::Host;
use super::chance::{Chance, Stream};
use super::group::Redeeming;
use super::jobs::PlannedJob;
use super::net::{Luck, Net};
use super::pairs::Pairs;
use super::people::Owner;
use super::program::Content;
use super::reference::Reference;
use super::relay_host::RelayHost;
use super::script::{Part, Script, Small};
use super::trace::Trace;
use super::work::Work;

/// A timer that is due again and again at one instant keeps a core busy for nothing.
const SPINS_MAX: u32 = 40;

pub(super) struct World {
    pub(super) at: u64,
    pub(super) seed: u64,
    /// The luck of whoever acts just now.
    pub(super) chance: Chance,
    /// When the next fault comes, and how many there were.
    pub(super) fault_times: Chance,
    pub(super) faults: u64,
    pub(super) submits: u64,
    pub(super) script: Script,
    /// Faults and jobs that happened, in order.
    pub(super) happened: Vec<Part>,
    due: BTreeMap<(u64, u64), Due>,
    order: u64,
    pub(super) net: Net,
    pub(super) relay: RelayHost,
    pub(super) hosts: Vec<Host>,
    /// What the relay's store of packs holds; on its disk.
    pub(super) store: BTreeMap<SnapshotId, Content>,
    /// When each of them was sent last.
    pub(super) sent: BTreeMap<SnapshotId, u64>,
    pub(super) jobs: Vec<PlannedJob>,
    pub(super) by_id: BTreeMap<JobId, usize>,
    pub(super) reference: Reference,
    pub(super) work: Work,
    /// No more faults.
    pub(super) calm: bool,
    /// Milliseconds between two faults at most; a small number is a rough world.
    pub(super) peace: u64,
    /// Three faults of four wait for their moment.
    pub(super) lurking: bool,
    pub(super) stats: Stats,
    /// Which events came to which states.
    pub(super) pairs: Pairs,
    pub(super) trace: Trace,
    pub(super) failure: Option<String>,
}

#[derive(Debug, Clone)]
pub(super) enum Due {
    AtRelay {
        host: usize,
        session: SessionId,
        message: Box<ToRelay>,
    },
    AtAgent {
        host: usize,
        session: SessionId,
        message: Box<ToAgent>,
    },
    Dial {
        host: usize,
        run: u64,
    },
    AgentLearnsCut {
        host: usize,
        session: SessionId,
    },
    RelayLearnsCut {
        host: usize,
        session: SessionId,
        relay_run: u64,
    },
    AgentStarts {
        host: usize,
    },
    EngineBack {
        host: usize,
    },
    NetBack {
        host: usize,
    },
    DiskHasRoom {
        host: usize,
    },
    RelayHasRoom,
    /// A commit that was begun is on the disk, or is not.
    Commits {
        host: usize,
        run: u64,
    },
    RelayCommits {
        run: u64,
    },
    RelayWakes {
        run: u64,
        length: u64,
    },
    /// The agent learns how its engine is now.
    EngineTold {
        host: usize,
    },
    /// The agent looks whether a reclaim was done without it.
    Looks {
        host: usize,
        run: u64,
    },
    Done {
        host: usize,
        run: u64,
        attempt: AttemptRef,
        op: OpId,
        what: Operation,
        plan: Plan,
    },
    Init {
        host: usize,
        run: u64,
        attempt: AttemptRef,
        word: FromInit,
        memory_limit: bool,
    },
    Gone {
        host: usize,
        run: u64,
        attempt: AttemptRef,
    },
    SecondWay {
        host: usize,
        run: u64,
        attempt: AttemptRef,
        stopped: BootMs,
    },
    InitHears {
        host: usize,
        attempt: AttemptRef,
    },
    CannotBegin {
        host: usize,
        run: u64,
        attempt: AttemptRef,
    },
    List {
        host: usize,
        run: u64,
    },
    Found {
        host: usize,
        run: u64,
        list: Inventory,
    },
    ReadGpus {
        host: usize,
        run: u64,
    },
    Step {
        host: usize,
        attempt: AttemptRef,
        plan: u64,
    },
    RelayStarts,
    Client {
        job: usize,
    },
    Owner {
        host: usize,
        what: Owner,
    },
    OwnerLooks {
        host: usize,
        gpu: Option<GpuUuid>,
        generation: u64,
        slept: u64,
    },
    /// An agent that was told to stop ends when nothing is left, or when it is told once more.
    StopLooks {
        host: usize,
        run: u64,
        once_more: u64,
    },
    /// A guest that was told to leave is looked for when it must be gone.
    LeaveLooks {
        host: usize,
        run: u64,
        slept: u64,
        attempts: Vec<AttemptRef>,
    },
    /// The program of a guest sees that it must leave.
    Heeds {
        host: usize,
        attempt: AttemptRef,
        process: ProcessId,
    },
    Wakes {
        host: usize,
    },
    /// Init of a guest with egress looks at its clock.
    Deadline {
        host: usize,
        attempt: AttemptRef,
        at: BootMs,
    },
    /// Init has something to say of its own, if it is still there.
    InitSays {
        host: usize,
        attempt: AttemptRef,
        word: FromInit,
    },
    /// What it takes to begin is there at last.
    Begins {
        host: usize,
        run: u64,
        attempt: AttemptRef,
    },
    /// What the program left behind is gone: init reports its exit.
    Cleared {
        host: usize,
        attempt: AttemptRef,
    },
    /// Who lay in wait for a state strikes.
    Strikes {
        host: usize,
        run: u64,
        attempt: AttemptRef,
        state: &'static str,
    },
    StrikesRelay {
        attempt: AttemptRef,
        state: &'static str,
    },
    Revokes {
        device: DeviceId,
    },
    /// The owner of a device that the relay does not know any more.
    OwnerLeaves {
        host: usize,
    },
    Joins {
        host: usize,
    },
    Redeems(Redeeming),
    Fault,
    Submit,
}

/// What an operation needs to know when it is carried out, also after its agent has died.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) boots: u64,
    pub(super) gpus: Vec<GpuUuid>,
    pub(super) from: Option<SnapshotId>,
}

impl World {
    pub(super) fn new(seed: u64, script: Script, trace: bool) -> Self {
        let mut chance = Chance::of(seed, Stream::World, 0);
        let peace = [800, 3_000, 8_000, 20_000][chance.index(4)];
        let net = Net::new([30, 300, 2_500][chance.index(3)]);
        let lurking = chance.coin();
        let mut world = Self {
            at: 1_000,
            seed,
            fault_times: Chance::of(seed, Stream::Faults, 0),
            faults: 0,
            submits: 0,
            script,
            happened: Vec::new(),
            relay: RelayHost::new(seed),
            hosts: Vec::new(),
            chance,
            due: BTreeMap::new(),
            order: 0,
            net,
            store: BTreeMap::new(),
            sent: BTreeMap::new(),
            jobs: Vec::new(),
            by_id: BTreeMap::new(),
            reference: Reference::default(),
            work: Work::default(),
            calm: false,
            peace,
            lurking,
            stats: Stats::default(),
            pairs: Pairs::default(),
            trace: Trace::new(trace),
            failure: None,
        };
        world.found_group();
        world
    }

    pub(super) fn after(&mut self, delay: u64, due: Due) {
        self.at_time(self.at + delay, due);
    }

    pub(super) fn at_time(&mut self, at: u64, due: Due) {
        self.order += 1;
        self.due.insert((at, self.order), due);
    }

    pub(super) fn fail(&mut self, what: impl Into<String>) {
        if self.failure.is_none() {
            self.failure = Some(what.into());
        }
    }

    pub(super) fn host_of(&self, device: &DeviceId) -> Option<usize> {
        self.hosts.iter().position(|host| host.device == *device)
    }

    /// A small trouble comes, once in `n` times, unless the world is calm or goes without it.
    pub(super) fn small(&mut self, trouble: Small, n: u64) -> bool {
        let comes = self.chance.one_in(n);
        comes && !self.calm && self.script.has(Part::Small(trouble))
    }

    /// What becomes of a message.
    pub(super) fn luck(&mut self) -> Luck {
        let (lost, reordered) = (self.small(Small::Lost, 60), self.small(Small::Reordered, 25));
        match (lost, reordered) {
            (true, _) => {
                self.stats.lost += 1;
                Luck::Lost
            }
            (false, true) => {
                self.stats.reordered += 1;
                Luck::Reordered
            }
            (false, false) => Luck::InOrder,
        }
    }

    /// The next thing happens, and what guests compute by it is written down.
    pub(super) fn step(&mut self) {
        self.next_thing();
        self.watch_work();
    }

    fn next_thing(&mut self) {
        self.stats.steps += 1;
        let queued = self.due.keys().next().map_or(u64::MAX, |(at, _)| *at);
        let wake = |host: &Host| host.wake.max(host.still_until());
        let host = (0..self.hosts.len()).min_by_key(|host| wake(&self.hosts[*host]));
        let wakes = host.map_or(u64::MAX, |host| wake(&self.hosts[host]));
        let relay = self.relay.wake.max(self.relay.hung_until);
        let next = queued.min(wakes).min(relay);
        if next == u64::MAX {
            return self.fail("nothing is due any more");
        }
        self.at = self.at.max(next);
        // What became due while it stood still comes after what it hears first.
        if relay == next && queued > next {
            return self.acting(Actor::Relay, Self::relay_timeout);
        }
        if let Some(host) = host.filter(|_| wakes == next) {
            return self.acting(Actor::Machine(host), |world| world.agent_timeout(host));
        }
        if let Some((_, due)) = self.due.pop_first() {
            match self.stands_still(&due) {
                Some(until) => self.at_time(until, due),
                None => self.acting(actor(&due), |world| world.happens(due)),
            }
        }
    }

    /// Whoever acts draws from a stream of its own.
    pub(super) fn acting(&mut self, actor: Actor, act: impl FnOnce(&mut Self)) {
        self.swap_luck(actor);
        act(self);
        self.swap_luck(actor);
    }

    fn swap_luck(&mut self, actor: Actor) {
        let own = match actor {
            Actor::World => return,
            Actor::Relay => &mut self.relay.chance,
            Actor::Machine(host) => &mut self.hosts[host].chance,
        };
        std::mem::swap(&mut self.chance, own);
    }

    fn relay_timeout(&mut self) {
        self.relay.spins = if self.relay.last_wake == self.at { self.relay.spins + 1 } else { 0 };
        self.relay.last_wake = self.at;
        if self.relay.spins > SPINS_MAX {
            return self.fail("the relay's timer is due again and again at one instant");
        }
        self.broker(gpunion_relay::broker::Event::Timeout);
    }

    fn agent_timeout(&mut self, host: usize) {
        let (at, seat) = (self.at, &mut self.hosts[host]);
        seat.spins = if seat.last_wake == at { seat.spins + 1 } else { 0 };
        seat.last_wake = at;
        if seat.spins > SPINS_MAX {
            return self.fail(format!("the timer of agent {host} is due again and again at one instant"));
        }
        self.agent(host, AgentEvent::Timeout);
    }

    fn happens(&mut self, due: Due) {
        match due {
            Due::AtRelay { host, session, message } => self.reaches_relay(host, session, *message),
            Due::AtAgent { host, session, message } => self.reaches_agent(host, session, *message),
            Due::Dial { host, run } => self.dial(host, run),
            Due::AgentLearnsCut { host, session } => self.agent_learns_cut(host, session),
            Due::RelayLearnsCut { host, session, relay_run } => {
                self.relay_learns_cut(host, session, relay_run);
            }
            Due::AgentStarts { host } => self.agent_starts(host),
            Due::EngineBack { host } => self.set_engine(host, true),
            Due::NetBack { host } => self.hosts[host].net = true,
            Due::EngineTold { host } => self.engine_told(host),
            Due::DiskHasRoom { host } => self.hosts[host].disk_full = false,
            Due::RelayHasRoom => self.relay.disk_full = false,
            Due::Commits { host, run } => self.commit_ends(host, run),
            Due::RelayCommits { run } => self.relay_commit_ends(run),
            Due::RelayWakes { run, length } => self.relay_wakes(run, length),
            Due::Looks { host, run } => {
                if self.hosts[host].is_current(run) {
                    self.look_for_word(host);
                }
            }
            Due::Done { host, run, attempt, op, what, plan } => {
                self.operation_ends(host, run, attempt, op, what, &plan);
            }
            Due::Init { host, run, attempt, word, memory_limit } => {
                self.init_heard(host, run, attempt, word, memory_limit);
            }
            Due::Gone { host, run, attempt } => self.gone_seen(host, run, attempt),
            Due::SecondWay { host, run, attempt, stopped } => {
                self.second_way_seen(host, run, attempt, stopped);
            }
            Due::InitHears { host, attempt } => self.init_hears(host, &attempt),
            Due::CannotBegin { host, run, attempt } => {
                let seat = &self.hosts[host];
                if seat.is_current(run) && seat.machine.containers.contains_key(&attempt) {
                    let reason = "its image is gone".to_owned();
                    self.agent(host, AgentEvent::CannotBegin { attempt, reason });
                }
            }
            Due::List { host, run } => self.list_taken(host, run),
            Due::Found { host, run, list } => self.list_given(host, run, list),
            Due::ReadGpus { host, run } => self.gpus_poll(host, run),
            Due::Step { host, attempt, plan } => self.program_steps(host, &attempt, plan),
            Due::RelayStarts => self.relay_starts(),
            Due::Client { job } => self.client_calls(job),
            Due::Owner { host, what } => self.owner_acts(host, what),
            Due::OwnerLooks { host, gpu, generation, slept } => {
                self.owner_looks(host, gpu, generation, slept);
            }
            Due::StopLooks { host, run, once_more } => self.stop_looks(host, run, once_more),
            Due::LeaveLooks { host, run, slept, attempts } => {
                self.leave_looks(host, run, slept, attempts);
            }
            Due::Heeds { host, attempt, process } => self.heeds(host, &attempt, process),
            Due::Wakes { host } => self.wakes(host),
            Due::Deadline { host, attempt, at } => self.deadline_passes(host, &attempt, at),
            Due::InitSays { host, attempt, word } => self.init_says(host, &attempt, word),
            Due::Begins { host, run, attempt } => self.begins_at_last(host, run, &attempt),
            Due::Cleared { host, attempt } => self.cleared(host, &attempt),
            Due::Strikes { host, run, attempt, state } => self.strikes_at_agent(host, run, &attempt, state),
            Due::StrikesRelay { attempt, state } => self.strikes_at_relay(&attempt, state),
            Due::Revokes { device } => self.revokes(&device),
            Due::OwnerLeaves { host } => self.owner_leaves(host),
            Due::Joins { host } => self.joins(host),
            Due::Redeems(redeeming) => self.redeems(redeeming),
            Due::Fault => self.fault(),
            Due::Submit => self.member_submits(),
        }
    }
}

/// Who draws the lots of a step.
#[derive(Debug, Clone, Copy)]
pub(super) enum Actor {
    World,
    Relay,
    Machine(usize),
}

fn actor(due: &Due) -> Actor {
    match due {
        Due::AtRelay { .. }
        | Due::RelayLearnsCut { .. }
        | Due::RelayStarts
        | Due::RelayHasRoom
        | Due::RelayCommits { .. }
        | Due::RelayWakes { .. }
        | Due::StrikesRelay { .. }
        | Due::Revokes { .. }
        | Due::Redeems(_)
        | Due::Client { .. } => Actor::Relay,
        Due::AtAgent { host, .. }
        | Due::Dial { host, .. }
        | Due::AgentLearnsCut { host, .. }
        | Due::AgentStarts { host }
        | Due::EngineBack { host }
        | Due::EngineTold { host }
        | Due::NetBack { host }
        | Due::DiskHasRoom { host }
        | Due::Commits { host, .. }
        | Due::Looks { host, .. }
        | Due::Done { host, .. }
        | Due::Init { host, .. }
        | Due::Gone { host, .. }
        | Due::SecondWay { host, .. }
        | Due::InitHears { host, .. }
        | Due::CannotBegin { host, .. }
        | Due::List { host, .. }
        | Due::Found { host, .. }
        | Due::ReadGpus { host, .. }
        | Due::Step { host, .. }
        | Due::Owner { host, .. }
        | Due::OwnerLooks { host, .. }
        | Due::LeaveLooks { host, .. }
        | Due::StopLooks { host, .. }
        | Due::Heeds { host, .. }
        | Due::Deadline { host, .. }
        | Due::InitSays { host, .. }
        | Due::Begins { host, .. }
        | Due::Cleared { host, .. }
        | Due::Strikes { host, .. }
        | Due::OwnerLeaves { host }
        | Due::Joins { host }
        | Due::Wakes { host } => Actor::Machine(*host),
        Due::Fault | Due::Submit => Actor::World,
    }
}
