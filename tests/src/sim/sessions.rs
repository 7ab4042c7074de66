//! How agents and the relay find and lose each other.

use gpunion_agent_core::provider::event::Event;
use gpunion_protocol::WIRE_VERSION;
use gpunion_protocol::session::ToRelay;
use gpunion_relay::broker::SessionId;

use super::net::Luck;
use super::world::{Actor, Due, World};

impl World {
    pub(super) fn dial(&mut self, host: usize, run: u64) {
        let seat = &self.hosts[host];
        if !seat.is_current(run) || seat.session.is_some() {
            return;
        }
        if seat.out_of_group {
            return;
        }
        if self.relay.broker.is_some() && seat.net && !self.is_admitted(host) {
            let sees = self.chance.mostly_short(1_000, 60_000);
            self.after(sees, Due::OwnerLeaves { host });
        }
        if !self.hosts[host].net || self.relay.broker.is_none() || !self.is_admitted(host) {
            let again = self.chance.between(500, 5_000);
            return self.after(again, Due::Dial { host, run });
        }
        let session = self.net.open(host, self.at);
        self.stats.sessions += 1;
        self.hosts[host].session = Some(session);
        self.acting(Actor::Relay, |world| world.accept(host, session));
        let agent = "sim".to_owned();
        self.send_to_relay(host, ToRelay::Hello { wire: WIRE_VERSION, agent });
    }

    pub(super) fn send_to_relay(&mut self, host: usize, message: ToRelay) {
        let Some(session) = self.hosts[host].session else { return };
        // The product's session begins with this word, or does not begin.
        let luck = if matches!(message, ToRelay::Hello { .. }) { Luck::InOrder } else { self.luck() };
        if let Some(at) = self.net.carry_to_relay(session, &message, self.at, luck, &mut self.chance) {
            self.at_time(at, Due::AtRelay { host, session, message: Box::new(message) });
        }
    }

    /// What is under way is lost now; each side learns of it when it does.
    pub(super) fn cut(&mut self, session: SessionId, host: usize) {
        if !self.net.is_up(session) {
            return;
        }
        self.net.cut(session);
        self.stats.cuts += 1;
        let (agent_learns, relay_learns) =
            (self.chance.mostly_short(5, 30_000), self.chance.mostly_short(5, 30_000));
        let relay_run = self.relay.run;
        self.after(agent_learns, Due::AgentLearnsCut { host, session });
        self.after(relay_learns, Due::RelayLearnsCut { host, session, relay_run });
    }

    pub(super) fn agent_learns_cut(&mut self, host: usize, session: SessionId) {
        if self.hosts[host].session != Some(session) {
            return;
        }
        self.hosts[host].session = None;
        self.agent(host, Event::LinkDown { why: "the session was cut".to_owned() });
        let (run, again) = (self.hosts[host].run, self.chance.between(100, 5_000));
        self.after(again, Due::Dial { host, run });
    }
}
