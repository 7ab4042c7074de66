//! Tests of the broker: a small world that saves what each step changed, checks what must always
//! hold, and can start the broker again from exactly the saved bytes.

mod ahead;
mod aside;
mod bounds;
mod crowd;
mod departures;
mod edges;
mod finished;
mod good_world;
mod group;
mod leases;
mod life;
mod mass_loss;
mod moves;
mod placing;
mod random;
mod roots;
mod thrash;
mod turns;
mod wakes;
mod why;

use std::collections::BTreeMap;

use gpunion_protocol::WIRE_VERSION;
use gpunion_protocol::egress::EgressRule;
use gpunion_protocol::http::{Event as Told, Role, Submit};
use gpunion_protocol::ids::{
    AttemptRef, DeviceId, Epoch, GpuUuid, InviteId, JobId, MemberId, SnapshotId, Token,
};
use gpunion_protocol::job::{AttemptState, Blob, Checkpoint, EndCause, Image, JobState, Quality, WrappedKey};
use gpunion_protocol::offer::{Offer, OfferedGpu};
use gpunion_protocol::problem::Problem;
use gpunion_protocol::session::{Assignment, ToAgent, ToRelay};
use gpunion_protocol::spec::JobSpec;
use gpunion_protocol::time::{BootMs, Millis, Now, WallMs};
use gpunion_protocol::units::Bytes;

use super::{Broker, By, Change, Config, Digest, Effect, Event, Key, Record, Reply, RequestId, SessionId};

pub(super) const GIB: u64 = 1 << 30;

pub(super) struct World {
    pub(super) broker: Broker,
    pub(super) now: Now,
    /// What is on disk: text, as the store has it.
    pub(super) disk: BTreeMap<Key, String>,
    sessions: BTreeMap<DeviceId, SessionId>,
    epoch: u64,
    counter: u64,
    finals: BTreeMap<JobId, JobState>,
    tips: BTreeMap<JobId, Token>,
    /// What members were told in words.
    pub(super) notes: Vec<String>,
}

impl World {
    pub(super) fn new() -> Self {
        let now = Now { boot: BootMs(1_000_000), wall: WallMs(1_764_000_000_000) };
        Self {
            broker: Broker::new(Config::default()),
            now,
            disk: BTreeMap::new(),
            sessions: BTreeMap::new(),
            epoch: 1,
            counter: 0,
            finals: BTreeMap::new(),
            tips: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    /// One step as the driver does it, and all that must hold after it.
    pub(super) fn step(&mut self, event: Event) -> Vec<Effect> {
        let effects = self.broker.handle(event, self.now);
        self.commit();
        for effect in &effects {
            // Only what it says that it forgets may be gone.
            if let Effect::Forget { job } = effect {
                assert!(self.finals.remove(job).is_some(), "it was not final");
            }
            if let Effect::Announce { event: Told::Note { text, .. }, .. } = effect {
                self.notes.push(text.clone());
            }
        }
        self.check();
        effects
    }

    fn commit(&mut self) {
        for change in self.broker.take_changes() {
            match change {
                Change::Put(record) => {
                    let text = serde_json::to_string(&record).unwrap();
                    self.disk.insert(record.key(), text);
                }
                Change::Delete(key) => {
                    self.disk.remove(&key);
                }
            }
        }
    }

    fn check(&mut self) {
        self.broker.check_invariants().unwrap();
        if let Some(at) = self.broker.poll_timeout() {
            assert!(at > self.now.boot, "a time-out that is not in the future would spin: {at:?}");
        }
        for (job, state) in &self.finals {
            assert_eq!(self.broker.job_state(job).as_ref(), Some(state), "final states are final");
        }
        let jobs: Vec<JobId> = self.broker.jobs.keys().cloned().collect();
        for job in jobs {
            let state = self.broker.job_state(&job).unwrap();
            if let JobState::Failed { cause } = &state {
                let own = matches!(
                    cause,
                    EndCause::Exited { .. }
                        | EndCause::Signalled { .. }
                        | EndCause::MemoryLimit
                        | EndCause::DiskLimit
                );
                assert!(own && *cause != EndCause::Exited { code: 0 }, "not the member's failure: {cause:?}");
            }
            if state.is_final() {
                self.finals.insert(job.clone(), state);
            }
            if let Some(tip) = self.broker.courses[&job].chain.last().map(|c| c.token) {
                let before = self.tips.insert(job, tip);
                assert!(before.is_none_or(|b| b <= tip), "an older attempt wrote to the chain");
            }
        }
    }

    /// The relay is killed and starts again from what was committed.
    pub(super) fn restart(&mut self) -> Vec<Effect> {
        self.check_disk();
        self.epoch += 1;
        let records: Vec<Record> = self.disk.values().map(|t| serde_json::from_str(t).unwrap()).collect();
        let config = self.broker.config().clone();
        let (broker, effects) = Broker::load(config, records, Epoch(self.epoch), self.now);
        self.broker = broker;
        self.sessions.clear();
        self.commit();
        self.check();
        effects
    }

    /// Nothing that is to last is in memory alone.
    fn check_disk(&self) {
        let b = &self.broker;
        let mut keys: Vec<Key> = b.members.keys().cloned().map(Key::Member).collect();
        keys.extend(b.devices.keys().cloned().map(Key::Device));
        keys.extend(b.invites.keys().cloned().map(Key::Invite));
        keys.extend(b.jobs.keys().cloned().map(Key::Job));
        keys.extend(b.courses.keys().cloned().map(Key::Course));
        keys.extend(b.usage.keys().cloned().map(Key::Usage));
        keys.extend(b.all_attempts().map(|a| Key::Attempt(a.job.clone(), a.token.attempt)));
        assert_eq!(keys.len(), self.disk.len(), "as many rows on disk as in memory");
        for key in keys {
            let Change::Put(record) = b.change(key.clone()) else { panic!("{key:?} is not there") };
            let text = serde_json::to_string(&record).unwrap();
            assert_eq!(self.disk.get(&key), Some(&text), "what is on disk is old");
        }
    }

    pub(super) fn wait(&mut self, length: Millis) -> Vec<Effect> {
        self.now.boot = self.now.boot + length;
        self.now.wall.0 += i64::try_from(length.0).unwrap();
        self.step(Event::Timeout)
    }

    pub(super) fn fresh(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    pub(super) fn ask(&mut self, make: impl FnOnce(RequestId) -> Event) -> Result<Reply, Problem> {
        let request = RequestId(self.fresh());
        let effects = self.step(make(request));
        replies(&effects).find(|(id, _)| *id == request).expect("every call is answered").1.clone()
    }

    pub(super) fn invite(&mut self, role: Role, member: Option<MemberId>) -> Digest {
        let n = self.fresh();
        let code = Digest::of(&n.to_le_bytes());
        let expires = WallMs(self.now.wall.0 + 3_600_000);
        let invite = InviteId::new(n, [1; 10]);
        self.ask(|request| Event::NewInvite { request, by: By::Relay, invite, code, role, member, expires })
            .unwrap();
        code
    }

    pub(super) fn redeem(&mut self, code: Digest, name: &str) -> Result<Reply, Problem> {
        let n = self.fresh();
        self.ask(|request| Event::Redeem {
            request,
            code,
            member_name: name.to_owned(),
            device_name: name.to_owned(),
            public_key: Blob(vec![7; 32]),
            member: MemberId::new(n, [2; 10]),
            device: DeviceId::new(n, [3; 10]),
            token: Digest::of(format!("token {n}").as_bytes()),
        })
    }

    /// A new member with one device of the same name.
    pub(super) fn join(&mut self, role: Role, name: &str) -> (MemberId, DeviceId) {
        let code = self.invite(role, None);
        let Ok(Reply::Joined { member, device, .. }) = self.redeem(code, name) else {
            panic!("{name} did not join")
        };
        (member, device)
    }

    pub(super) fn connect(&mut self, device: &DeviceId) -> Vec<Effect> {
        self.connect_as(device, WIRE_VERSION)
    }

    /// An agent that speaks this version of the wire.
    pub(super) fn connect_as(&mut self, device: &DeviceId, wire: u32) -> Vec<Effect> {
        let session = SessionId(self.fresh());
        self.sessions.insert(device.clone(), session);
        let mut effects = self.step(Event::Connected { device: device.clone(), session });
        effects.extend(self.say(device, ToRelay::Hello { wire, agent: "test".to_owned() }));
        effects
    }

    pub(super) fn disconnect(&mut self, device: &DeviceId) -> Vec<Effect> {
        let session = self.sessions.remove(device).unwrap_or(SessionId(0));
        self.step(Event::Disconnected { device: device.clone(), session })
    }

    pub(super) fn session(&self, device: &DeviceId) -> SessionId {
        self.sessions.get(device).copied().unwrap_or(SessionId(0))
    }

    pub(super) fn say(&mut self, device: &DeviceId, message: ToRelay) -> Vec<Effect> {
        let session = self.session(device);
        self.step(Event::From { device: device.clone(), session, message })
    }

    /// Joins, connects, and lends GPUs of these sizes (GiB).
    pub(super) fn provider(&mut self, name: &str, gpus: &[u64]) -> DeviceId {
        let (_, device) = self.join(Role::Member, name);
        self.connect(&device);
        self.say(&device, ToRelay::Offer { offer: offer(name, gpus) });
        device
    }

    pub(super) fn submit(&mut self, member: &MemberId, change: impl FnOnce(&mut Submit)) -> JobId {
        let submit = self.draft(change);
        let job = submit.job.clone();
        self.hand_in(member, submit).unwrap();
        job
    }

    /// A submit whose key is wrapped for every device there is now.
    pub(super) fn draft(&mut self, change: impl FnOnce(&mut Submit)) -> Submit {
        let id = JobId::new(self.fresh(), [4; 10]);
        let mut spec = JobSpec::of_image("digits:1");
        spec.resources.gpu_memory = Bytes(GIB);
        let keys = self.broker.devices.keys().cloned();
        let mut submit = Submit {
            job: id,
            spec,
            image: Image::Registry { reference: "digits:1".to_owned(), digest: None },
            input: Some(snapshot(0)),
            data: Vec::new(),
            keys: keys.map(|device| WrappedKey { device, wrapped: Blob(vec![1; 80]) }).collect(),
            sealed: Blob(vec![9; 40]),
        };
        change(&mut submit);
        submit
    }

    pub(super) fn hand_in(&mut self, member: &MemberId, submit: Submit) -> Result<Reply, Problem> {
        let key = submit.job.to_string();
        let body = Digest::of(format!("{submit:?}").as_bytes());
        let (member, submit) = (member.clone(), Box::new(submit));
        self.ask(|request| Event::Submit { request, member, key, body, submit })
    }

    pub(super) fn cancel(&mut self, by: &MemberId, job: &JobId) -> Result<Reply, Problem> {
        let (by, job) = (by.clone(), job.clone());
        self.ask(|request| Event::Cancel { request, by, job })
    }

    pub(super) fn state(&self, job: &JobId) -> JobState {
        self.broker.job_state(job).unwrap()
    }

    pub(super) fn why(&self, job: &JobId) -> String {
        let state = self.state(job);
        let (JobState::Queued { why } | JobState::Held { why }) = state else {
            panic!("it does not wait: {state:?}")
        };
        why
    }

    pub(super) fn newest(&self, job: &JobId) -> (DeviceId, AttemptRef) {
        let attempt = self.broker.newest(job).expect("an attempt");
        (attempt.device.clone(), attempt.named())
    }

    /// The newest attempt says that it runs.
    pub(super) fn run(&mut self, job: &JobId) -> (DeviceId, AttemptRef) {
        let (device, attempt) = self.newest(job);
        self.say(
            &device,
            ToRelay::State { attempt: attempt.clone(), state: AttemptState::Running, note: None },
        );
        (device, attempt)
    }

    pub(super) fn publish(&mut self, device: &DeviceId, attempt: &AttemptRef, n: u8) -> Vec<Effect> {
        self.say(
            device,
            ToRelay::Publish { attempt: attempt.clone(), checkpoint: checkpoint(attempt, n), age: Millis(0) },
        )
    }

    pub(super) fn end(
        &mut self,
        device: &DeviceId,
        attempt: &AttemptRef,
        cause: EndCause,
        result: Option<u8>,
    ) -> Vec<Effect> {
        let result = result.map(snapshot);
        self.say(device, ToRelay::Ended { attempt: attempt.clone(), cause, result })
    }

    pub(super) fn renew(&mut self, device: &DeviceId, attempts: &[AttemptRef]) -> Vec<Effect> {
        self.say(device, ToRelay::Renew { seq: 1, attempts: attempts.to_vec() })
    }
}

pub(super) fn snapshot(n: u8) -> SnapshotId {
    SnapshotId([n; 32])
}

pub(super) fn checkpoint(attempt: &AttemptRef, n: u8) -> Checkpoint {
    Checkpoint {
        number: 0,
        snapshot: snapshot(n),
        quality: Quality::Quiet,
        token: attempt.token,
        bytes: 100,
        new_bytes: 10,
        stopped: Millis(5),
        at: None,
        taken: None,
    }
}

pub(super) fn offer(name: &str, gpus: &[u64]) -> Offer {
    Offer {
        open: true,
        why: None,
        gpus: gpus
            .iter()
            .enumerate()
            .map(|(i, gib)| OfferedGpu {
                uuid: GpuUuid(format!("GPU-{name}-{i}")),
                name: "stand-in".to_owned(),
                memory: Bytes(gib * GIB),
                free_for_guests: true,
                standin: true,
            })
            .collect(),
        cpus: 16,
        memory: Bytes(64 * GIB),
        disk: Bytes(500 * GIB),
        time_left: None,
        grace: None,
        egress: EgressRule::Off,
        architecture: "amd64".to_owned(),
    }
}

pub(super) fn replies(effects: &[Effect]) -> impl Iterator<Item = (RequestId, &Result<Reply, Problem>)> {
    effects.iter().filter_map(|effect| match effect {
        Effect::Reply { request, result } => Some((*request, result)),
        Effect::Send { .. } | Effect::Announce { .. } | Effect::Forget { .. } | Effect::Disconnect { .. } => {
            None
        }
    })
}

/// What was sent to this device.
pub(super) fn sent<'a>(effects: &'a [Effect], to: &DeviceId) -> Vec<&'a ToAgent> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Send { device, message } if device == to => Some(message),
            Effect::Send { .. }
            | Effect::Reply { .. }
            | Effect::Announce { .. }
            | Effect::Forget { .. }
            | Effect::Disconnect { .. } => None,
        })
        .collect()
}

pub(super) fn assigned<'a>(effects: &'a [Effect], to: &DeviceId) -> Vec<&'a Assignment> {
    sent(effects, to)
        .into_iter()
        .filter_map(|message| if let ToAgent::Assign(a) = message { Some(a.as_ref()) } else { None })
        .collect()
}

pub(super) fn ends<'a>(effects: &'a [Effect], to: &DeviceId) -> Vec<(&'a AttemptRef, &'a EndCause)> {
    sent(effects, to)
        .into_iter()
        .filter_map(|m| if let ToAgent::End { attempt, cause } = m { Some((attempt, cause)) } else { None })
        .collect()
}
