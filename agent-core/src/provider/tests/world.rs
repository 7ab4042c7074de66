//! A provider with a disk that keeps what was committed, and builders for what happens to it.

use std::collections::BTreeMap;

use gpunion_protocol::gpu::{GpuProcess, GpuSample, GpuSource, GpuState, GpuView};
use gpunion_protocol::guest::FromInit;
use gpunion_protocol::ids::{AttemptNo, AttemptRef, Epoch, GpuUuid, JobId, SnapshotId, Token};
use gpunion_protocol::job::{Blob, Image};
use gpunion_protocol::local::{Caps, ShareRequest};
use gpunion_protocol::session::{Assignment, Terms, ToAgent};
use gpunion_protocol::spec::JobSpec;
use gpunion_protocol::time::{BootMs, Millis, Now, WallMs};
use gpunion_protocol::units::{Bytes, Span};
use jiff::tz::TimeZone;

use super::super::Provider;
use super::super::effect::{Effect, Operation};
use super::super::event::{CallId, Engine, Event, Found, Inventory, OpId, Outcome, Taken, Trouble};
use super::super::record::{Change, Key, Record};
use crate::gpu::verify::ProcessId;

pub(super) const GPU: &str = "GPU-a";
pub(super) const PROCESS: ProcessId = ProcessId { pid: 4242, start_time: 99 };
pub(super) const BASELINE: u64 = 100 << 20;

pub(super) struct World {
    pub(super) provider: Provider,
    pub(super) disk: BTreeMap<Key, Record>,
    pub(super) now: Now,
    /// Running operations, as the driver would hold them.
    pub(super) ops: BTreeMap<AttemptRef, (OpId, Operation)>,
    pub(super) effects: Vec<Effect>,
    /// Of the owner's hours, as this machine's table has it.
    pub(super) zone: Option<TimeZone>,
    calls: u64,
}

pub(super) fn caps() -> Caps {
    Caps { cpus: 8, memory: Bytes(64 << 30), disk: Bytes(100 << 30) }
}

pub(super) fn attempt(n: u32) -> AttemptRef {
    let token = Token { epoch: Epoch(1), attempt: AttemptNo(n) };
    AttemptRef { job: JobId::new(1, [0; 10]), token }
}

pub(super) fn assignment(name: &AttemptRef, gpus: &[&str]) -> Assignment {
    let mut spec = JobSpec::of_image("digits:latest");
    spec.resources.gpus = gpus.len() as u32;
    spec.checkpoint.every = Some(Span(Millis::from_secs(300)));
    Assignment {
        attempt: name.clone(),
        member_name: "ada".to_owned(),
        spec,
        image: Image::Registry { reference: "digits:latest".to_owned(), digest: None },
        gpus: gpus.iter().map(|g| GpuUuid((*g).to_owned())).collect(),
        input: None,
        from: None,
        data: Vec::new(),
        key: Blob::default(),
        sealed: Blob::default(),
        resumed: false,
        previous: None,
        wait: false,
    }
}

pub(super) fn snapshot(n: u8) -> SnapshotId {
    SnapshotId([n; 32])
}

pub(super) fn engine() -> Event {
    Event::Engine(Engine::Known {
        architecture: "amd64".to_owned(),
        cpus: 8,
        memory: Bytes(64 << 30),
        disk: Bytes(200 << 30),
        blocked: None,
    })
}

impl World {
    /// An agent on a machine with one GPU, its engine and its relay there, nothing lent.
    pub(super) fn new() -> Self {
        let now = Now { boot: BootMs(1_000), wall: WallMs(1_764_000_000_000) };
        let mut world = Self {
            provider: Provider::new(caps()),
            disk: BTreeMap::new(),
            now,
            ops: BTreeMap::new(),
            effects: Vec::new(),
            zone: None,
            calls: 0,
        };
        world.arrive();
        world
    }

    /// What every start of an agent brings: engine, list of containers, GPUs, relay.
    pub(super) fn arrive(&mut self) {
        self.on(engine());
        self.on(Event::Found(Inventory::default()));
        self.gpu(BASELINE, &[]);
        self.on(Event::LinkUp { terms: Terms::default(), epoch: Epoch(1) });
    }

    pub(super) fn sharing() -> Self {
        let mut world = Self::new();
        world.share(true);
        world
    }

    pub(super) fn share(&mut self, on: bool) {
        let request = ShareRequest { on: Some(on), ..ShareRequest::default() };
        let call = self.call();
        self.on(Event::Share { call, request });
    }

    pub(super) fn call(&mut self) -> CallId {
        self.calls += 1;
        CallId(self.calls)
    }

    pub(super) fn on(&mut self, event: Event) {
        let effects = self.provider.handle(event, self.now);
        for change in self.provider.take_changes() {
            match change {
                Change::Put(record) => self.disk.insert(record.key(), record),
                Change::Delete(key) => self.disk.remove(&key),
            };
        }
        for effect in &effects {
            match effect {
                Effect::Do { attempt, op, what } => {
                    self.ops.insert(attempt.clone(), (*op, *what));
                }
                Effect::GiveUp { attempt } => {
                    self.ops.remove(attempt);
                }
                _ => {}
            }
        }
        self.effects.extend(effects);
        self.provider.check_invariants().expect("an invariant is broken");
    }

    pub(super) fn take(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    pub(super) fn pass(&mut self, time: Millis) {
        self.now.boot = self.now.boot + time;
        self.now.wall.0 += time.0 as i64;
        self.on(Event::Timeout);
    }

    /// The agent is killed and starts again: only what was committed is left.
    pub(super) fn crash(&mut self) {
        let provider = Provider::load(self.disk.values().cloned().collect(), caps(), self.now);
        self.provider = provider.with_zone(self.zone.clone());
        self.ops.clear();
    }

    pub(super) fn gpu(&mut self, used: u64, processes: &[(u32, u64, u64)]) {
        self.gpu_as(used, processes, |_| {});
    }

    /// The same, with this one thing different.
    pub(super) fn gpu_as(
        &mut self,
        used: u64,
        processes: &[(u32, u64, u64)],
        change: impl FnOnce(&mut GpuSample),
    ) {
        let list = processes.iter().map(|(pid, start, memory)| GpuProcess {
            pid: *pid,
            start_time: Some(*start),
            memory: Some(*memory),
            container: (*pid == PROCESS.pid).then(|| "container".to_owned()),
            draws_only: false,
        });
        let mut sample = GpuSample {
            uuid: GpuUuid(GPU.to_owned()),
            name: "test".to_owned(),
            standin: true,
            mig: false,
            memory_total: Some(24 << 30),
            memory_used: Some(used),
            utilisation: None,
            power_mw: None,
            power_limit_mw: None,
            temperature_c: None,
            processes: Some(list.collect()),
            state: GpuState::Ok,
            taken_at: self.now.boot,
        };
        change(&mut sample);
        let view = GpuView {
            source: GpuSource::Ready { version: None },
            gpus: BTreeMap::from([(sample.uuid.clone(), sample)]),
            troubles: Vec::new(),
        };
        self.on(Event::Gpus(Box::new(view)));
    }

    /// The driver lists no GPU.
    pub(super) fn no_gpu(&mut self) {
        self.on(Event::Gpus(Box::new(GpuView::none("no GPU is here"))));
    }

    /// From here on nothing but what is under way asks to be woken: no relay, no figures that get old,
    /// no list of containers that is due.
    pub(super) fn alone(&mut self) {
        self.on(Event::LinkDown { why: "cut".to_owned() });
        self.no_gpu();
        self.pass(Millis::from_secs(30));
        self.take();
    }

    /// In how many milliseconds the machine wants to be woken.
    pub(super) fn wakes_in(&self) -> Option<u64> {
        self.provider.poll_timeout().map(|at| (at - self.now.boot).0)
    }

    /// The running operation fails; it may work the next time.
    pub(super) fn away(&mut self, name: &AttemptRef) {
        self.trouble(name, Trouble::Away { why: "no answer".to_owned() });
    }

    /// The running operation fails, and can't work as it is.
    pub(super) fn refuse(&mut self, name: &AttemptRef) {
        self.trouble(name, Trouble::Refused { reason: "a file can't be read".to_owned() });
    }

    fn trouble(&mut self, name: &AttemptRef, trouble: Trouble) {
        let (op, _) = self.ops.remove(name).expect("an operation runs");
        self.on(Event::Done { attempt: name.clone(), op, outcome: Err(trouble) });
    }

    pub(super) fn op(&self, name: &AttemptRef) -> Option<Operation> {
        self.ops.get(name).map(|(_, what)| *what)
    }

    pub(super) fn relay(&mut self, message: ToAgent) {
        self.on(Event::Relay(Box::new(message)));
    }

    pub(super) fn assign(&mut self, name: &AttemptRef) {
        self.assign_this(assignment(name, &[GPU]));
    }

    pub(super) fn assign_this(&mut self, assignment: Assignment) {
        self.on(Event::Relay(Box::new(ToAgent::Assign(Box::new(assignment)))));
    }

    /// Answers the running operation of the attempt as a healthy machine does.
    pub(super) fn work(&mut self, name: &AttemptRef) -> Option<Operation> {
        let (op, what) = self.ops.remove(name)?;
        let taken = Taken { snapshot: snapshot(7), bytes: 10, new_bytes: 10, newest_change_ns: 500 };
        let outcome = match what {
            Operation::Image => Outcome::Image { digest: None },
            Operation::Stage => Outcome::Staged,
            Operation::Create => Outcome::Created { container: "container".to_owned() },
            Operation::Start => Outcome::Started { process: PROCESS },
            Operation::PassOne => Outcome::PassOne,
            Operation::PassTwo | Operation::Whole => Outcome::Taken(taken),
            Operation::Upload { .. } => Outcome::Uploaded,
            Operation::Clean => Outcome::Cleaned,
        };
        self.on(Event::Done { attempt: name.clone(), op, outcome: Ok(outcome) });
        Some(what)
    }

    /// Prepares and starts the attempt.
    pub(super) fn run(&mut self, name: &AttemptRef) {
        self.run_this(assignment(name, &[GPU]));
    }

    pub(super) fn run_this(&mut self, assignment: Assignment) {
        let name = assignment.attempt.clone();
        self.assign_this(assignment);
        for _ in 0..4 {
            self.work(&name);
        }
        self.init(&name, FromInit::Started { pid: 2 });
    }

    pub(super) fn init(&mut self, name: &AttemptRef, word: FromInit) {
        self.on(Event::Init { attempt: name.clone(), word, memory_limit: false });
    }

    pub(super) fn gone(&mut self, name: &AttemptRef) {
        self.on(Event::GuestGone { attempt: name.clone(), memory_limit: false });
    }

    /// These containers, and no workspace.
    pub(super) fn found(&mut self, containers: Vec<Found>) {
        self.on(Event::Found(Inventory { containers, ..Inventory::default() }));
    }

    pub(super) fn running_container(&self, name: &AttemptRef) -> Found {
        Found { attempt: name.clone(), container: "container".to_owned(), process: Some(PROCESS) }
    }
}
