//! The relay's driver, as the product's is: the commit first, then replies and messages, with a
//! crash possible between any two. What comes while a commit is under way shares the next one. Its
//! disk holds bytes, an epoch, and the store of packs.

use std::collections::BTreeMap;

use gpunion_protocol::ids::{AttemptRef, DeviceId, Epoch, SnapshotId};
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_relay::broker::{
    Broker, Change, Config, Effect, Event, Key, Record, Reply, RequestId, SessionId,
};

use super::backup::Backup;
use super::chance::{Chance, Stream};
use super::group::OfGroup;
use super::net::Luck;
use super::script::Small;
use super::stats::Crash;
use super::world::{Due, World};

/// What nobody counted on for so long is swept, in milliseconds; a relay waits far longer.
const GRACE: u64 = 20_000;

pub(super) struct RelayHost {
    pub(super) clock: super::clock::Clock,
    pub(super) broker: Option<Broker>,
    disk: BTreeMap<Key, Vec<u8>>,
    epoch: Epoch,
    /// Counts starts.
    pub(super) run: u64,
    pub(super) sessions: BTreeMap<DeviceId, SessionId>,
    pub(super) requests: u64,
    /// Which job's call waits for this reply.
    pub(super) waiting: BTreeMap<RequestId, usize>,
    pub(super) of_group: BTreeMap<RequestId, OfGroup>,
    /// Devices whose sessions the relay ends.
    /// And whether it was answered that they are.
    pub(super) revoked: BTreeMap<DeviceId, bool>,
    /// States that somebody waits for here.
    pub(super) lurking: Vec<&'static str>,
    /// Effects and commits until the relay is killed.
    pub(super) dies_in: Option<u64>,
    /// Commits fail, and packs find no room.
    pub(super) disk_full: bool,
    committing: Option<Committing>,
    /// What came meanwhile.
    inputs: Vec<Event>,
    /// It stands still until then.
    pub(super) hung_until: u64,
    /// An older state of the disk, as the operator keeps it elsewhere.
    pub(super) backup: Option<Backup>,
    pub(super) chance: Chance,
    pub(super) wake: u64,
    pub(super) last_wake: u64,
    pub(super) spins: u32,
}

#[derive(Debug)]
struct Committing {
    /// World time of the step.
    at: u64,
    changes: Vec<Change>,
    effects: Vec<Effect>,
}

/// The product takes in so much at a time.
const BATCH: usize = 256;

impl RelayHost {
    pub(super) fn new(seed: u64) -> Self {
        let mut chance = Chance::of(seed, Stream::Relay, 0);
        let drift = chance.between(0, 400) as i64 - 200;
        Self {
            clock: super::clock::Clock::new(drift, 0),
            broker: Some(Broker::new(config())),
            disk: BTreeMap::new(),
            epoch: Epoch(1),
            run: 1,
            sessions: BTreeMap::new(),
            requests: 0,
            waiting: BTreeMap::new(),
            of_group: BTreeMap::new(),
            revoked: BTreeMap::new(),
            lurking: Vec::new(),
            dies_in: None,
            disk_full: false,
            committing: None,
            inputs: Vec::new(),
            hung_until: 0,
            backup: None,
            chance,
            wake: u64::MAX,
            last_wake: 0,
            spins: 0,
        }
    }

    pub(super) fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    pub(super) fn last_request(&self) -> RequestId {
        RequestId(self.requests)
    }

    /// A commit is under way: what comes waits for it.
    pub(super) fn is_committing(&self) -> bool {
        self.committing.is_some()
    }

    pub(super) fn holds(&self, key: &Key) -> bool {
        self.disk.contains_key(key)
    }

    fn write(&mut self, changes: &[Change]) -> Result<(), String> {
        for change in changes {
            match change {
                Change::Put(record) => {
                    let bytes =
                        serde_json::to_vec(record).map_err(|e| format!("a record can't be saved: {e}"))?;
                    self.disk.insert(record.key(), bytes);
                }
                Change::Delete(key) => {
                    self.disk.remove(key);
                }
            }
        }
        Ok(())
    }

    pub(super) fn disk(&self) -> &BTreeMap<Key, Vec<u8>> {
        &self.disk
    }

    pub(super) fn put_back(&mut self, disk: BTreeMap<Key, Vec<u8>>) {
        self.disk = disk;
    }

    fn load(&self) -> Result<Vec<Record>, String> {
        let read = |bytes: &Vec<u8>| serde_json::from_slice(bytes);
        self.disk
            .values()
            .map(read)
            .collect::<Result<_, _>>()
            .map_err(|e| format!("a record can't be loaded: {e}"))
    }
}

impl World {
    pub(super) fn relay_starts(&mut self) {
        if self.relay.broker.is_some() {
            return;
        }
        self.relay.epoch = Epoch(self.relay.epoch.0 + 1);
        self.relay.run += 1;
        self.reference.relay_started(self.at);
        self.load_broker();
    }

    fn load_broker(&mut self) {
        let relay = &mut self.relay;
        relay.sessions.clear();
        let records = match relay.load() {
            Ok(records) => records,
            Err(what) => return self.fail(what),
        };
        let (epoch, now) = (relay.epoch, relay.clock.now(self.at));
        let (broker, effects) = Broker::load(config(), records, epoch, now);
        self.pairs.broker_started(&broker);
        relay.broker = Some(broker);
        self.trace.say(self.at, || format!("relay starts, epoch {}", epoch.0));
        self.settle(effects);
    }

    pub(super) fn relay_dies(&mut self) {
        self.trace.say(self.at, || "relay DIES".to_owned());
        self.stats.relay_crashes += 1;
        self.relay.broker = None;
        self.relay.dies_in = None;
        self.relay.committing = None;
        self.relay.hung_until = 0;
        self.relay.inputs.clear();
        self.relay.waiting.clear();
        self.relay.of_group.clear();
        self.relay.wake = u64::MAX;
        self.drop_sessions();
        let down = self.chance.mostly_short(300, 120_000);
        self.after(down, Due::RelayStarts);
    }

    fn drop_sessions(&mut self) {
        for (session, host) in self.net.all() {
            self.cut(session, host);
        }
        self.relay.sessions.clear();
    }

    fn relay_dies_here(&mut self, point: Crash) -> bool {
        let Some(left) = self.relay.dies_in.as_mut() else { return false };
        if *left > 0 {
            *left -= 1;
            return false;
        }
        self.stats.crash("relay", point);
        self.relay_dies();
        true
    }

    /// One step of the broker, with all that its driver does around it.
    pub(super) fn broker(&mut self, event: Event) {
        if self.relay.broker.is_none() {
            return;
        }
        if self.relay.committing.is_some() {
            if self.relay.inputs.len() < BATCH {
                self.relay.inputs.push(event);
            }
            return;
        }
        self.broker_steps(vec![event]);
    }

    /// What came together is one step.
    fn broker_steps(&mut self, events: Vec<Event>) {
        let now = self.relay.clock.now(self.at);
        let Some(broker) = self.relay.broker.as_mut() else { return };
        for event in events {
            self.trace.say(self.at, || format!("relay <- {}", brief(&event)));
            self.pairs.at_broker(broker, &event);
            broker.hear(event, now);
        }
        let effects = broker.finish(now);
        self.settle(effects);
    }

    fn settle(&mut self, effects: Vec<Effect>) {
        let Some(broker) = self.relay.broker.as_mut() else { return };
        let changes = broker.take_changes();
        if let Err(what) = broker.check_invariants() {
            return self.fail(format!("relay: {what}"));
        }
        let nothing = changes.is_empty();
        self.relay.committing = Some(Committing { at: self.at, changes, effects });
        self.relay.wake = u64::MAX;
        if !nothing && self.small(Small::SlowDisk, 8) {
            let (takes, run) = (self.chance.mostly_short(1, 500), self.relay.run);
            return self.after(takes, Due::RelayCommits { run });
        }
        self.relay_commit_ends(self.relay.run);
    }

    pub(super) fn relay_commit_ends(&mut self, run: u64) {
        if self.relay.run != run || self.relay_dies_here(Crash::BeforeCommit) {
            return;
        }
        let Some(Committing { at, changes, effects }) = self.relay.committing.take() else { return };
        if !changes.is_empty() && self.relay.disk_full {
            return self.not_committed(&effects);
        }
        if let Err(what) = self.relay.write(&changes) {
            return self.fail(what);
        }
        if let Err(what) = self.relay_committed(&changes, at) {
            return self.fail(format!("relay: {what}"));
        }
        if self.relay_dies_here(Crash::AfterCommit) {
            return;
        }
        for effect in effects {
            if self.relay_dies_here(Crash::BetweenEffects) {
                return;
            }
            self.relay_effect(effect, at);
        }
        self.next_batch();
    }

    /// What gathered shares one commit.
    fn next_batch(&mut self) {
        let inputs = std::mem::take(&mut self.relay.inputs);
        if inputs.is_empty() {
            self.spring_at_relay();
            let wanted = self.relay.broker.as_ref().and_then(Broker::poll_timeout);
            self.relay.wake = wanted.map_or(u64::MAX, |boot| self.relay.clock.world(boot));
            return;
        }
        self.stats.batches += 1;
        self.broker_steps(inputs);
    }

    /// Nothing of the step is done; the broker starts anew from its disk in the same epoch. While
    /// that can't be written either, nobody hears of what loading changes.
    fn not_committed(&mut self, effects: &[Effect]) {
        self.trace.say(self.at, || "relay could not commit".to_owned());
        self.stats.commits_failed += 1;
        for effect in effects {
            if let Effect::Reply { request, .. } = effect {
                self.relay.waiting.remove(request);
                self.relay.of_group.remove(request);
            }
        }
        self.drop_sessions();
        self.reference.relay_loads_anew();
        let relay = &mut self.relay;
        let records = match relay.load() {
            Ok(records) => records,
            Err(what) => return self.fail(what),
        };
        let (epoch, now) = (relay.epoch, relay.clock.now(self.at));
        let (mut broker, effects) = Broker::load(config(), records, epoch, now);
        let changes = broker.take_changes();
        self.pairs.broker_started(&broker);
        relay.broker = Some(broker);
        if changes.is_empty() {
            for effect in effects {
                self.relay_effect(effect, self.at);
            }
        }
        self.next_batch();
    }

    fn relay_effect(&mut self, effect: Effect, handled: u64) {
        match effect {
            Effect::Send { device, message } => {
                let Some(session) = self.relay.sessions.get(&device).copied() else { return };
                let Some(host) = self.host_of(&device) else { return };
                self.reference.relay_said(&message, handled);
                self.trace.say(self.at, || format!("relay -> {host}: {}", short(&message)));
                let welcome = matches!(message, ToAgent::Welcome { .. });
                let luck = if welcome { Luck::InOrder } else { self.luck() };
                if let Some(at) = self.net.carry_to_agent(session, &message, self.at, luck, &mut self.chance)
                {
                    self.at_time(at, Due::AtAgent { host, session, message: Box::new(message) });
                }
            }
            Effect::Reply { request, result } => {
                let reply = result.map_err(|problem| format!("{problem:?}"));
                if let Some(call) = self.relay.of_group.remove(&request) {
                    return self.group_answered(call, reply);
                }
                let Some(job) = self.relay.waiting.remove(&request) else { return };
                let lost = self.small(Small::Client, 20);
                if !lost {
                    self.client_answered(job, reply);
                }
            }
            Effect::Announce { .. } | Effect::Forget { .. } => {}
            Effect::Disconnect { device, .. } if self.relay.revoked.contains_key(&device) => {
                let session = self.relay.sessions.remove(&device);
                if let (Some(session), Some(host)) = (session, self.host_of(&device)) {
                    self.cut(session, host);
                }
            }
            Effect::Disconnect { device, why } => {
                self.fail(format!("relay turned {device} out: {why}"));
            }
        }
    }

    pub(super) fn reaches_relay(&mut self, host: usize, session: SessionId, message: ToRelay) {
        if !self.net.is_up(session) || self.relay.broker.is_none() {
            return;
        }
        let named = match &message {
            ToRelay::Publish { checkpoint, .. } => Some(checkpoint.snapshot),
            ToRelay::Ended { result, .. } => *result,
            ToRelay::Hello { .. }
            | ToRelay::Offer { .. }
            | ToRelay::Renew { .. }
            | ToRelay::State { .. }
            | ToRelay::Leaving { .. }
            | ToRelay::ImageDigest { .. }
            | ToRelay::Log { .. }
            | ToRelay::Wrapped { .. }
            | ToRelay::Beat => None,
        };
        if let Some(snapshot) = named
            && !self.store.contains_key(&snapshot)
        {
            return self.fail(format!("agent {host} names {snapshot:?} before it is whole at the relay"));
        }
        if let Some((attempt, snapshot)) = attempt_of(&message).zip(named)
            && self.is_swept(&snapshot)
        {
            // What the session's reader says; the broker hears nothing of it.
            self.stats.swept += 1;
            let device = self.hosts[host].device.clone();
            let (attempt, reason) = (attempt.clone(), "it is not at the relay".to_owned());
            let message = ToAgent::PublishRefused { attempt, snapshot, reason };
            return self.relay_effect(Effect::Send { device, message }, self.at);
        }
        let device = self.hosts[host].device.clone();
        self.broker(Event::From { device, session, message });
    }

    /// Nothing names it, and nobody has counted on it for as long as a hasty sweep waits.
    pub(super) fn is_swept(&self, snapshot: &SnapshotId) -> bool {
        let old = self.sent.get(snapshot).is_none_or(|at| at + GRACE < self.at);
        let named = |broker: &Broker| broker.roots().needed.contains(snapshot);
        old && self.relay.broker.as_ref().is_some_and(|broker| !named(broker))
    }

    pub(super) fn counts_at_relay(&self, attempt: &AttemptRef) -> bool {
        let Some(broker) = &self.relay.broker else { return false };
        let open = broker.job_state(&attempt.job).is_some_and(|state| !state.is_final());
        let newest = broker.newest(&attempt.job).filter(|_| open);
        newest.is_some_and(|newest| newest.token == attempt.token && !newest.state.is_ended())
    }

    pub(super) fn relay_learns_cut(&mut self, host: usize, session: SessionId, relay_run: u64) {
        if self.relay.run != relay_run {
            return;
        }
        let device = self.hosts[host].device.clone();
        if self.relay.sessions.get(&device) == Some(&session) {
            self.relay.sessions.remove(&device);
        }
        self.broker(Event::Disconnected { device, session });
    }

    /// The device's session begins at the relay.
    pub(super) fn accept(&mut self, host: usize, session: SessionId) {
        let device = self.hosts[host].device.clone();
        self.relay.sessions.insert(device.clone(), session);
        self.broker(Event::Connected { device, session });
    }

    /// Members and devices come in by invites, as in life. Runs before anything can fail.
    pub(super) fn call_now(&mut self, event: Event) -> Option<Reply> {
        let now = self.relay.clock.now(self.at);
        let broker = self.relay.broker.as_mut()?;
        let effects = broker.handle(event, now);
        let changes = broker.take_changes();
        if let Err(what) = self.relay.write(&changes) {
            self.fail(what);
        }
        effects.into_iter().find_map(|effect| match effect {
            Effect::Reply { result, .. } => result.ok(),
            Effect::Send { .. }
            | Effect::Announce { .. }
            | Effect::Forget { .. }
            | Effect::Disconnect { .. } => None,
        })
    }
}

fn attempt_of(message: &ToRelay) -> Option<&AttemptRef> {
    match message {
        ToRelay::Publish { attempt, .. } | ToRelay::Ended { attempt, .. } => Some(attempt),
        ToRelay::Hello { .. }
        | ToRelay::Offer { .. }
        | ToRelay::Renew { .. }
        | ToRelay::State { .. }
        | ToRelay::Leaving { .. }
        | ToRelay::ImageDigest { .. }
        | ToRelay::Log { .. }
        | ToRelay::Wrapped { .. }
        | ToRelay::Beat => None,
    }
}

fn brief(event: &Event) -> String {
    match event {
        Event::Submit { submit, .. } => format!("Submit {}", submit.job),
        Event::From { device, message, .. } => format!("{device}: {message:?}"),
        other => format!("{other:?}"),
    }
}

fn short(message: &ToAgent) -> String {
    match message {
        ToAgent::Assign(a) => format!("Assign {} {:?}", a.attempt, a.gpus),
        other => format!("{other:?}"),
    }
}

/// Three jobs are a crowd, so that newcomers are let in alone now and then.
fn config() -> Config {
    Config { crowd: 2, ..Config::default() }
}
