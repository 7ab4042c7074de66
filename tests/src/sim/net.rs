//! The network: sessions that come up and are cut, late as they please, mostly in order. What is
//! under way when a session is cut is lost; a full queue loses a message out of a session that
//! lasts; and though no session of the product reorders, nothing may depend on that: one message
//! overtakes another now and then. Each side learns of a cut in its own time.

use std::collections::BTreeMap;

use gpunion_protocol::ids::{AttemptRef, SnapshotId};
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_relay::broker::SessionId;

use super::chance::Chance;

#[derive(Debug, Default)]
pub(super) struct Net {
    sessions: BTreeMap<SessionId, Session>,
    last: u64,
    /// Longest delay of a message, milliseconds.
    slow: u64,
}

#[derive(Debug)]
struct Session {
    host: usize,
    /// Nothing overtakes what was sent before it.
    to_relay: u64,
    to_agent: u64,
    /// What it carried, to be told again.
    said_to_relay: Vec<ToRelay>,
    said_to_agent: Vec<ToAgent>,
}

/// What becomes of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Luck {
    InOrder,
    Reordered,
    Lost,
}

impl Luck {
    fn arrives(self, at: u64, last: &mut u64) -> Option<u64> {
        match self {
            Self::InOrder => {
                *last = at.max(*last);
                Some(*last)
            }
            Self::Reordered => Some(at),
            Self::Lost => None,
        }
    }
}

/// Messages of a session that may be told again.
const KEPT: usize = 12;

impl Net {
    pub(super) fn new(slow: u64) -> Self {
        Self { slow, ..Self::default() }
    }

    pub(super) fn open(&mut self, host: usize, at: u64) -> SessionId {
        self.last += 1;
        let session = SessionId(self.last);
        let (said_to_relay, said_to_agent) = (Vec::new(), Vec::new());
        let new = Session { host, to_relay: at, to_agent: at, said_to_relay, said_to_agent };
        self.sessions.insert(session, new);
        session
    }

    pub(super) fn is_up(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    pub(super) fn cut(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    pub(super) fn of_host(&self, host: usize) -> Vec<SessionId> {
        self.sessions.iter().filter(|(_, s)| s.host == host).map(|(id, _)| *id).collect()
    }

    pub(super) fn all(&self) -> Vec<(SessionId, usize)> {
        self.sessions.iter().map(|(id, s)| (*id, s.host)).collect()
    }

    /// When a message sent now arrives; absent: it never will.
    pub(super) fn carry_to_relay(
        &mut self,
        session: SessionId,
        message: &ToRelay,
        at: u64,
        luck: Luck,
        chance: &mut Chance,
    ) -> Option<u64> {
        let delay = chance.mostly_short(1, self.slow);
        let session = self.sessions.get_mut(&session)?;
        keep(&mut session.said_to_relay, message);
        luck.arrives(at + delay, &mut session.to_relay)
    }

    pub(super) fn carry_to_agent(
        &mut self,
        session: SessionId,
        message: &ToAgent,
        at: u64,
        luck: Luck,
        chance: &mut Chance,
    ) -> Option<u64> {
        let delay = chance.mostly_short(1, self.slow);
        let session = self.sessions.get_mut(&session)?;
        keep(&mut session.said_to_agent, message);
        luck.arrives(at + delay, &mut session.to_agent)
    }

    /// The newest question of this session whose answer may still come.
    pub(super) fn last_renewal(&self, session: SessionId) -> Option<u64> {
        self.sessions.get(&session)?.said_to_relay.iter().rev().find_map(|said| match said {
            ToRelay::Renew { seq, .. } => Some(*seq),
            _ => None,
        })
    }

    /// What this attempt published last in a session that is up.
    pub(super) fn last_published(&self, wanted: &AttemptRef) -> Option<SnapshotId> {
        let said = self.sessions.values().flat_map(|session| session.said_to_relay.iter().rev());
        said.into_iter().find_map(|said| match said {
            ToRelay::Publish { attempt, checkpoint, .. } if attempt == wanted => Some(checkpoint.snapshot),
            _ => None,
        })
    }

    /// Something that this session carried already.
    pub(super) fn old_to_relay(&self, session: SessionId, chance: &mut Chance) -> Option<ToRelay> {
        let said = &self.sessions.get(&session)?.said_to_relay;
        said.get(chance.index(said.len())).cloned()
    }

    pub(super) fn old_to_agent(&self, session: SessionId, chance: &mut Chance) -> Option<ToAgent> {
        let said = &self.sessions.get(&session)?.said_to_agent;
        said.get(chance.index(said.len())).cloned()
    }
}

fn keep<T: Clone>(said: &mut Vec<T>, message: &T) {
    said.push(message.clone());
    if said.len() > KEPT {
        said.remove(0);
    }
}
