//! What an agent's effects do to its machine: operations that take time and may go wrong, the
//! engine's kill and its list of containers, readings of the GPUs.

use gpunion_agent_core::provider::effect::Operation;
use gpunion_agent_core::provider::event::{Event, Inventory, OpId, Outcome, Taken, Trouble};
use gpunion_protocol::guest::FromInit;
use gpunion_protocol::ids::{AttemptRef, SnapshotId};
use gpunion_protocol::time::BootMs;

use super::machine::{Container, GIB, Workspace};
use super::program::Fate;
use super::script::Small;
use super::world::{Due, Plan, World};

impl World {
    pub(super) fn operation_ends(
        &mut self,
        host: usize,
        run: u64,
        attempt: AttemptRef,
        op: OpId,
        what: Operation,
        plan: &Plan,
    ) {
        let seat = &mut self.hosts[host];
        if seat.boots != plan.boots || !seat.powered {
            return;
        }
        if !seat.is_current(run) || seat.ops.get(&attempt) != Some(&op) {
            self.abandoned_ends(host, &attempt, what, plan);
            return self.answers_late(host, run, attempt, op);
        }
        seat.ops.remove(&attempt);
        let trouble = self.never_works(&attempt, what, plan).or_else(|| self.trouble(host, what));
        // A start may be in trouble when it has been done.
        let outcome = match trouble {
            None => self.carry_out(host, &attempt, what, plan),
            Some(trouble) => {
                if what == Operation::Start && self.chance.coin() {
                    let _ = self.carry_out(host, &attempt, what, plan);
                }
                Err(trouble)
            }
        };
        self.stats.count_operation(what, outcome.is_ok());
        self.hosts[host].memory.done.insert(attempt.clone(), (op, outcome.clone()));
        // Init greets whoever started it before it is told as started.
        if what == Operation::Start {
            self.init_greets(host, &attempt);
        }
        if self.hosts[host].is_current(run) {
            self.agent(host, Event::Done { attempt, op, outcome });
        }
    }

    fn init_greets(&mut self, host: usize, attempt: &AttemptRef) {
        if let Some(guest) = self.hosts[host].machine.guest(attempt).filter(|guest| !guest.begun) {
            let word = FromInit::Hello { version: 1, begun: guest.begun };
            self.hosts[host].memory.said(attempt, &word, false);
            self.agent(host, Event::Init { attempt: attempt.clone(), word, memory_limit: false });
        }
    }

    /// An image or an input that nobody can fetch.
    fn never_works(&self, attempt: &AttemptRef, what: Operation, plan: &Plan) -> Option<Trouble> {
        let fate = self.program(attempt)?.fate;
        let reason = match (fate, what) {
            (Fate::HasNoImage, Operation::Image) => "no registry has its image",
            (Fate::HasNoInput, Operation::Stage) if plan.from.is_none() => "its input is damaged",
            _ => return None,
        };
        Some(Trouble::Refused { reason: reason.to_owned() })
    }

    fn trouble(&mut self, host: usize, what: Operation) -> Option<Trouble> {
        let full = self.hosts[host].disk_full;
        let writes = match what {
            Operation::Image | Operation::Stage | Operation::PassOne => true,
            Operation::PassTwo | Operation::Whole | Operation::Create => true,
            Operation::Start | Operation::Upload { .. } | Operation::Clean => false,
        };
        if full && writes {
            return Some(Trouble::Away { why: "the disk is full".to_owned() });
        }
        if matches!(what, Operation::Upload { .. }) && self.relay.disk_full {
            return Some(Trouble::Away { why: "the relay's disk is full".to_owned() });
        }
        if !self.small(Small::Operation, 25) {
            return None;
        }
        Some(if self.chance.one_in(6) {
            Trouble::Refused { reason: "it can't be done".to_owned() }
        } else {
            Trouble::Away { why: "no answer".to_owned() }
        })
    }

    /// The answer of an operation that was given up was on its way already.
    fn answers_late(&mut self, host: usize, run: u64, attempt: AttemptRef, op: OpId) {
        if self.hosts[host].is_current(run) && self.chance.coin() {
            let outcome = Err(Trouble::Away { why: "it was given up".to_owned() });
            self.agent(host, Event::Done { attempt, op, outcome });
        }
    }

    /// Nobody waits for it any more, but an engine that was asked may still do it.
    fn abandoned_ends(&mut self, host: usize, attempt: &AttemptRef, what: Operation, plan: &Plan) {
        if !self.hosts[host].machine.engine || self.chance.coin() {
            return;
        }
        let at = self.at;
        let machine = &mut self.hosts[host].machine;
        match what {
            Operation::Create if machine.workspaces.contains_key(attempt) => {
                self.create(host, attempt, plan);
            }
            Operation::Stage if !machine.workspaces.contains_key(attempt) => {
                if let Some(program) = self.program(attempt) {
                    let (content, changed_ns) = (program.begin(), 0);
                    self.hosts[host]
                        .machine
                        .workspaces
                        .insert(attempt.clone(), Workspace { content, changed_ns });
                }
            }
            Operation::Start if machine.containers.get(attempt).is_some_and(|c| !c.started) => {
                machine.start(attempt, None, at);
                if machine.guest(attempt).is_some() {
                    self.physical_start(host, attempt);
                }
            }
            Operation::Create
            | Operation::Start
            | Operation::Image
            | Operation::Stage
            | Operation::PassOne
            | Operation::PassTwo
            | Operation::Whole
            | Operation::Upload { .. }
            | Operation::Clean => {}
        }
    }

    fn carry_out(
        &mut self,
        host: usize,
        attempt: &AttemptRef,
        what: Operation,
        plan: &Plan,
    ) -> Result<Outcome, Trouble> {
        let away = |why: &str| Err(Trouble::Away { why: why.to_owned() });
        let relay_there = self.relay.broker.is_some() && self.hosts[host].net;
        if !self.hosts[host].machine.engine && !matches!(what, Operation::Upload { .. }) {
            return away("the engine does not answer");
        }
        match what {
            Operation::Image => Ok(Outcome::Image { digest: Some(format!("sha256:{}", "ab".repeat(32))) }),
            Operation::Stage if !relay_there => away("the relay does not answer"),
            Operation::Stage => {
                let staged = self.stage(host, attempt, plan.from);
                // What is started meanwhile, while the engine works.
                if staged.is_ok() && self.chance.coin() {
                    self.create(host, attempt, plan);
                    let _ = self.start(host, attempt);
                    self.init_greets(host, attempt);
                }
                staged
            }
            Operation::Create => Ok(Outcome::Created { container: self.create(host, attempt, plan) }),
            Operation::Start => self.start(host, attempt),
            Operation::PassOne => Ok(Outcome::PassOne),
            Operation::PassTwo => {
                if self.hosts[host].machine.guest(attempt).is_some_and(|g| !g.stopped && g.end.is_none()) {
                    self.fail(format!("{attempt} computes while pass two reads it"));
                }
                self.take(host, attempt)
            }
            Operation::Whole => {
                if self.hosts[host].machine.guest(attempt).is_some() {
                    self.fail(format!("{attempt} lives while its result is read"));
                }
                self.take(host, attempt)
            }
            Operation::Upload { .. } if !relay_there => away("the relay does not answer"),
            Operation::Upload { snapshot } => match self.hosts[host].snapshots.get(&snapshot) {
                Some(content) => {
                    self.store.insert(snapshot, *content);
                    self.sent.insert(snapshot, self.at);
                    Ok(Outcome::Uploaded)
                }
                None => Err(Trouble::Refused { reason: "no such snapshot".to_owned() }),
            },
            Operation::Clean => {
                // An init whose start nobody waited for goes with its container.
                if self.hosts[host].machine.guest(attempt).is_some_and(|guest| guest.begun) {
                    self.fail(format!("{attempt} lives and its workspace is cleaned away"));
                    return away("it lives");
                }
                let machine = &mut self.hosts[host].machine;
                machine.containers.remove(attempt);
                machine.workspaces.remove(attempt);
                self.hosts[host].memory.words.remove(attempt);
                Ok(Outcome::Cleaned)
            }
        }
    }

    fn stage(
        &mut self,
        host: usize,
        attempt: &AttemptRef,
        from: Option<SnapshotId>,
    ) -> Result<Outcome, Trouble> {
        let Some(program) = self.program(attempt) else { return Ok(Outcome::Staged) };
        let content = match from {
            None => program.begin(),
            Some(snapshot) if self.is_swept(&snapshot) => {
                if self.counts_at_relay(attempt) {
                    self.fail(format!(
                        "{attempt} counts and goes on from {snapshot:?}, which a sweep removes"
                    ));
                }
                self.stats.swept += 1;
                return Err(Trouble::Refused { reason: "there is no such snapshot".to_owned() });
            }
            Some(snapshot) => match self.store.get(&snapshot) {
                Some(content) => *content,
                None => {
                    self.fail(format!("{attempt} goes on from {snapshot:?}, which the relay does not have"));
                    program.begin()
                }
            },
        };
        if self.hosts[host].machine.guest(attempt).is_some_and(|guest| guest.begun) {
            self.fail(format!("{attempt} lives while its workspace is made"));
        }
        let changed_ns = self.hosts[host].machine.changed_ns(self.at);
        self.hosts[host].machine.workspaces.insert(attempt.clone(), Workspace { content, changed_ns });
        Ok(Outcome::Staged)
    }

    /// A container that an earlier run made is found by its name; one that has run and ended is made
    /// anew.
    fn create(&mut self, host: usize, attempt: &AttemptRef, plan: &Plan) -> String {
        let id = format!("{:016x}", u64::from_le_bytes(self.chance.bytes()));
        let machine = &mut self.hosts[host].machine;
        let made = Container { id, gpus: plan.gpus.clone(), guest: None, started: false, end_file: false };
        if machine.containers.get(attempt).is_some_and(|c| c.started && c.guest.is_none()) {
            machine.containers.remove(attempt);
        }
        machine.containers.entry(attempt.clone()).or_insert(made).id.clone()
    }

    fn start(&mut self, host: usize, attempt: &AttemptRef) -> Result<Outcome, Trouble> {
        let (run, at) = (self.hosts[host].run, self.at);
        let machine = &mut self.hosts[host].machine;
        if let Some(guest) = machine.guest_mut(attempt) {
            guest.connected = Some(run);
            return Ok(Outcome::Started { process: guest.process });
        }
        if machine.containers.get(attempt).is_some_and(|container| container.started) {
            let reason = "the guest ended before its program began".to_owned();
            return Err(Trouble::Refused { reason });
        }
        let Some(process) = machine.start(attempt, Some(run), at) else {
            return Err(Trouble::Refused { reason: "no such container".to_owned() });
        };
        if self.hosts[host].machine.guest(attempt).is_some() {
            self.physical_start(host, attempt);
        } else {
            self.after(3, Due::Gone { host, run, attempt: attempt.clone() });
        }
        Ok(Outcome::Started { process })
    }

    fn physical_start(&mut self, host: usize, attempt: &AttemptRef) {
        self.stats.guests += 1;
        // Its keeper started it when the machine began to lend.
        self.hosts[host].machine.second_way = true;
        if let Err(what) = self.reference.guest_started(host, attempt) {
            self.fail(format!("machine {host}: {what}"));
        }
    }

    fn take(&mut self, host: usize, attempt: &AttemptRef) -> Result<Outcome, Trouble> {
        let snapshot = SnapshotId(self.chance.bytes());
        let seat = &mut self.hosts[host];
        let Some(workspace) = seat.machine.workspaces.get(attempt) else {
            return Err(Trouble::Refused { reason: "no such workspace".to_owned() });
        };
        let (content, newest_change_ns) = (workspace.content, workspace.changed_ns);
        seat.snapshots.insert(snapshot, content);
        self.work_taken(attempt, snapshot, content.steps);
        Ok(Outcome::Taken(Taken { snapshot, bytes: GIB, new_bytes: 1 << 20, newest_change_ns }))
    }

    pub(super) fn end_file(&mut self, host: usize, attempt: &AttemptRef) {
        if let Some(container) = self.hosts[host].machine.containers.get_mut(attempt) {
            container.end_file = true;
            if container.guest.as_ref().is_some_and(|guest| guest.deaf) {
                return;
            }
        }
        self.guest_ends(host, attempt);
    }

    /// Needs neither its init nor the engine.
    pub(super) fn second_way(&mut self, host: usize, attempt: &AttemptRef) {
        let machine = &self.hosts[host].machine;
        let Some(guest) = machine.guest(attempt).filter(|_| machine.second_way) else { return };
        let (deaf, delay) = (guest.deaf, self.chance.between(1, 20));
        self.stats.second_ways += u64::from(deaf);
        self.guest_ends(host, attempt);
        let (run, stopped) = (self.hosts[host].run, self.hosts[host].machine.clock.now(self.at).boot);
        self.after(delay, Due::SecondWay { host, run, attempt: attempt.clone(), stopped });
    }

    pub(super) fn second_way_seen(&mut self, host: usize, run: u64, attempt: AttemptRef, stopped: BootMs) {
        if self.hosts[host].is_current(run) {
            let stopped = Some(stopped);
            self.agent(host, Event::SecondWay { attempt, killed: 3, stopped, gone: true });
        }
    }

    /// An engine that answers says afterwards that nothing of it runs.
    pub(super) fn engine_kill(&mut self, host: usize, attempt: &AttemptRef) {
        if !self.hosts[host].machine.engine {
            return;
        }
        if let Some(container) = self.hosts[host].machine.containers.get_mut(attempt) {
            container.end_file = true;
        }
        self.guest_ends(host, attempt);
        let run = self.hosts[host].run;
        self.after(20, Due::Gone { host, run, attempt: attempt.clone() });
    }

    pub(super) fn gone_seen(&mut self, host: usize, run: u64, attempt: AttemptRef) {
        let seat = &self.hosts[host];
        if seat.is_current(run) && seat.machine.guest(&attempt).is_none() {
            self.agent(host, Event::GuestGone { attempt, memory_limit: false });
        }
    }

    pub(super) fn remove_container(&mut self, host: usize, container: &str) {
        let seat = &self.hosts[host];
        if !seat.machine.engine {
            return;
        }
        let named = seat.machine.containers.iter().find(|(_, c)| c.id == container);
        let Some(attempt) = named.map(|(attempt, _)| attempt.clone()) else { return };
        let right = seat.agent.as_ref().and_then(|agent| agent.attempt(&attempt));
        let runs =
            right.is_some_and(|a| a.record.phase == gpunion_agent_core::provider::record::Phase::Running);
        if runs && seat.machine.guest(&attempt).is_some() {
            self.fail(format!("{attempt} runs by right on {host} and its container is removed"));
        }
        self.guest_ends(host, &attempt);
        self.hosts[host].machine.containers.remove(&attempt);
    }

    /// The engine keeps a workspace that a container has.
    pub(super) fn remove_left(&mut self, host: usize, attempt: &AttemptRef) {
        let seat = &mut self.hosts[host];
        if seat.agent.as_ref().is_some_and(|agent| agent.attempt(attempt).is_some()) {
            self.fail(format!("the workspace of {attempt} is swept away from under it"));
        } else if seat.machine.engine && !seat.machine.containers.contains_key(attempt) {
            seat.machine.workspaces.remove(attempt);
        }
    }

    pub(super) fn list_taken(&mut self, host: usize, run: u64) {
        let seat = &mut self.hosts[host];
        if seat.is_current(run) && seat.machine.engine {
            let containers = seat.machine.list();
            let left = seat.machine.workspaces.keys().cloned().collect();
            let list = Inventory { containers, left };
            self.hosts[host].memory.listed(&list);
            let delay = self.chance.mostly_short(1, 4_000);
            self.after(delay, Due::Found { host, run, list });
        }
    }

    pub(super) fn list_given(&mut self, host: usize, run: u64, list: Inventory) {
        if self.hosts[host].is_current(run) {
            self.agent(host, Event::Found(list));
        }
    }

    /// Polls are as far apart as a figure lasts; a reclaim asks ten times a second.
    pub(super) fn gpus_poll(&mut self, host: usize, run: u64) {
        let at = self.at;
        // One that was planned before another, or waited for a machine to wake up.
        if !self.hosts[host].is_current(run) || self.hosts[host].next_read > at {
            return;
        }
        let wait = if self.hosts[host].fast { 100 } else { 4_000 };
        self.read_gpus_in(host, wait);
        self.gpus_read(host);
    }

    pub(super) fn gpus_read(&mut self, host: usize) {
        let view = self.hosts[host].machine.view(self.at);
        self.agent(host, Event::Gpus(Box::new(view)));
    }

    pub(super) fn read_gpus_in(&mut self, host: usize, wait: u64) {
        let run = self.hosts[host].run;
        self.hosts[host].next_read = self.at + wait;
        self.after(wait, Due::ReadGpus { host, run });
    }
}
