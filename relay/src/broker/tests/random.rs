//! Random sequences of events: late, doubled, wrong, out of order, with restarts in between.
//! After each step the invariants are asked for (`World::check`: 4, 7 and 8; failures only by the
//! program or the member's limits: 6); at the end every accepted job must be there (5) and must
//! become final once the world behaves.

use gpunion_protocol::http::Role;
use gpunion_protocol::ids::{AttemptNo, AttemptRef, DeviceId, Epoch, InviteId, JobId, MemberId, Token};
use gpunion_protocol::job::{AttemptState, Blob, EndCause, JobState, PrepareStep, StopWhy, WrappedKey};
use gpunion_protocol::offer::Offer;
use gpunion_protocol::session::ToRelay;
use gpunion_protocol::time::{Millis, WallMs};
use gpunion_protocol::units::Bytes;
use proptest::prelude::*;

use super::{GIB, World, checkpoint, offer, replies, snapshot};
use crate::broker::{Broker, By, Config, Digest, Event, Reply, RequestId, SessionId};

/// One random happening; small numbers pick among what exists.
#[derive(Debug, Clone)]
enum Op {
    Wait(u64),
    Join { operator: bool },
    Connect(usize),
    Disconnect(usize),
    OldSession(usize),
    Offer(usize, u8),
    Submit { member: usize, gpus: u32, gib: u64, keys: bool },
    Cancel { member: usize, job: usize },
    Agent { job: usize, back: usize, wrong_device: Option<usize>, word: Word },
    Wrapped { device: usize, job: usize, to: usize },
    Revoke(usize),
    Remove(usize),
    StandStill(u64),
    Restart,
}

#[derive(Debug, Clone)]
enum Word {
    State(u8),
    Publish(u8),
    Ended(u8),
    Renew(bool),
    Digest,
    Leaving,
    WrongToken(u8),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let word = prop_oneof![
        4 => (0u8..8).prop_map(Word::State),
        4 => any::<u8>().prop_map(Word::Publish),
        5 => (0u8..13).prop_map(Word::Ended),
        4 => any::<bool>().prop_map(Word::Renew),
        1 => Just(Word::Digest),
        2 => Just(Word::Leaving),
        1 => any::<u8>().prop_map(Word::WrongToken),
    ];
    let agent = (0..8usize, prop_oneof![5 => Just(0usize), 1 => 1..3usize], word, 0..40usize).prop_map(
        |(job, back, word, wrong)| Op::Agent { job, back, wrong_device: (wrong < 4).then_some(wrong), word },
    );
    let op = prop_oneof![
        6 => prop_oneof![Just(1u64), Just(10_000), Just(31_000), Just(51_000), 0..200_000u64].prop_map(Op::Wait),
        2 => any::<bool>().prop_map(|operator| Op::Join { operator }),
        5 => (0..6usize).prop_map(Op::Connect),
        2 => (0..6usize).prop_map(Op::Disconnect),
        1 => (0..6usize).prop_map(Op::OldSession),
        5 => ((0..6usize), 0u8..6).prop_map(|(d, kind)| Op::Offer(d, kind)),
        4 => ((0..4usize), 0u32..4, prop_oneof![Just(1u64), Just(8), Just(90)], prop::bool::weighted(0.8))
            .prop_map(|(member, gpus, gib, keys)| Op::Submit { member, gpus, gib, keys }),
        1 => ((0..4usize), (0..8usize)).prop_map(|(member, job)| Op::Cancel { member, job }),
        16 => agent,
        1 => ((0..6usize), (0..8usize), (0..6usize))
            .prop_map(|(device, job, to)| Op::Wrapped { device, job, to }),
        1 => (0..6usize).prop_map(Op::Revoke),
        1 => (0..4usize).prop_map(Op::Remove),
        1 => (10_000..120_000u64).prop_map(Op::StandStill),
        2 => Just(Op::Restart),
    ];
    prop::collection::vec(op, 1..120)
}

fn pick<T: Clone>(items: &[T], n: usize) -> Option<T> {
    (!items.is_empty()).then(|| items[n % items.len()].clone())
}

/// Everything that a random run knows besides the broker.
struct Run {
    w: World,
    accepted: Vec<JobId>,
}

impl Run {
    fn devices(&self) -> Vec<DeviceId> {
        self.w.broker.devices.keys().cloned().collect()
    }

    fn members(&self) -> Vec<MemberId> {
        self.w.broker.members.keys().cloned().collect()
    }

    /// One event, twice: the second time must change nothing that is saved.
    fn twice(&mut self, event: Event) {
        let effects = self.w.step(event.clone());
        for (_, result) in replies(&effects) {
            if let Ok(Reply::Submitted(submitted)) = result {
                self.accepted.push(submitted.job.clone());
            }
        }
        if matches!(&event, Event::From { message: ToRelay::Renew { .. }, .. }) {
            self.repeat_until_quiet(&event);
        }
        let disk = self.w.disk.clone();
        self.w.step(event.clone());
        assert!(self.w.disk == disk, "said twice, done twice: {event:?}");
    }

    /// A renewal releases what its step before ended, and that may let another job be placed,
    /// which ends a lapsed attempt there, and so on, once for each attempt at most.
    fn repeat_until_quiet(&mut self, event: &Event) {
        for _ in 0..20 {
            let disk = self.w.disk.clone();
            self.w.step(event.clone());
            if self.w.disk == disk {
                return;
            }
        }
        panic!("a renewal that never comes to rest");
    }

    fn say(&mut self, device: &DeviceId, message: ToRelay) {
        let session = self.w.session(device);
        self.twice(Event::From { device: device.clone(), session, message });
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Wait(ms) => self.wait(ms),
            Op::Join { operator } => self.join(if operator { Role::Operator } else { Role::Member }),
            Op::Connect(n) => {
                if let Some(device) = pick(&self.devices(), n) {
                    self.w.connect(&device);
                }
            }
            Op::Disconnect(n) => {
                if let Some(device) = pick(&self.devices(), n) {
                    self.w.disconnect(&device);
                }
            }
            Op::OldSession(n) => {
                if let Some(device) = pick(&self.devices(), n) {
                    self.twice(Event::Disconnected { device: device.clone(), session: SessionId(1) });
                    let message = ToRelay::Offer { offer: Offer::default() };
                    self.twice(Event::From { device, session: SessionId(1), message });
                }
            }
            Op::Offer(n, kind) => {
                if let Some(device) = pick(&self.devices(), n) {
                    let offer = some_offer(&device, kind);
                    self.say(&device, ToRelay::Offer { offer });
                }
            }
            Op::Submit { member, gpus, gib, keys } => self.submit(member, gpus, gib, keys),
            Op::Cancel { member, job } => {
                if let (Some(by), Some(job)) = (pick(&self.members(), member), pick(&self.accepted, job)) {
                    let request = RequestId(self.w.fresh());
                    self.twice(Event::Cancel { request, by, job });
                }
            }
            Op::Agent { job, back, wrong_device, word } => self.agent(job, back, wrong_device, word),
            Op::Wrapped { device, job, to } => {
                let (devices, job) = (self.devices(), pick(&self.accepted, job));
                if let (Some(from), Some(to), Some(job)) = (pick(&devices, device), pick(&devices, to), job) {
                    let key = WrappedKey { device: to, wrapped: Blob(vec![2; 80]) };
                    self.say(&from, ToRelay::Wrapped { job, key });
                }
            }
            Op::Revoke(n) => {
                if let Some(device) = pick(&self.devices(), n) {
                    let request = RequestId(self.w.fresh());
                    self.twice(Event::RevokeDevice { request, by: By::Relay, device });
                }
            }
            Op::Remove(n) => {
                if let Some(member) = pick(&self.members(), n) {
                    let request = RequestId(self.w.fresh());
                    self.twice(Event::RemoveMember { request, by: By::Relay, member });
                }
            }
            Op::StandStill(ms) => {
                self.w.now.boot = self.w.now.boot + Millis(ms);
                self.twice(Event::StoodStill);
            }
            Op::Restart => {
                let before: Vec<_> = self.w.disk.keys().cloned().collect();
                self.w.restart();
                assert!(before.iter().all(|key| self.w.disk.contains_key(key)), "a restart loses nothing");
            }
        }
    }

    /// Invariant 10: time alone makes nothing final and holds nothing, unless a lease decides.
    fn wait(&mut self, ms: u64) {
        let before: Vec<bool> = self.stopped();
        self.w.wait(Millis(ms));
        self.twice(Event::Timeout);
        assert_eq!(self.stopped(), before, "a time-out ended a job");
    }

    fn stopped(&self) -> Vec<bool> {
        let ended = |job: &JobId| {
            let state = self.w.state(job);
            // Its keys went with devices that were revoked; that is noticed once it has to move.
            let keyless =
                matches!(&state, JobState::Held { why } if why.starts_with("No device that is left"));
            let lost = AttemptState::Ended { cause: EndCause::Lost };
            let lost = self.w.broker.newest(job).is_some_and(|attempt| attempt.state == lost);
            state.is_final() || (state.word() == "held" && !keyless && !lost)
        };
        self.w.broker.jobs.keys().map(ended).collect()
    }

    fn join(&mut self, role: Role) {
        if self.devices().len() >= 6 {
            return;
        }
        let n = self.w.fresh();
        let code = Digest::of(&n.to_le_bytes());
        let expires = WallMs(self.w.now.wall.0 + 1000);
        let invite = InviteId::new(n, [1; 10]);
        let request = RequestId(n);
        let by = By::Relay;
        self.twice(Event::NewInvite { request, by, invite, code, role, member: None, expires });
        self.twice(Event::Redeem {
            request,
            code,
            member_name: format!("member {n}"),
            device_name: format!("device {n}"),
            public_key: Blob(vec![7; 32]),
            member: MemberId::new(n, [2; 10]),
            device: DeviceId::new(n, [3; 10]),
            token: Digest::of(format!("token {n}").as_bytes()),
        });
    }

    fn submit(&mut self, member: usize, gpus: u32, gib: u64, keys: bool) {
        let Some(member) = pick(&self.members(), member) else { return };
        let own: Vec<DeviceId> =
            self.w.broker.devices.values().filter(|d| d.member == member).map(|d| d.id.clone()).collect();
        let submit = self.w.draft(|s| {
            s.spec.resources.gpus = gpus;
            s.spec.resources.gpu_memory = Bytes(gib.min(80) * GIB);
            if !keys {
                s.keys.truncate(1);
            }
            // In a good world a device of the member always has the key.
            for device in own {
                if s.keys.iter().all(|k| k.device != device) {
                    s.keys.push(WrappedKey { device, wrapped: Blob(vec![3; 80]) });
                }
            }
        });
        let (request, key) = (RequestId(self.w.fresh()), submit.job.to_string());
        let body = Digest::of(key.as_bytes());
        self.twice(Event::Submit { request, member, key, body, submit: Box::new(submit) });
    }

    fn agent(&mut self, job: usize, back: usize, wrong_device: Option<usize>, word: Word) {
        let Some(job) = pick(&self.accepted, job) else { return };
        let attempts: Vec<(DeviceId, AttemptRef)> = self
            .w
            .broker
            .attempts
            .get(&job)
            .into_iter()
            .flat_map(|all| all.values().rev().map(|a| (a.device.clone(), a.named())))
            .collect();
        let Some((mut device, mut attempt)) = attempts.get(back).or(attempts.first()).cloned() else {
            return;
        };
        if let Some(wrong) = wrong_device.and_then(|n| pick(&self.devices(), n)) {
            device = wrong;
        }
        let message = match word {
            Word::State(n) => ToRelay::State { attempt, state: some_state(n), note: None },
            Word::Publish(n) => {
                ToRelay::Publish { checkpoint: checkpoint(&attempt, n), attempt, age: Millis(0) }
            }
            Word::Ended(n) => {
                let (cause, result) = some_end(n);
                ToRelay::Ended { attempt, cause, result }
            }
            Word::Renew(with) => {
                ToRelay::Renew { seq: 1, attempts: if with { vec![attempt] } else { Vec::new() } }
            }
            Word::Leaving => ToRelay::Leaving { attempt },
            Word::Digest => ToRelay::ImageDigest { attempt, digest: format!("sha256:{}", "c".repeat(64)) },
            Word::WrongToken(n) => {
                attempt.token = Token { epoch: Epoch(u64::from(n) % 3), attempt: AttemptNo(u32::from(n)) };
                ToRelay::Renew { seq: 2, attempts: vec![attempt] }
            }
        };
        self.say(&device, message);
    }
}

fn some_offer(device: &DeviceId, kind: u8) -> Offer {
    let mut offer = offer(device.as_str(), &[8, 80, 8]);
    match kind {
        0 => offer.open = false,
        1 => offer.gpus.truncate(1),
        2 => offer.time_left = Some(Millis::from_secs(500)),
        3 => offer.gpus[0].free_for_guests = false,
        4 => offer.gpus.extend_from_within(..),
        _ => {}
    }
    offer
}

fn some_state(n: u8) -> AttemptState {
    match n {
        0 => AttemptState::Reserved,
        1 => AttemptState::Preparing { step: PrepareStep::Pull },
        2 => AttemptState::Preparing { step: PrepareStep::Stage },
        3 => AttemptState::Ready,
        4 => AttemptState::Stopped { why: StopWhy::Checkpoint },
        5 => AttemptState::Saving,
        6 => AttemptState::Ended { cause: EndCause::Exited { code: 1 } },
        _ => AttemptState::Running,
    }
}

fn some_end(n: u8) -> (EndCause, Option<gpunion_protocol::ids::SnapshotId>) {
    let reason = "because".to_owned();
    match n {
        0 => (EndCause::Exited { code: 0 }, Some(snapshot(99))),
        1 => (EndCause::Exited { code: 0 }, None),
        2 => (EndCause::Exited { code: 1 }, Some(snapshot(98))),
        3 => (EndCause::Signalled { signal: 11 }, None),
        4 => (EndCause::MemoryLimit, None),
        5 => (EndCause::DiskLimit, None),
        6 => (EndCause::Cancelled, None),
        7 => (EndCause::Reclaimed, None),
        8 => (EndCause::Left, None),
        9 => (EndCause::Lost, None),
        10 => (EndCause::Stale, None),
        11 => (EndCause::CouldNotStart { reason }, None),
        _ => (EndCause::Broken { reason }, None),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_invariants_hold_and_every_accepted_job_becomes_final(
        ops in ops(),
        warm in any::<bool>(),
        crowd in prop_oneof![Just(0usize), Just(2), Just(200)],
        crash_before_close in any::<bool>(),
        agents_remember in any::<bool>(),
    ) {
        let broker = Broker::new(Config { crowd, ..Config::default() });
        let mut run = Run { w: World { broker, ..World::new() }, accepted: Vec::new() };
        run.join(Role::Operator);
        run.join(Role::Member);
        if warm {
            run.join(Role::Member);
            (0..3).for_each(|n| run.apply(Op::Connect(n)));
            (0..3).for_each(|n| run.apply(Op::Offer(n, 5)));
            (0..3).for_each(|n| run.apply(Op::Submit { member: n, gpus: 1, gib: 1, keys: true }));
        }
        for op in ops {
            run.apply(op);
            for job in &run.accepted {
                prop_assert!(run.w.broker.jobs.contains_key(job), "an accepted job is lost");
            }
        }
        if crash_before_close {
            run.w.restart();
        }
        run.w.behave(agents_remember);
        for job in &run.accepted {
            prop_assert!(run.w.state(job).is_final());
        }
    }
}
