//! What happens at the worst moment. A state that lasts for milliseconds is hit by chance once in a
//! million steps: whoever lies in wait for it strikes as soon as an attempt is in it, with
//! something that this world has not brought there yet.
//!
//! Nothing happens that could not happen at any other moment. Answers come late or twice, as the
//! events of both machines allow; words that nobody meant are in `foul`.

use gpunion_agent_core::provider::event::{Engine, Event};
use gpunion_agent_core::provider::record::Phase;
use gpunion_protocol::guest::FromInit;
use gpunion_protocol::ids::AttemptRef;

use super::chance::Chance;
use super::machine::End;
use super::pairs;
use super::people::Owner;
use super::program::Fate;
use super::world::{Actor, Due, World};

/// Who lies in wait at one place at a time.
const LURKERS: usize = 6;
/// An attempt is `start` only while the engine is silent: whoever waits for that makes it so.
const START: &str = "start";
const BEFORE_START: &str = "before start";
/// What few programs do: when it is one of those, this comes first.
const SELDOM: [&str; 2] = ["init: not started", "init: too much disk"];

impl World {
    /// For an attempt in a state that is drawn, on this machine or at the relay.
    pub(super) fn lie_in_wait(&mut self, host: usize) {
        if self.chance.coin() {
            let state = pairs::AGENT_STATES[self.chance.index(pairs::AGENT_STATES.len())];
            let state = if state == START { BEFORE_START } else { state };
            let lurking = &mut self.hosts[host].lurking;
            if lurking.len() < LURKERS {
                lurking.push(state);
            }
            self.spring(host);
        } else {
            let state = pairs::BROKER_STATES[self.chance.index(pairs::BROKER_STATES.len())];
            if self.relay.lurking.len() < LURKERS {
                self.relay.lurking.push(state);
            }
            self.spring_at_relay();
        }
    }

    /// The relay says again what it had said of an attempt that has ended here; whoever has its
    /// name knows older things of it.
    pub(super) fn second_life(&mut self, host: usize) {
        let seat = &self.hosts[host];
        let mut ended = seat.memory.assigned.iter().map(|a| &a.attempt).filter(|name| !seat.knows(name));
        let Some(attempt) = ended.find(|name| seat.memory.has_listed(name)).cloned() else { return };
        if self.foul_to_agent(host, &attempt, "assign") {
            let at = self.at;
            self.trace.say(at, || format!("{attempt} is assigned once more on {host}"));
            // A relay that still counts it would never say that: what it publishes now is anybody's guess.
            let counts = self.relay.broker.as_ref().is_some_and(|broker| {
                let known = broker.attempt(&attempt.job, attempt.token.attempt);
                known.is_some_and(|known| !known.state.is_ended())
            });
            if counts {
                self.reference.lied_about(&attempt.job);
            }
            self.hosts[host].lurking.extend(["pull", "stage", "create", BEFORE_START]);
            self.spring(host);
        }
    }

    /// After each step of an agent: who waited for what is there now?
    pub(super) fn spring(&mut self, host: usize) {
        if self.calm || self.hosts[host].lurking.is_empty() {
            return;
        }
        for state in std::mem::take(&mut self.hosts[host].lurking) {
            match self.at_agent_in(host, state) {
                Some(attempt) => {
                    let run = self.hosts[host].run;
                    self.after(0, Due::Strikes { host, run, attempt, state });
                }
                None => self.hosts[host].lurking.push(state),
            }
        }
    }

    /// An attempt that is in this state on this machine.
    fn at_agent_in(&mut self, host: usize, state: &str) -> Option<AttemptRef> {
        let seat = &self.hosts[host];
        let agent = seat.agent.as_ref()?;
        if state == pairs::NONE {
            let known = seat.memory.assigned.iter().map(|assignment| &assignment.attempt);
            return known.rev().find(|name| agent.attempt(name).is_none()).cloned();
        }
        let state = if state == BEFORE_START { "create" } else { state };
        let there = || agent.attempts().filter(|a| pairs::agent_state(Some(a)) == state);
        // One of whom there is more to tell.
        let richest = there().max_by_key(|a| (seat.memory.told(a.name()), a.name().clone()));
        richest.map(|a| a.name().clone())
    }

    /// Something that this world has not brought to this state yet, if anything can be.
    pub(super) fn strikes_at_agent(
        &mut self,
        host: usize,
        run: u64,
        attempt: &AttemptRef,
        state: &'static str,
    ) {
        let seat = &self.hosts[host];
        if !seat.is_current(run) || self.calm {
            return;
        }
        if state == BEFORE_START {
            self.early_init_goes(host, attempt);
            // The list that follows tells of a container that has not been started.
            self.hosts[host].lurking.push(START);
            let later = ["pass one", "stopping", "pass two", "uploading", "publishing"];
            self.hosts[host].lurking.push(later[self.chance.index(later.len())]);
            return self.false_alarm(host);
        }
        let now = seat.agent.as_ref().map(|agent| pairs::agent_state(agent.attempt(attempt)));
        if now != Some(state) {
            return;
        }
        let mut events = shuffled(&pairs::AGENT_EVENTS, &mut self.chance);
        events.sort_by_key(|event| !SELDOM.contains(event));
        for event in events {
            if !self.pairs.agent_has(state, event) && self.strike_agent(host, attempt, event) {
                let at = self.at;
                self.trace.say(at, || format!("an ambush on {host}: {event} for {attempt}, {state}"));
                self.stats.ambushes += 1;
                return;
            }
        }
    }

    /// An init that was started early is listed, and gone before the list is there: what was seen and
    /// heard of it is told to an attempt that has none. In half of the cases, by the clock.
    fn early_init_goes(&mut self, host: usize, attempt: &AttemptRef) {
        let there = self.hosts[host].machine.guest(attempt).is_some_and(|guest| !guest.begun);
        if there && self.at.is_multiple_of(2) {
            let run = self.hosts[host].run;
            self.list_taken(host, run);
            self.gone_at_once(host, attempt);
        }
    }

    /// True when it came about, or is under way.
    fn strike_agent(&mut self, host: usize, attempt: &AttemptRef, event: &'static str) -> bool {
        match event {
            "share on" => self.owner_acts(host, Owner::Share { on: true, gpu: None, for_ms: None }),
            "share off" => {
                self.owner_acts(host, Owner::Share { on: false, gpu: None, for_ms: None });
                self.lends_again(host);
            }
            "pause" => {
                self.owner_acts(host, Owner::Pause { for_ms: None, until_ms: None });
                let again = self.chance.mostly_short(500, 20_000);
                self.after(again, Due::Owner { host, what: Owner::Resume });
            }
            "rules" => {
                let word = ["leave", "stop"][self.chance.index(2)].to_owned();
                self.owner_acts(host, Owner::Sets(vec![("own_work", word)]));
            }
            "battery" => {
                self.owner_acts(host, Owner::Battery(true));
                let again = self.chance.mostly_short(500, 20_000);
                self.after(again, Due::Owner { host, what: Owner::Battery(false) });
            }
            "wipe" => self.owner_acts(host, Owner::Wipes),
            "resume" => self.owner_acts(host, Owner::Resume),
            "reclaim" => {
                self.owner_acts(host, Owner::Reclaim { gpu: None });
                self.lends_again(host);
            }
            "reclaim by hand" => {
                let length = self.chance.between(100, 3_000);
                self.agent_hangs_for(host, length);
                self.owner_acts(host, Owner::Reclaim { gpu: None });
                self.lends_again(host);
            }
            "stopping" => self.agent_stops(host),
            "link up" => return self.session_anew(host),
            "link down" => match self.hosts[host].session {
                Some(session) => {
                    self.cut(session, host);
                    self.agent_learns_cut(host, session);
                }
                None => return false,
            },
            "engine known" if self.hosts[host].machine.engine => self.engine_told(host),
            "engine unknown" => self.false_alarm(host),
            "found, runs" | "found, does not run" | "not found" => {
                return self.old_list(host, attempt, event);
            }
            "gpus" => self.gpus_read(host),
            "done, given up before" => return self.done_again(host, attempt),
            "guest gone" => return self.gone_at_once(host, attempt),
            "cannot begin" => return self.cannot_begin_late(host, attempt),
            "timeout" => self.agent(host, Event::Timeout),
            "agent starts" => {
                self.agent_dies(host);
                self.back_later(host);
            }
            "group left" => return self.leaves_group(host),
            _ if event.starts_with("init: ") => return self.init_again(host, attempt, event),
            _ => return self.foul_to_agent(host, attempt, event),
        }
        true
    }

    fn lends_again(&mut self, host: usize) {
        let again = self.chance.mostly_short(500, 20_000);
        self.after(again, Due::Owner { host, what: Owner::Share { on: true, gpu: None, for_ms: None } });
    }

    /// The session breaks and is there again at once.
    fn session_anew(&mut self, host: usize) -> bool {
        if !self.hosts[host].net || self.relay.broker.is_none() {
            return false;
        }
        if let Some(session) = self.hosts[host].session {
            self.cut(session, host);
            self.agent_learns_cut(host, session);
        }
        let run = self.hosts[host].run;
        if self.hosts[host].is_current(run) {
            self.dial(host, run);
        }
        true
    }

    /// The engine is slow to answer who asks after it, and works on.
    pub(super) fn false_alarm(&mut self, host: usize) {
        let back = self.chance.mostly_short(5, 2_000);
        self.agent(host, Event::Engine(Engine::Unknown { why: "it is slow to answer".to_owned() }));
        self.after(back, Due::EngineTold { host });
    }

    /// A list that the engine gave earlier, if it says this of the attempt.
    fn old_list(&mut self, host: usize, attempt: &AttemptRef, event: &str) -> bool {
        let lists = self.hosts[host].memory.lists.iter().rev();
        let fits = |list: &&gpunion_agent_core::provider::event::Inventory| {
            pairs::found_as(attempt, &list.containers) == event
                && (event != "not found" || self.hosts[host].knows(attempt))
        };
        let Some(list) = lists.clone().find(fits).cloned() else { return false };
        self.agent(host, Event::Found(list));
        true
    }

    fn done_again(&mut self, host: usize, attempt: &AttemptRef) -> bool {
        let Some((op, outcome)) = self.hosts[host].memory.done.get(attempt).cloned() else { return false };
        self.agent(host, Event::Done { attempt: attempt.clone(), op, outcome });
        true
    }

    /// Somebody kills its guest; or it is gone, which is said once more.
    fn gone_at_once(&mut self, host: usize, attempt: &AttemptRef) -> bool {
        let run = self.hosts[host].run;
        if !self.hosts[host].memory.assigned.iter().any(|assignment| assignment.attempt == *attempt) {
            return false;
        }
        if self.hosts[host].machine.guest(attempt).is_some() {
            self.stats.guests_killed += 1;
            self.guest_ends(host, attempt);
        }
        self.gone_seen(host, run, attempt.clone());
        true
    }

    /// It was asked for twice, and the second answer is that it can't be.
    fn cannot_begin_late(&mut self, host: usize, attempt: &AttemptRef) -> bool {
        if !self.hosts[host].memory.words.contains_key(attempt) {
            return false;
        }
        let reason = "its image is gone".to_owned();
        self.agent(host, Event::CannotBegin { attempt: attempt.clone(), reason });
        true
    }

    /// A word of its init is heard once more, or late.
    fn init_again(&mut self, host: usize, attempt: &AttemptRef, event: &str) -> bool {
        let Some(words) = self.hosts[host].memory.words.get(attempt) else { return false };
        let said = |event| words.iter().find(|(word, _)| pairs::init_word(word) == Some(event)).cloned();
        let known = said(event);
        let (word, memory_limit) = match event {
            // It connected anew.
            "init: hello, begun" if said("init: started").is_some() => {
                (FromInit::Hello { version: 1, begun: true }, false)
            }
            "init: some not stopped" if said("init: stopped").is_some() => {
                (FromInit::Stopped { seq: 0, processes: 2, took_us: 300, running: 1 }, false)
            }
            "init: too much disk" if self.fills_its_disk(host, attempt) => {
                (FromInit::Usage { bytes: 1 << 50, files: 1 }, false)
            }
            "init: not started" if known.is_none() && self.never_starts(host, attempt) => {
                (FromInit::NotStarted { reason: "no such file".to_owned() }, false)
            }
            _ => match known {
                Some(known) => known,
                None => return false,
            },
        };
        self.hosts[host].memory.said(attempt, &word, memory_limit);
        self.agent(host, Event::Init { attempt: attempt.clone(), word, memory_limit });
        true
    }

    /// It has written more than it may, and is counted just now.
    fn fills_its_disk(&self, host: usize, attempt: &AttemptRef) -> bool {
        let workspace = self.hosts[host].machine.workspaces.get(attempt);
        match (self.program(attempt).map(|program| program.fate), workspace) {
            (Some(Fate::WantsTooMuchDisk { at }), Some(workspace)) => workspace.content.steps >= at,
            (Some(_) | None, _) => false,
        }
    }

    /// It is to begin just now, and can't.
    fn never_starts(&mut self, host: usize, attempt: &AttemptRef) -> bool {
        let never = self.program(attempt).is_some_and(|program| program.fate == Fate::NeverStarts);
        // An init that was started early has not been asked yet.
        let seat = &mut self.hosts[host];
        let asked = seat.agent.as_ref().and_then(|agent| agent.attempt(attempt));
        let asked = asked.is_some_and(|attempt| attempt.record.phase == Phase::Running);
        let guest = seat.machine.guest_mut(attempt);
        let Some(guest) = guest.filter(|guest| never && asked && !guest.begun && !guest.deaf) else {
            return false;
        };
        (guest.begun, guest.reported) = (true, true);
        guest.end = Some(End::NotStarted);
        true
    }

    /// The same for the relay.
    pub(super) fn spring_at_relay(&mut self) {
        if self.calm || self.relay.lurking.is_empty() {
            return;
        }
        for state in std::mem::take(&mut self.relay.lurking) {
            match self.at_relay_in(state) {
                Some(attempt) => self.after(0, Due::StrikesRelay { attempt, state }),
                None => self.relay.lurking.push(state),
            }
        }
    }

    fn at_relay_in(&mut self, state: &str) -> Option<AttemptRef> {
        let broker = self.relay.broker.as_ref()?;
        if state == pairs::UNKNOWN {
            let some = broker.all_attempts().next()?;
            let mut name = some.named();
            name.token.epoch.0 += 1_000;
            return Some(name);
        }
        let all: Vec<_> = broker.all_attempts().filter(|a| pairs::broker_state(broker, a) == state).collect();
        let one = all.get(self.chance.index(all.len()))?;
        Some(one.named())
    }

    pub(super) fn strikes_at_relay(&mut self, attempt: &AttemptRef, state: &'static str) {
        if self.calm || self.relay.is_committing() || self.relay_state(attempt) != Some(state) {
            return;
        }
        for event in shuffled(&pairs::BROKER_EVENTS, &mut self.chance) {
            if !self.pairs.broker_has(state, event) && self.strike_relay(attempt, event) {
                let at = self.at;
                self.trace.say(at, || format!("an ambush on the relay: {event} for {attempt}, {state}"));
                self.stats.ambushes += 1;
                return;
            }
        }
    }

    fn relay_state(&self, attempt: &AttemptRef) -> Option<&'static str> {
        let broker = self.relay.broker.as_ref()?;
        let known = broker.attempt(&attempt.job, attempt.token.attempt);
        let known = known.filter(|known| known.named() == *attempt);
        Some(known.map_or(pairs::UNKNOWN, |known| pairs::broker_state(broker, known)))
    }

    fn strike_relay(&mut self, attempt: &AttemptRef, event: &'static str) -> bool {
        match event {
            "connected" => return self.host_at_relay(attempt).is_some_and(|host| self.session_anew_of(host)),
            "disconnected" => {
                let Some(host) = self.host_at_relay(attempt) else { return false };
                let device = &self.hosts[host].device;
                let Some(session) = self.relay.sessions.get(device).copied() else { return false };
                let run = self.relay.run;
                self.cut(session, host);
                self.relay_learns_cut(host, session, run);
            }
            "submit again" => return self.submit_again(&attempt.job),
            "cancel" => return self.cancel_now(&attempt.job),
            "timeout" => self.broker(gpunion_relay::broker::Event::Timeout),
            "relay starts" => self.relay_dies(),
            "stood still" => {
                let length = self.chance.between(10_001, 30_000);
                self.relay_hangs_for(length);
            }
            "device revoked" => {
                return self.host_at_relay(attempt).is_some_and(|host| self.revoke(host));
            }
            _ => return self.foul_to_relay(attempt, event),
        }
        true
    }

    fn session_anew_of(&mut self, host: usize) -> bool {
        if !self.answers(host) {
            return false;
        }
        let mut worked = false;
        self.acting(Actor::Machine(host), |world| worked = world.session_anew(host));
        worked
    }

    /// The machine that this attempt is on, as far as the relay knows.
    pub(super) fn host_at_relay(&self, attempt: &AttemptRef) -> Option<usize> {
        let known = self.relay.broker.as_ref()?.attempt(&attempt.job, attempt.token.attempt)?;
        self.host_of(&known.device)
    }
}

fn shuffled<T: Copy>(all: &[T], chance: &mut Chance) -> Vec<T> {
    let mut left = all.to_vec();
    let mut order = Vec::with_capacity(left.len());
    while !left.is_empty() {
        order.push(left.swap_remove(chance.index(left.len())));
    }
    order
}
