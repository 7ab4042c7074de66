//! Agents that do what they are told: the closing phase of the random tests. When the world
//! behaves, every accepted job must come to a final state.

use std::collections::{BTreeMap, BTreeSet};

use gpunion_protocol::http::Role;
use gpunion_protocol::ids::{AttemptRef, DeviceId, JobId};
use gpunion_protocol::job::{AttemptState, Blob, EndCause, JobState, WrappedKey};
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_protocol::time::Millis;

use super::{Effect, Event, RequestId, World, offer};

/// What each agent still has, and whether its program has finished.
type Held = BTreeMap<DeviceId, BTreeSet<AttemptRef>>;

impl World {
    /// All usable devices come back and lend; programs finish. Every job must become final.
    pub(super) fn behave(&mut self, agents_remember: bool) {
        let mut held = Held::new();
        let mut queue: Vec<Effect> = Vec::new();
        let mut devices: Vec<DeviceId> = self.usable();
        if devices.is_empty() {
            devices.push(self.join(Role::Operator, "late").1);
        }
        for device in &devices {
            let there = self.broker.all_attempts().filter(|a| a.device == *device && !a.released);
            let there: BTreeSet<AttemptRef> = there.map(|a| a.named()).collect();
            held.insert(device.clone(), if agents_remember { there } else { BTreeSet::new() });
            queue.extend(self.connect(device));
            let offer = offer(device.as_str(), &[80, 80, 80, 80]);
            queue.extend(self.say(device, ToRelay::Offer { offer }));
        }
        for _ in 0..400 {
            for device in &devices {
                let attempts: Vec<AttemptRef> = held[device].iter().cloned().collect();
                queue.extend(self.say(device, ToRelay::Renew { seq: 0, attempts: attempts.clone() }));
                for attempt in attempts {
                    let state = AttemptState::Running;
                    queue.extend(self.say(device, ToRelay::State { attempt, state, note: None }));
                }
            }
            self.obey(&mut queue, &mut held);
            for job in self.in_state("held") {
                let by = self.broker.jobs[&job].member.clone();
                let request = RequestId(self.fresh());
                queue.extend(self.step(Event::Cancel { request, by, job }));
            }
            self.finish_programs(&mut queue, &mut held);
            self.obey(&mut queue, &mut held);
            if self.broker.open.is_empty() {
                return;
            }
            queue.extend(self.wait(Millis::from_secs(5)));
        }
        let left: Vec<(JobId, JobState)> =
            self.broker.open.iter().map(|job| (job.clone(), self.state(job))).collect();
        panic!("jobs that never end though the world behaves: {left:?}");
    }

    fn usable(&self) -> Vec<DeviceId> {
        self.broker.devices.values().filter(|d| !d.revoked).map(|d| d.id.clone()).collect()
    }

    fn in_state(&self, word: &str) -> Vec<JobId> {
        self.broker.open.iter().filter(|job| self.state(job).word() == word).cloned().collect()
    }

    /// Each agent does what was sent to it, and what follows from that.
    fn obey(&mut self, queue: &mut Vec<Effect>, held: &mut Held) {
        for _ in 0..2000 {
            let Some(effect) = (!queue.is_empty()).then(|| queue.remove(0)) else { return };
            let Effect::Send { device, message } = effect else { continue };
            let Some(mine) = held.get_mut(&device) else { continue };
            let answer = match message {
                ToAgent::Assign(assignment) if assignment.wait => {
                    ToRelay::State { attempt: assignment.attempt, state: AttemptState::Ready, note: None }
                }
                ToAgent::Go { attempt, .. } => {
                    mine.insert(attempt.clone());
                    ToRelay::State { attempt, state: AttemptState::Running, note: None }
                }
                ToAgent::Assign(assignment) => {
                    mine.insert(assignment.attempt.clone());
                    ToRelay::State { attempt: assignment.attempt, state: AttemptState::Running, note: None }
                }
                ToAgent::End { attempt, cause } => {
                    mine.remove(&attempt);
                    ToRelay::Ended { attempt, cause, result: None }
                }
                ToAgent::WrapFor { job, device, .. } => {
                    ToRelay::Wrapped { job, key: WrappedKey { device, wrapped: Blob(vec![1; 80]) } }
                }
                ToAgent::EndSeen { attempt } => {
                    mine.remove(&attempt);
                    continue;
                }
                ToAgent::Welcome { .. }
                | ToAgent::Renewed { .. }
                | ToAgent::Published { .. }
                | ToAgent::PublishRefused { .. }
                | ToAgent::LogKept { .. }
                | ToAgent::Beat => continue,
            };
            queue.extend(self.say(&device, answer));
        }
        panic!("agents and relay talk without end");
    }

    fn finish_programs(&mut self, queue: &mut Vec<Effect>, held: &mut Held) {
        for (device, mine) in held.iter() {
            for attempt in mine {
                let result = Some(super::snapshot(200));
                let cause = EndCause::Exited { code: 0 };
                let message = ToRelay::Ended { attempt: attempt.clone(), cause, result };
                queue.extend(self.say(device, message));
            }
        }
    }
}
