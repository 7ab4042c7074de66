//! Which events came to which states of the two machines, counted. Every pair is reached in the
//! tests' run, or is on the list of those that nothing can bring about, with the reason
//! (`unreachable`). A pair that is on no side fails the run, and so does one that is reached and can't
//! be. What chance alone would hardly bring about comes by `ambush`.

mod agent;
mod broker;
mod unreachable;

use std::collections::BTreeMap;

use gpunion_agent_core::provider::Provider;
use gpunion_agent_core::provider::event::Event as AgentEvent;
use gpunion_relay::broker::{Broker, Event as BrokerEvent};

pub(super) use agent::{
    EVENTS as AGENT_EVENTS, NONE, STATES as AGENT_STATES, found_as, init as init_word, state as agent_state,
};
pub(super) use broker::{EVENTS as BROKER_EVENTS, STATES as BROKER_STATES, UNKNOWN, state as broker_state};

/// States and kinds of events of one machine.
struct Table {
    name: &'static str,
    states: &'static [&'static str],
    events: &'static [&'static str],
    unreachable: unreachable::Rules,
}

const AGENT: Table = Table {
    name: "provider: an attempt's phase",
    states: &agent::STATES,
    events: &agent::EVENTS,
    unreachable: unreachable::AGENT,
};
const BROKER: Table = Table {
    name: "broker: an attempt's standing",
    states: &broker::STATES,
    events: &broker::EVENTS,
    unreachable: unreachable::BROKER,
};

#[derive(Debug, Default, Clone)]
pub struct Pairs {
    agent: Counts,
    broker: Counts,
}

type Counts = BTreeMap<(&'static str, &'static str), u64>;

impl Pairs {
    pub(super) fn at_agent(&mut self, agent: &Provider, event: &AgentEvent) {
        agent::pairs(agent, event, |state, event| *self.agent.entry((state, event)).or_default() += 1);
    }

    pub(super) fn agent_started(&mut self, agent: &Provider) {
        agent::started(agent, |state, event| *self.agent.entry((state, event)).or_default() += 1);
    }

    pub(super) fn at_broker(&mut self, broker: &Broker, event: &BrokerEvent) {
        broker::pairs(broker, event, |state, event| *self.broker.entry((state, event)).or_default() += 1);
    }

    pub(super) fn broker_started(&mut self, broker: &Broker) {
        broker::started(broker, |state, event| *self.broker.entry((state, event)).or_default() += 1);
    }

    pub(super) fn agent_has(&self, state: &'static str, event: &'static str) -> bool {
        self.agent.contains_key(&(state, event)) || AGENT.why_not(state, event).is_some()
    }

    pub(super) fn broker_has(&self, state: &'static str, event: &'static str) -> bool {
        self.broker.contains_key(&(state, event)) || BROKER.why_not(state, event).is_some()
    }

    pub fn add(&mut self, other: &Self) {
        for (sum, more) in [(&mut self.agent, &other.agent), (&mut self.broker, &other.broker)] {
            for (pair, count) in more {
                *sum.entry(*pair).or_default() += count;
            }
        }
    }

    fn tables(&self) -> [(&'static Table, &Counts); 2] {
        [(&AGENT, &self.agent), (&BROKER, &self.broker)]
    }

    /// Each machine's table: how often the event of a row came to the state of a column; `-` where
    /// nothing can bring it there.
    pub fn print(&self) -> String {
        self.tables().into_iter().map(|(table, counts)| table.print(counts)).collect()
    }

    /// What does not hold of the lists, in sentences.
    pub fn complaints(&self) -> Vec<String> {
        self.tables().into_iter().flat_map(|(table, counts)| table.complaints(counts)).collect()
    }

    /// Pairs reached, and pairs that can be.
    pub fn reached(&self) -> (usize, usize) {
        self.tables().into_iter().fold((0, 0), |(reached, can_be), (table, counts)| {
            let possible = table.pairs().filter(|(state, event)| table.why_not(state, event).is_none());
            (reached + counts.len(), can_be + possible.count())
        })
    }
}

impl Table {
    fn pairs(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let (states, events) = (self.states, self.events);
        events.iter().flat_map(move |event| states.iter().map(move |state| (*state, *event)))
    }

    fn why_not(&self, state: &str, event: &str) -> Option<&'static str> {
        unreachable::why(self.unreachable, state, event)
    }

    fn complaints(&self, counts: &Counts) -> Vec<String> {
        let told = self.pairs().filter_map(|(state, event)| {
            match (counts.contains_key(&(state, event)), self.why_not(state, event)) {
                (true, Some(why)) => Some(format!("\"{event}\" came to \"{state}\", which can't be: {why}")),
                (false, None) => Some(format!("\"{event}\" never came to \"{state}\"")),
                (true, None) | (false, Some(_)) => None,
            }
        });
        told.map(|what| format!("{}: {what}", self.name)).collect()
    }

    fn print(&self, counts: &Counts) -> String {
        let width = self.events.iter().map(|event| event.len()).max().unwrap_or(0);
        let mut text = format!("\n{}\n", self.name);
        for (number, state) in self.states.iter().enumerate() {
            text += &format!("{:>width$}  {} {state}\n", "", letter(number));
        }
        let heads: Vec<String> = (0..self.states.len()).map(|n| format!("{:>6}", letter(n))).collect();
        text += &format!("{:>width$}  {}\n", "", heads.concat());
        for event in self.events {
            let cells = self.states.iter().map(|state| {
                let count = counts.get(&(*state, *event)).copied();
                let none = match self.why_not(state, event) {
                    Some(_) => "-",
                    None => "NONE",
                };
                format!("{:>6}", count.map_or_else(|| none.to_owned(), short))
            });
            text += &format!("{event:>width$}  {}\n", cells.collect::<String>());
        }
        text
    }
}

fn letter(number: usize) -> char {
    char::from(b'A' + (number as u8).min(25))
}

fn short(count: u64) -> String {
    match count {
        0..=9_999 => count.to_string(),
        10_000..=9_999_999 => format!("{}k", count / 1_000),
        _ => format!("{}M", count / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_reached_and_what_can_not_be_are_both_told() {
        let pairs = Pairs::default();
        let complaints = pairs.complaints();
        assert!(complaints.iter().any(|what| what.contains("\"init: exited\" never came to \"running\"")));
        let mut pairs = Pairs::default();
        let (state, event) = ("pull", "init: exited");
        assert!(AGENT.why_not(state, event).is_some());
        pairs.agent.insert((state, event), 1);
        assert!(pairs.complaints().iter().any(|what| what.contains("which can't be")));
    }

    #[test]
    fn the_list_names_states_and_events_that_there_are() {
        for table in [&AGENT, &BROKER] {
            for rule in table.unreachable {
                assert!(rule.states.iter().all(|state| table.states.contains(state)), "{:?}", rule.states);
                assert!(rule.events.iter().all(|event| table.events.contains(event)), "{:?}", rule.events);
            }
        }
    }
}
