//! Words that nobody meant: of a relay that was restored, of an agent of another version, of a
//! device that lies. Both machines hold against any word at any time; only of a job that somebody
//! lied about nobody can say what its end must be.

use gpunion_protocol::ids::{AttemptRef, SnapshotId};
use gpunion_protocol::job::{
    AttemptState, Blob, Checkpoint, EndCause, PrepareStep, Quality, StopWhy, WrappedKey,
};
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_protocol::time::{BootMs, Millis, Now, WallMs};
use gpunion_relay::broker::Event;

use super::world::World;

impl World {
    /// A word of the relay about this attempt.
    pub(super) fn foul_to_agent(&mut self, host: usize, attempt: &AttemptRef, event: &str) -> bool {
        let Some(session) = self.hosts[host].session.filter(|session| self.net.is_up(*session)) else {
            return false;
        };
        let name = attempt.clone();
        let snapshot = self.some_snapshot(attempt);
        let message = match event {
            "assign" => {
                let known = self.hosts[host].memory.assigned.iter().rev().find(|a| a.attempt == *attempt);
                match known {
                    Some(assignment) => ToAgent::Assign(Box::new(assignment.clone())),
                    None => return false,
                }
            }
            "renewed, counts" => {
                ToAgent::Renewed { seq: 0, counting: vec![name], stale: Vec::new(), put_aside: None }
            }
            "renewed, stale" => {
                let seq = self.net.last_renewal(session).unwrap_or(0);
                ToAgent::Renewed { seq, counting: Vec::new(), stale: vec![name], put_aside: None }
            }
            "end" => {
                let cause = if self.chance.coin() { EndCause::Stale } else { EndCause::Cancelled };
                ToAgent::End { attempt: name, cause }
            }
            "published" => ToAgent::Published { attempt: name, snapshot },
            "publish refused" => {
                ToAgent::PublishRefused { attempt: name, snapshot, reason: "it does not count".to_owned() }
            }
            "end seen" => ToAgent::EndSeen { attempt: name },
            // Never meant for one that waits: the attempt before it may still reach outside.
            "go" if !self.waits(host, attempt) => {
                ToAgent::Go { attempt: name, from: self.chance.coin().then_some(snapshot) }
            }
            _ => return false,
        };
        self.reaches_agent(host, session, message);
        true
    }

    fn waits(&self, host: usize, attempt: &AttemptRef) -> bool {
        let agent = self.hosts[host].agent.as_ref();
        agent.and_then(|agent| agent.attempt(attempt)).is_some_and(|a| a.record.assignment.wait)
    }

    /// The one that it waits for an answer about, or one that nobody knows.
    fn some_snapshot(&mut self, attempt: &AttemptRef) -> SnapshotId {
        let said = self.net.last_published(attempt).filter(|_| self.chance.coin());
        said.unwrap_or_else(|| SnapshotId(self.chance.bytes()))
    }

    /// A word of the attempt's device.
    pub(super) fn foul_to_relay(&mut self, attempt: &AttemptRef, event: &str) -> bool {
        let host = self.host_at_relay(attempt).unwrap_or_else(|| self.chance.index(self.hosts.len()));
        let device = self.hosts[host].device.clone();
        let Some(session) = self.relay.sessions.get(&device).copied() else { return false };
        let Some(message) = self.foul_word(host, attempt, event) else { return false };
        self.broker(Event::From { device, session, message });
        true
    }

    fn foul_word(&mut self, host: usize, attempt: &AttemptRef, event: &str) -> Option<ToRelay> {
        let name = attempt.clone();
        if let Some(state) = foul_state(event) {
            return Some(ToRelay::State { attempt: name, state, note: None });
        }
        if let Some(cause) = foul_end(event) {
            let result = self.whole(attempt).filter(|_| self.chance.coin());
            self.reference.lied_about(&attempt.job);
            return Some(ToRelay::Ended { attempt: name, cause, result });
        }
        let agent = self.hosts[host].agent.as_ref();
        let books = || agent.iter().flat_map(|a| a.attempts().map(|a| a.name().clone())).collect::<Vec<_>>();
        Some(match event {
            "hello" => ToRelay::Hello { wire: gpunion_protocol::WIRE_VERSION, agent: "sim".to_owned() },
            "offer, open" | "offer, closed" => {
                let mut offer = agent?.offer(Now { boot: BootMs(0), wall: WallMs(0) });
                offer.open = event == "offer, open";
                offer.time_left = None;
                ToRelay::Offer { offer }
            }
            "renew with it" => {
                let attempts = books().into_iter().chain([name]).collect();
                ToRelay::Renew { seq: 0, attempts }
            }
            "renew without it" => {
                let attempts = books().into_iter().filter(|other| *other != name).collect();
                ToRelay::Renew { seq: 0, attempts }
            }
            "leaving" => ToRelay::Leaving { attempt: name },
            "digest" => ToRelay::ImageDigest { attempt: name, digest: format!("sha256:{}", "ab".repeat(32)) },
            "publish" => {
                let snapshot = self.whole(attempt)?;
                self.reference.lied_about(&attempt.job);
                ToRelay::Publish { attempt: name, checkpoint: checkpoint(attempt, snapshot), age: Millis(0) }
            }
            "wrapped" => {
                let device = self.hosts[self.chance.index(self.hosts.len())].device.clone();
                let key = WrappedKey { device, wrapped: Blob(vec![7]) };
                ToRelay::Wrapped { job: attempt.job.clone(), key }
            }
            _ => return None,
        })
    }

    /// A snapshot that the store holds: the driver lets no other through.
    fn whole(&mut self, attempt: &AttemptRef) -> Option<SnapshotId> {
        let program = self.program(attempt)?;
        let snapshot = SnapshotId(self.chance.bytes());
        self.store.insert(snapshot, program.begin());
        Some(snapshot)
    }
}

fn checkpoint(attempt: &AttemptRef, snapshot: SnapshotId) -> Checkpoint {
    let (quality, token) = (Quality::Running, attempt.token);
    Checkpoint {
        snapshot,
        number: 0,
        quality,
        token,
        bytes: 1,
        new_bytes: 1,
        stopped: Millis(1),
        at: None,
        taken: None,
    }
}

fn foul_state(event: &str) -> Option<AttemptState> {
    Some(match event {
        "state: preparing" => AttemptState::Preparing { step: PrepareStep::Stage },
        "state: ready" => AttemptState::Ready,
        "state: running" => AttemptState::Running,
        "state: stopped" => AttemptState::Stopped { why: StopWhy::Checkpoint },
        "state: saving" => AttemptState::Saving,
        "state: ended" => AttemptState::Ended { cause: EndCause::Stale },
        _ => return None,
    })
}

fn foul_end(event: &str) -> Option<EndCause> {
    let reason = || "nobody knows why".to_owned();
    Some(match event {
        "ended: finished" => EndCause::Exited { code: 0 },
        "ended: program failed" => EndCause::Exited { code: 9 },
        "ended: limit" => EndCause::MemoryLimit,
        "ended: cancelled" => EndCause::Cancelled,
        "ended: reclaimed" => EndCause::Reclaimed,
        "ended: left" => EndCause::Left,
        "ended: stale" => EndCause::Stale,
        "ended: could not start" => EndCause::CouldNotStart { reason: reason() },
        "ended: broken" => EndCause::Broken { reason: reason() },
        _ => return None,
    })
}
