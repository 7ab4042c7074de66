//! The owners: who lend, take back and lend again.

use gpunion_agent_core::provider::Provider;
use gpunion_agent_core::provider::event::{CallId, Event};
use gpunion_agent_core::provider::record::Phase;
use gpunion_agent_core::provider::word::{ReclaimWord, Wanted};
use gpunion_protocol::egress::EgressRule;
use gpunion_protocol::http::Role;
use gpunion_protocol::ids::{AttemptRef, DeviceId, GpuUuid, InviteId, MemberId};
use gpunion_protocol::job::Blob;
use gpunion_protocol::local::{PauseRequest, ShareRequest};
use gpunion_protocol::problem::Problem;
use gpunion_protocol::receipt::Receipt;
use gpunion_protocol::time::{Millis, WallMs};
use gpunion_protocol::units::Span;
use gpunion_relay::broker::{By, Digest, Event as ToBroker, Reply};

use super::agent_host::{Click, Host};
use super::chance::{Chance, Stream};
use super::clock::Clock;
use super::machine::{GIB, Gpu, Machine};
use super::world::{Due, World};

/// The longest grace that an owner gives, as nobody here says otherwise, milliseconds.
const GRACE: u64 = 60_000;
/// What it may take to end a guest whose init is deaf and whose engine is silent.
const STUBBORN: u64 = 60_000;
/// A reclaim has ended every guest that it can reach after so long, milliseconds.
const ENDED_WITHIN: u64 = 5_000;

#[derive(Debug, Clone)]
pub(super) enum Owner {
    Share {
        on: bool,
        gpu: Option<GpuUuid>,
        for_ms: Option<u64>,
    },
    Reclaim {
        gpu: Option<GpuUuid>,
    },
    /// The agent is told to stop, and is started again some time later.
    StopAgent,
    /// For a length of time, until a time of day, or until resumed.
    Pause {
        for_ms: Option<u64>,
        until_ms: Option<u64>,
    },
    Resume,
    Wipes,
    Sets(Vec<(&'static str, String)>),
    Battery(bool),
    /// The hours are over: who is here leaves.
    HoursEnd,
    /// What the owner ran on this GPU by hand has ended.
    WorkEnds {
        gpu: usize,
    },
    /// The machine is carried away asleep.
    Sleeps {
        for_ms: u64,
    },
    PowerGoes {
        for_ms: u64,
    },
}

impl World {
    /// Two members; three machines, two of them the first member's, with one or two GPUs each.
    pub(super) fn found_group(&mut self) {
        let mut members: Vec<MemberId> = Vec::new();
        for number in 0..3_u64 {
            let owner: Option<MemberId> = if number == 1 { members.first().cloned() } else { None };
            let (code, token) = (Digest::of(&[number as u8]), Digest::of(&[100 + number as u8]));
            let request = self.relay.request();
            let invite = InviteId::new(number, [1; 10]);
            self.call_now(ToBroker::NewInvite {
                request,
                by: By::Relay,
                invite,
                code,
                role: Role::Operator,
                member: owner,
                expires: WallMs(i64::MAX),
            });
            let request = self.relay.request();
            let joined = self.call_now(ToBroker::Redeem {
                request,
                code,
                member_name: format!("member {number}"),
                device_name: format!("machine {number}"),
                public_key: Blob(vec![number as u8; 32]),
                member: MemberId::new(number, [2; 10]),
                device: DeviceId::new(number, [3; 10]),
                token,
            });
            let Some(Reply::Joined { member, device, .. }) = joined else {
                return self.fail("a device could not join");
            };
            members.push(member.clone());
            let mut host = self.new_host(number, device, member, token);
            // One owner of three lets nobody out.
            if number == 2 {
                host.egress = EgressRule::Off;
            }
            self.hosts.push(host);
        }
        for host in 0..self.hosts.len() {
            let gpus: Vec<GpuUuid> = self.hosts[host].machine.gpus.iter().map(|g| g.uuid.clone()).collect();
            self.reference.new_host(gpus);
            self.agent_starts(host);
            let shares = self.chance.between(500, 3_000);
            self.rules_of_calm(host);
            self.after(shares, Due::Owner { host, what: Owner::Share { on: true, gpu: None, for_ms: None } });
        }
        self.after(1_500, Due::Submit);
        self.after(4_000, Due::Fault);
    }

    fn new_host(&mut self, number: u64, device: DeviceId, member: MemberId, token: Digest) -> Host {
        let drift = self.chance.between(0, 400) as i64 - 200;
        let wall_off = self.chance.between(0, 7_200_000) as i64 - 3_600_000;
        let mut clock = Clock::new(drift, wall_off);
        clock.boot(self.at - self.chance.between(0, 900));
        let lists = !self.chance.one_in(4);
        let gpus = (0..self.chance.between(1, 2))
            .map(|gpu| Gpu::new(format!("GPU-{number}-{gpu}"), if gpu == 0 { 24 } else { 12 } * GIB, lists));
        let gpus = gpus.collect();
        let chance = Chance::of(self.seed, Stream::Machine, number);
        Host::new(device, token, member, Machine::new(clock, gpus), chance)
    }

    pub(super) fn owner_acts(&mut self, host: usize, what: Owner) {
        self.trace.say(self.at, || format!("owner {host}: {what:?}"));
        match what {
            Owner::Share { on, gpu, for_ms } => {
                let seat = &mut self.hosts[host];
                let now = seat.machine.clock.now(self.at);
                let until = for_ms.map(|ms| WallMs(now.wall.0 + ms as i64));
                let request = ShareRequest { on: Some(on), gpu, until, ..ShareRequest::default() };
                let call = seat.call();
                self.agent(host, Event::Share { call, request });
                if !on {
                    self.leaves_from_now(host);
                }
            }
            Owner::Reclaim { gpu } => self.owner_reclaims(host, gpu),
            Owner::StopAgent => self.agent_stops(host),
            Owner::Pause { for_ms, until_ms } => {
                let now = self.hosts[host].machine.clock.now(self.at);
                let length = for_ms.map(|ms| Span(Millis(ms)));
                let until = until_ms.map(|ms| WallMs(now.wall.0 + ms as i64));
                let call = self.hosts[host].call();
                let request = PauseRequest { length, until, resume: false };
                self.agent(host, Event::Pause { call, request });
                self.leaves_from_now(host);
            }
            Owner::Resume => {
                let call = self.hosts[host].call();
                let request = PauseRequest { resume: true, ..PauseRequest::default() };
                self.agent(host, Event::Pause { call, request });
            }
            Owner::Wipes => {
                let call = self.hosts[host].call();
                self.agent(host, Event::Wipe { call });
            }
            Owner::Sets(words) => self.owner_sets(host, words),
            Owner::Battery(discharging) => self.battery_is(host, discharging),
            Owner::HoursEnd => {
                if self.answers(host) {
                    self.agent(host, Event::Timeout);
                    self.leaves_from_now(host);
                }
            }
            Owner::Sleeps { for_ms } => self.sleeps_for(host, for_ms),
            Owner::PowerGoes { for_ms } => self.power_goes(host, Some(for_ms)),
            Owner::WorkEnds { gpu } => self.hosts[host].machine.gpus[gpu].foreign.clear(),
        }
    }

    /// Whoever uses what is not lent any more must be gone when the longest grace is over, whatever
    /// its program does.
    pub(super) fn leaves_from_now(&mut self, host: usize) {
        let seat = &self.hosts[host];
        if !self.answers(host) {
            return;
        }
        let now = seat.machine.clock.now(self.at);
        let lent = |gpus: &[GpuUuid]| gpus.iter().all(|gpu| self.reference.lends(host, gpu, now));
        let living = seat.machine.living().filter(|(_, c, guest)| guest.begun && !lent(&c.gpus));
        let attempts: Vec<AttemptRef> = living.map(|(attempt, ..)| attempt.clone()).collect();
        let (run, slept) = (seat.run, seat.slept);
        if !attempts.is_empty() {
            self.stats.told_to_leave += attempts.len() as u64;
            self.work_must_leave(host, &attempts);
            self.after(GRACE + STUBBORN, Due::LeaveLooks { host, run, slept, attempts });
        }
    }

    pub(super) fn leave_looks(&mut self, host: usize, run: u64, slept: u64, attempts: Vec<AttemptRef>) {
        let seat = &self.hosts[host];
        // An agent that is started anew counts a whole grace again.
        if seat.run != run || seat.slept != slept || !seat.is_current(run) {
            return;
        }
        if seat.hung_until > self.at {
            let at = seat.hung_until + STUBBORN;
            return self.at_time(at, Due::LeaveLooks { host, run, slept, attempts });
        }
        let finishes = |attempt| seat.agent.as_ref().is_some_and(|agent| is_finishing(agent, attempt));
        let left = attempts.iter().find(|attempt| {
            seat.machine.guest(attempt).is_some_and(|guest| guest.begun) && !finishes(attempt)
        });
        if let Some(attempt) = left {
            let what = format!("{attempt} lives on {host} after its owner's longest grace");
            self.fail(what);
        }
    }

    /// As its driver does: it ends when nothing is left to wait for, or is told once more.
    pub(super) fn agent_stops(&mut self, host: usize) {
        if !self.answers(host) {
            return;
        }
        let run = self.hosts[host].run;
        self.agent(host, Event::Stopping);
        let once_more = self.at + self.chance.between(1_000, 150_000);
        self.after(100, Due::StopLooks { host, run, once_more });
    }

    pub(super) fn stop_looks(&mut self, host: usize, run: u64, once_more: u64) {
        let seat = &self.hosts[host];
        if seat.run != run || !seat.is_current(run) {
            return;
        }
        let done = seat.committing.is_none() && seat.agent.as_ref().is_some_and(|agent| agent.may_stop());
        if done || once_more <= self.at || self.calm {
            self.stats.stops += 1;
            self.agent_dies(host);
            return self.back_later(host);
        }
        self.after(500, Due::StopLooks { host, run, once_more });
    }

    fn owner_reclaims(&mut self, host: usize, gpu: Option<GpuUuid>) {
        if !self.hosts[host].powered || !self.is_awake(host) {
            return;
        }
        self.stats.reclaims += 1;
        if self.answers(host) {
            self.look_for_word(host);
        }
        if self.answers(host) {
            let call = self.hosts[host].call();
            let number = self.reference.next_reclaim(host);
            let click = Click { gpu: gpu.clone(), number };
            self.hosts[host].reclaims.insert(call, click);
            self.agent(host, Event::Reclaim { call, gpu: gpu.clone() });
        } else {
            self.reclaim_by_hand(host, gpu.clone());
        }
        let generation = self.reference.generation(host, gpu.as_ref());
        let slept = self.hosts[host].slept;
        self.after(ENDED_WITHIN, Due::OwnerLooks { host, gpu, generation, slept });
    }

    /// `gpunion reclaim` when no agent answers: the file `end` for each guest, and a note for later.
    fn reclaim_by_hand(&mut self, host: usize, gpu: Option<GpuUuid>) {
        self.stats.reclaims_by_hand += 1;
        let seat = &mut self.hosts[host];
        let at = seat.machine.clock.now(self.at).wall;
        seat.by_hand = Some(ReclaimWord::merged(seat.by_hand.take(), Wanted::of(gpu.as_ref()), at));
        let (run, looks) = (seat.run, seat.hung_until + self.chance.between(0, 1_000));
        self.at_time(looks.max(self.at), Due::Looks { host, run });
        self.reference.reclaimed_by_hand(host, gpu.as_ref());
        let wanted = |gpus: &[GpuUuid]| gpu.as_ref().is_none_or(|gpu| gpus.contains(gpu));
        let containers = self.hosts[host].machine.containers.iter();
        let hit: Vec<AttemptRef> =
            containers.filter(|(_, c)| wanted(&c.gpus)).map(|(name, _)| name.clone()).collect();
        for attempt in hit {
            self.end_file(host, &attempt);
            // Who lives after that is told through its cgroup.
            if self.hosts[host].machine.guest(&attempt).is_some() {
                self.second_way(host, &attempt);
            }
        }
    }

    /// Nobody of the reclaim's guests lives any more, whatever was broken meanwhile. Time that the
    /// machine slept through does not count.
    pub(super) fn owner_looks(&mut self, host: usize, gpu: Option<GpuUuid>, generation: u64, slept: u64) {
        if generation == 0 || self.reference.generation(host, gpu.as_ref()) != generation {
            return;
        }
        // Nor does time in which the agent that had taken the click stood still.
        let hung = self.hosts[host].hung_until;
        if hung > self.at {
            let look = Due::OwnerLooks { host, gpu, generation, slept };
            return self.at_time(hung + ENDED_WITHIN, look);
        }
        let sleeps = self.hosts[host].slept;
        if sleeps != slept {
            let look = Due::OwnerLooks { host, gpu, generation, slept: sleeps };
            return self.after(ENDED_WITHIN, look);
        }
        let gpu = gpu.as_ref();
        let seat = &self.hosts[host];
        let old = seat.machine.living().find(|(attempt, c, guest)| {
            guest.begun
                && gpu.is_none_or(|gpu| c.gpus.contains(gpu))
                && self.reference.was_hit(host, attempt, gpu, generation)
        });
        if let Some((attempt, ..)) = old {
            let what = format!("{attempt} lives {ENDED_WITHIN} ms after its GPU was reclaimed on {host}");
            self.fail(what);
        }
    }

    /// Only a GPU that the driver did not list when it was asked last can be unknown to the agent.
    pub(super) fn reclaim_refused(&mut self, host: usize, call: CallId, problem: &Problem) {
        let Some(Click { gpu, .. }) = self.hosts[host].reclaims.remove(&call) else { return };
        let gone = |uuid| self.hosts[host].machine.gpus.iter().any(|gpu| gpu.uuid == uuid && gpu.missed);
        if !gpu.is_some_and(gone) {
            self.fail(format!("a reclaim is refused on {host}: {problem}"));
        }
    }

    pub(super) fn receipt_given(&mut self, host: usize, call: CallId, receipt: &Receipt) {
        let Some(Click { gpu, number }) = self.hosts[host].reclaims.remove(&call) else { return };
        self.stats.receipts += 1;
        if receipt.wish_saved && !self.reference.is_kept(host, gpu.as_ref(), number) {
            return self.fail(format!("a receipt of {host} says that the wish is saved, and it is not"));
        }
        if !receipt.verified {
            return;
        }
        self.stats.receipts_verified += 1;
        let machine = &self.hosts[host].machine;
        let lives = machine.living().find(|(attempt, c, _)| {
            gpu.as_ref().is_none_or(|gpu| c.gpus.contains(gpu)) && !self.reference.is_of_now(host, attempt)
        });
        let held = machine
            .gpus
            .iter()
            .map(|g| &g.uuid)
            .find(|uuid| gpu.as_ref().is_none_or(|gpu| gpu == *uuid) && !machine.is_free(uuid, self.at));
        if let Some((attempt, ..)) = lives {
            let what = format!("a receipt of {host} says verified and {attempt} lives");
            return self.fail(what);
        }
        if let Some(uuid) = held {
            let what = format!("a receipt of {host} says verified and {uuid} is held");
            return self.fail(what);
        }
        self.reference.receipt_verified(host, gpu.as_ref());
    }
}

/// Its program has ended, and its init waits to be told that this is known.
fn is_finishing(agent: &Provider, attempt: &AttemptRef) -> bool {
    agent.attempt(attempt).is_some_and(|attempt| matches!(attempt.record.phase, Phase::Finishing { .. }))
}
