//! Machines that sleep, and agents or the relay that stand still (stopped, starved, or waiting for a
//! disk) while all else goes on. Boot time runs on through both; what was due meanwhile comes afterwards,
//! late and in order.

use gpunion_protocol::session::Terms;

use super::agent_host::Host;
use super::world::{Due, World};

impl Host {
    /// Nothing of its agent happens before this time of the world.
    pub(super) fn still_until(&self) -> u64 {
        self.asleep_until.max(self.hung_until)
    }
}

impl World {
    pub(super) fn is_awake(&self, host: usize) -> bool {
        self.hosts[host].asleep_until <= self.at
    }

    /// Its agent answers whoever asks.
    pub(super) fn answers(&self, host: usize) -> bool {
        self.hosts[host].agent.is_some() && self.hosts[host].still_until() <= self.at
    }

    /// Till when what is due must wait, if it must.
    pub(super) fn stands_still(&self, due: &Due) -> Option<u64> {
        let until = match due {
            // Of the agent.
            Due::AtAgent { host, .. }
            | Due::Dial { host, .. }
            | Due::AgentLearnsCut { host, .. }
            | Due::EngineTold { host }
            | Due::Commits { host, .. }
            | Due::Looks { host, .. }
            | Due::Done { host, .. }
            | Due::Init { host, .. }
            | Due::Gone { host, .. }
            | Due::SecondWay { host, .. }
            | Due::CannotBegin { host, .. }
            | Due::Strikes { host, .. }
            | Due::Begins { host, .. }
            | Due::List { host, .. }
            | Due::Found { host, .. }
            | Due::ReadGpus { host, .. } => self.hosts[*host].still_until(),
            // Of its machine.
            Due::AgentStarts { host }
            | Due::EngineBack { host }
            | Due::DiskHasRoom { host }
            | Due::Step { host, .. }
            | Due::Deadline { host, .. }
            | Due::InitSays { host, .. }
            | Due::Cleared { host, .. }
            | Due::Heeds { host, .. }
            | Due::LeaveLooks { host, .. }
            | Due::StopLooks { host, .. }
            | Due::OwnerLeaves { host }
            | Due::Joins { host }
            | Due::InitHears { host, .. }
            | Due::Owner { host, .. }
            | Due::OwnerLooks { host, .. } => self.hosts[*host].asleep_until,
            Due::AtRelay { .. }
            | Due::RelayLearnsCut { .. }
            | Due::RelayCommits { .. }
            | Due::StrikesRelay { .. }
            | Due::Revokes { .. }
            | Due::Redeems(_)
            | Due::Client { .. } => self.relay.hung_until,
            Due::NetBack { .. }
            | Due::RelayStarts
            | Due::RelayHasRoom
            | Due::RelayWakes { .. }
            | Due::Wakes { .. }
            | Due::Fault
            | Due::Submit => return None,
        };
        (until > self.at).then_some(until)
    }

    pub(super) fn sleeps(&mut self, host: usize) {
        let length = self.chance.mostly_short(500, 300_000);
        self.sleeps_for(host, length);
    }

    pub(super) fn sleeps_for(&mut self, host: usize, length: u64) {
        self.trace.say(self.at, || format!("machine {host} sleeps for {length} ms"));
        self.stats.sleeps += 1;
        let seat = &mut self.hosts[host];
        seat.asleep_until = self.at + length;
        seat.slept += 1;
        // The other side gives a session up that has been silent for long.
        if length > 30_000 || self.chance.coin() {
            self.cut_sessions(host);
        }
        self.after(length, Due::Wakes { host });
    }

    pub(super) fn wakes(&mut self, host: usize) {
        self.trace.say(self.at, || format!("machine {host} is awake"));
        self.hosts[host].slept += 1;
    }

    pub(super) fn agent_hangs(&mut self, host: usize) {
        if self.hosts[host].agent.is_none() {
            return;
        }
        let length = self.chance.mostly_short(300, 90_000);
        self.agent_hangs_for(host, length);
        // An owner who can't reach it helps themselves.
        if self.chance.coin() {
            self.owner_takes_back(host);
        }
    }

    pub(super) fn agent_hangs_for(&mut self, host: usize, length: u64) {
        self.trace.say(self.at, || format!("agent {host} stands still for {length} ms"));
        self.stats.hangs += 1;
        self.hosts[host].hung_until = self.at + length;
        self.hosts[host].slept += 1;
    }

    pub(super) fn relay_hangs(&mut self) {
        let length = self.chance.mostly_short(300, 90_000);
        self.relay_hangs_for(length);
    }

    pub(super) fn relay_hangs_for(&mut self, length: u64) {
        self.trace.say(self.at, || format!("the relay stands still for {length} ms"));
        self.stats.hangs += 1;
        self.relay.hung_until = self.at + length;
        let run = self.relay.run;
        self.after(length, Due::RelayWakes { run, length });
    }

    /// Before anything that came meanwhile the broker hears that nobody could be heard.
    pub(super) fn relay_wakes(&mut self, run: u64, length: u64) {
        if self.relay.run == run && length > Terms::default().renew.0 {
            self.broker(gpunion_relay::broker::Event::StoodStill);
        }
    }
}
