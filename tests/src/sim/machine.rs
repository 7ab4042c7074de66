//! A provider's machine without its agent: disk, container engine, guests, GPUs. All of it outlives
//! a crash of the agent; a reboot ends the guests and keeps the disk.

use std::collections::BTreeMap;

use gpunion_agent_core::gpu::verify::ProcessId;
use gpunion_agent_core::provider::effect::Word;
use gpunion_agent_core::provider::event::Found;
use gpunion_protocol::gpu::{GpuProcess, GpuSample, GpuSource, GpuState, GpuView};
use gpunion_protocol::guest::Exit;
use gpunion_protocol::ids::{AttemptRef, GpuUuid};
use gpunion_protocol::time::BootMs;

use super::clock::Clock;
use super::program::Content;

pub(super) const GIB: u64 = 1 << 30;
/// Bytes that a guest takes on each of its GPUs.
const GUEST_MEMORY: u64 = 3 * GIB;

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) clock: Clock,
    pub(super) engine: bool,
    pub(super) gpus: Vec<Gpu>,
    pub(super) containers: BTreeMap<AttemptRef, Container>,
    pub(super) workspaces: BTreeMap<AttemptRef, Workspace>,
    /// The second way runs: started with the engine's help, it needs it no more.
    pub(super) second_way: bool,
    next_pid: u32,
}

#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) uuid: GpuUuid,
    memory: u64,
    /// The driver tells who uses it.
    lists: bool,
    pub(super) answers: bool,
    /// It fell off the bus: the driver does not list it.
    pub(super) gone: bool,
    /// It was not listed when the GPUs were read last.
    pub(super) missed: bool,
    /// Processes of the machine's owner: pid, start, bytes.
    pub(super) foreign: Vec<(u32, u64, u64)>,
    /// Memory of guests that have ended, not given back yet.
    lingering: Vec<Lingering>,
}

#[derive(Debug)]
struct Lingering {
    process: ProcessId,
    container: String,
    until: u64,
}

#[derive(Debug)]
pub(super) struct Container {
    pub(super) id: String,
    pub(super) gpus: Vec<GpuUuid>,
    pub(super) guest: Option<Guest>,
    /// It ran, or does: nobody starts it a second time.
    pub(super) started: bool,
    /// The file `end` lies in its control folder.
    pub(super) end_file: bool,
}

/// The processes of a container that runs.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) process: ProcessId,
    pub(super) begun: bool,
    /// Its processes stand still.
    pub(super) stopped: bool,
    /// The run of the agent that its init is connected to.
    pub(super) connected: Option<u64>,
    pub(super) content: Content,
    /// The step that its program found when it began.
    pub(super) begun_from: u64,
    /// Milliseconds of work since the last step, and when it went on.
    pub(super) done: u64,
    pub(super) since: u64,
    /// Which of the planned steps is the valid one.
    pub(super) plan: u64,
    /// When its init's last word arrives: words keep their order.
    pub(super) spoken: u64,
    pub(super) end: Option<End>,
    /// Its init does not answer for now: what was said to it waits in its socket.
    pub(super) deaf: bool,
    pub(super) unheard: Vec<Word>,
    /// Until when it may run, as it was told last; by this machine's clock.
    pub(super) deadline: Option<BootMs>,
    /// It stands still because that has passed.
    pub(super) lease_over: bool,
    /// Init was told to begin while it was told to stand still: it does when it may go on.
    pub(super) pending: bool,
    /// Its init has reported how the program ended.
    pub(super) reported: bool,
    pub(super) saved_ns: Option<i64>,
}

impl Guest {
    /// Its program computes now.
    pub(super) fn runs(&self) -> bool {
        self.begun && self.end.is_none() && !self.stopped && !self.lease_over
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    NotStarted,
    Exited { exit: Exit, memory_limit: bool },
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Workspace {
    pub(super) content: Content,
    /// Newest change, wall-clock nanoseconds of this machine.
    pub(super) changed_ns: i64,
}

impl Machine {
    pub(super) fn new(clock: Clock, gpus: Vec<Gpu>) -> Self {
        let (containers, workspaces) = (BTreeMap::new(), BTreeMap::new());
        Self { clock, engine: true, gpus, containers, workspaces, second_way: false, next_pid: 100 }
    }

    pub(super) fn guest(&self, attempt: &AttemptRef) -> Option<&Guest> {
        self.containers.get(attempt)?.guest.as_ref()
    }

    pub(super) fn guest_mut(&mut self, attempt: &AttemptRef) -> Option<&mut Guest> {
        self.containers.get_mut(attempt)?.guest.as_mut()
    }

    pub(super) fn changed_ns(&self, at: u64) -> i64 {
        self.clock.now(at).wall.0.saturating_mul(1_000_000)
    }

    /// Runs the container; a container whose end is wanted already ends itself at once.
    pub(super) fn start(&mut self, attempt: &AttemptRef, agent: Option<u64>, at: u64) -> Option<ProcessId> {
        self.next_pid += 1;
        let process = ProcessId { pid: self.next_pid, start_time: at / 10 };
        let content = self.workspaces.get(attempt)?.content;
        let container = self.containers.get_mut(attempt)?;
        container.started = true;
        if container.end_file {
            return Some(process);
        }
        container.guest = Some(Guest {
            process,
            begun: false,
            stopped: false,
            connected: agent,
            content,
            begun_from: content.steps,
            done: 0,
            since: at,
            plan: 0,
            spoken: at,
            end: None,
            deaf: false,
            unheard: Vec::new(),
            deadline: None,
            lease_over: false,
            pending: false,
            reported: false,
            saved_ns: None,
        });
        Some(process)
    }

    /// Every process of the guest ends; its GPU memory comes back a little later.
    pub(super) fn end_guest(&mut self, attempt: &AttemptRef, linger_until: u64) -> bool {
        let Some(container) = self.containers.get_mut(attempt) else { return false };
        let Some(guest) = container.guest.take() else { return false };
        for gpu in self.gpus.iter_mut().filter(|gpu| guest.begun && container.gpus.contains(&gpu.uuid)) {
            let (process, container) = (guest.process, container.id.clone());
            gpu.lingering.push(Lingering { process, container, until: linger_until });
        }
        true
    }

    pub(super) fn living(&self) -> impl Iterator<Item = (&AttemptRef, &Container, &Guest)> {
        self.containers.iter().filter_map(|(attempt, c)| Some((attempt, c, c.guest.as_ref()?)))
    }

    pub(super) fn list(&self) -> Vec<Found> {
        let found = self.containers.iter().map(|(attempt, container)| Found {
            attempt: attempt.clone(),
            container: container.id.clone(),
            process: container.guest.as_ref().map(|guest| guest.process),
        });
        found.collect()
    }

    /// No process of any guest has memory of this GPU.
    pub(super) fn is_free(&self, uuid: &GpuUuid, at: u64) -> bool {
        let held = self.living().any(|(_, c, guest)| guest.begun && c.gpus.contains(uuid));
        let lingers =
            self.gpus.iter().filter(|g| g.uuid == *uuid).any(|g| g.lingering.iter().any(|l| l.until > at));
        !held && !lingers
    }

    pub(super) fn reboot(&mut self, at: u64) {
        let names: Vec<AttemptRef> = self.containers.keys().cloned().collect();
        for name in names {
            self.end_guest(&name, at);
        }
        for gpu in &mut self.gpus {
            gpu.lingering.clear();
            gpu.foreign.clear();
            gpu.answers = true;
            gpu.gone = false;
        }
        self.engine = true;
        self.second_way = false;
    }

    /// The driver answers at all.
    fn has_driver(&self) -> bool {
        !self.gpus.iter().all(|gpu| gpu.gone)
    }

    pub(super) fn view(&mut self, at: u64) -> GpuView {
        let taken_at = self.clock.now(at).boot;
        for gpu in &mut self.gpus {
            gpu.lingering.retain(|l| l.until > at);
            gpu.missed = gpu.gone;
        }
        let samples = self.gpus.iter().filter(|gpu| !gpu.gone).map(|gpu| {
            let mut processes: Vec<GpuProcess> =
                gpu.foreign.iter().map(|(pid, start, bytes)| process(*pid, *start, *bytes, None)).collect();
            let guests = self.living().filter(|(_, c, guest)| guest.begun && c.gpus.contains(&gpu.uuid));
            let guests = guests.map(|(_, c, guest)| (guest.process, &c.id));
            let held = guests.chain(gpu.lingering.iter().map(|l| (l.process, &l.container)));
            processes.extend(held.map(|(who, container)| {
                process(who.pid, who.start_time, GUEST_MEMORY, Some(container.clone()))
            }));
            let used = processes.iter().filter_map(|p| p.memory).sum::<u64>() + (200 << 20);
            let sample = GpuSample {
                uuid: gpu.uuid.clone(),
                name: "stand-in".to_owned(),
                standin: true,
                mig: false,
                memory_total: Some(gpu.memory),
                memory_used: Some(used),
                utilisation: None,
                power_mw: None,
                power_limit_mw: None,
                temperature_c: None,
                processes: gpu.lists.then_some(processes),
                state: if gpu.answers {
                    GpuState::Ok
                } else {
                    GpuState::Unknown { since: taken_at, why: "it does not answer".to_owned() }
                },
                taken_at,
            };
            (gpu.uuid.clone(), sample)
        });
        let source = if self.has_driver() {
            GpuSource::Ready { version: None }
        } else {
            GpuSource::None { sentence: "No GPU answers".to_owned() }
        };
        GpuView { source, gpus: samples.collect(), troubles: Vec::new() }
    }
}

impl Gpu {
    pub(super) fn new(name: String, memory: u64, lists: bool) -> Self {
        let (foreign, lingering) = (Vec::new(), Vec::new());
        Self {
            uuid: GpuUuid(name),
            memory,
            lists,
            answers: true,
            gone: false,
            missed: false,
            foreign,
            lingering,
        }
    }
}

fn process(pid: u32, start: u64, bytes: u64, container: Option<String>) -> GpuProcess {
    GpuProcess { pid, start_time: Some(start), memory: Some(bytes), container, draws_only: false }
}
