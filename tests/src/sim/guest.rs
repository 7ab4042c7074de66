//! Guests and their inits: words from the agent and answers to it, and the program that computes
//! meanwhile, whether an agent listens or not.

use gpunion_agent_core::gpu::verify::ProcessId;
use gpunion_agent_core::provider::effect::Word;
use gpunion_agent_core::provider::event::Event;
use gpunion_protocol::guest::{Exit, FromInit, ToInit};
use gpunion_protocol::ids::AttemptRef;

use super::machine::{End, Workspace};
use super::program::{Farewell, Fate, Next};
use super::script::Small;
use super::world::{Due, World};

impl World {
    pub(super) fn attach(&mut self, host: usize, attempt: &AttemptRef, process: ProcessId) {
        let run = self.hosts[host].run;
        let Some(guest) = self.hosts[host].machine.guest_mut(attempt).filter(|g| g.process == process) else {
            return self.after(5, Due::Gone { host, run, attempt: attempt.clone() });
        };
        guest.connected = Some(run);
        if guest.deaf {
            return;
        }
        let (begun, end) = (guest.begun || guest.pending, guest.end.filter(|_| guest.reported));
        let (launched, lease_over, saved) = (guest.begun, guest.lease_over, guest.saved_ns);
        self.init_says(host, attempt, FromInit::Hello { version: 1, begun });
        if launched && end != Some(End::NotStarted) {
            self.init_says(host, attempt, FromInit::Started { pid: 2 });
        }
        if let Some(at_ns) = saved {
            self.init_says(host, attempt, FromInit::Saved { at_ns });
        }
        if lease_over {
            self.init_says(host, attempt, FromInit::DeadlinePassed);
        }
        if let Some(end) = end {
            self.init_reports(host, attempt, end);
        }
    }

    fn init_reports(&mut self, host: usize, attempt: &AttemptRef, end: End) {
        match end {
            End::NotStarted => {
                self.init_says(host, attempt, FromInit::NotStarted { reason: "no such file".to_owned() });
            }
            End::Exited { exit, .. } => self.init_says(host, attempt, FromInit::Exited(exit)),
        }
    }

    pub(super) fn init_says(&mut self, host: usize, attempt: &AttemptRef, word: FromInit) {
        // Whoever reads it may be slow.
        let slow = self.small(Small::SlowWord, 40);
        let delay = self.chance.between(1, if slow { 600 } else { 15 });
        self.init_says_after(host, attempt, word, delay);
    }

    fn init_says_after(&mut self, host: usize, attempt: &AttemptRef, word: FromInit, delay: u64) {
        let at = self.at + delay;
        let Some(guest) = self.hosts[host].machine.guest_mut(attempt) else { return };
        let Some(run) = guest.connected.filter(|_| !guest.deaf) else { return };
        guest.spoken = guest.spoken.max(at);
        let memory_limit = matches!(guest.end, Some(End::Exited { memory_limit: true, .. }));
        let when = guest.spoken;
        self.at_time(when, Due::Init { host, run, attempt: attempt.clone(), word, memory_limit });
    }

    pub(super) fn init_heard(
        &mut self,
        host: usize,
        run: u64,
        attempt: AttemptRef,
        word: FromInit,
        memory_limit: bool,
    ) {
        let seat = &mut self.hosts[host];
        // With its container its channel is gone.
        if seat.is_current(run) && seat.machine.containers.contains_key(&attempt) {
            seat.memory.said(&attempt, &word, memory_limit);
            self.agent(host, Event::Init { attempt, word, memory_limit });
        }
    }

    pub(super) fn word_to_init(&mut self, host: usize, attempt: &AttemptRef, word: Word) {
        let (run, at) = (self.hosts[host].run, self.at);
        let never = self.program(attempt).is_some_and(|program| program.fate == Fate::NeverStarts);
        let cannot = self.small(Small::CannotBegin, 60);
        let late = self.small(Small::SlowBegin, if never { 1 } else { 12 });
        let (slow, stubborn) = (self.small(Small::SlowStop, 25), self.small(Small::SlowStop, 15));
        let Some(guest) = self.hosts[host].machine.guest_mut(attempt) else { return };
        if guest.connected != Some(run) {
            return;
        }
        if guest.deaf {
            return guest.unheard.push(word);
        }
        match word {
            // What it takes to begin may be long in coming, and then not be had at all.
            Word::Begin if cannot => {
                let delay = self.chance.mostly_short(1, 60_000);
                self.after(delay, Due::CannotBegin { host, run, attempt: attempt.clone() });
            }
            Word::Begin if late => {
                let delay =
                    if never { self.chance.between(5_000, 90_000) } else { self.chance.between(10, 6_000) };
                self.after(delay, Due::Begins { host, run, attempt: attempt.clone() });
            }
            Word::Begin if guest.begun => {}
            Word::Begin if guest.stopped => guest.pending = true,
            Word::Begin => self.guest_begins(host, attempt),
            Word::Plain(ToInit::Stop { seq }) => {
                if guest.runs() {
                    guest.done += at - guest.since;
                }
                guest.stopped = true;
                guest.plan += 1;
                let delay = if slow { 3_000 } else { self.chance.between(1, 20) };
                // Some were not seen to stop in init's own limit; all do in the end.
                let running = u32::from(stubborn);
                let word = FromInit::Stopped { seq, processes: 2, took_us: 300, running };
                self.init_says_after(host, attempt, word, delay);
            }
            Word::Plain(ToInit::GoOn { seq }) => {
                if guest.stopped {
                    guest.stopped = false;
                    guest.since = at;
                    if std::mem::take(&mut guest.pending) {
                        self.guest_begins(host, attempt);
                    } else {
                        self.plan_step(host, attempt);
                    }
                }
                let over = self.hosts[host].machine.guest(attempt).is_some_and(|guest| guest.lease_over);
                let answer = if over { FromInit::DeadlinePassed } else { FromInit::GoingOn { seq } };
                self.init_says(host, attempt, answer);
            }
            Word::Plain(ToInit::Deadline { at }) => self.deadline_told(host, attempt, at),
            Word::Plain(ToInit::End { .. }) => self.guest_ends(host, attempt),
            Word::Plain(ToInit::Leave { .. }) => {
                let process = guest.process;
                let heeds = self.chance.mostly_short(1, 20_000);
                self.after(heeds, Due::Heeds { host, attempt: attempt.clone(), process });
            }
            Word::Plain(ToInit::ExitSeen) if guest.reported => self.guest_ends(host, attempt),
            Word::Adopt
            | Word::Plain(
                ToInit::ExitSeen
                | ToInit::Begin(_)
                | ToInit::Adopt { .. }
                | ToInit::Signal { .. }
                | ToInit::Ping { .. },
            ) => {}
        }
    }

    /// Asked for by an agent that is still there.
    pub(super) fn begins_at_last(&mut self, host: usize, run: u64, attempt: &AttemptRef) {
        if !self.hosts[host].is_current(run) {
            return;
        }
        let Some(guest) = self.hosts[host].machine.guest_mut(attempt) else { return };
        if guest.deaf {
            guest.unheard.push(Word::Begin);
        } else if guest.stopped {
            guest.pending = true;
        } else if !guest.begun {
            self.guest_begins(host, attempt);
        }
    }

    /// It was stopped from outside, or starves: for a while it neither hears nor sees anything.
    pub(super) fn init_falls_silent(&mut self, host: usize, attempt: &AttemptRef) {
        let Some(guest) = self.hosts[host].machine.guest_mut(attempt) else { return };
        if guest.begun && !guest.deaf {
            guest.deaf = true;
            self.stats.deaf_inits += 1;
            let wait = self.chance.between(1_000, 40_000);
            self.after(wait, Due::InitHears { host, attempt: attempt.clone() });
        }
    }

    /// It does now what it was told meanwhile, and says what it had to say.
    pub(super) fn init_hears(&mut self, host: usize, attempt: &AttemptRef) {
        let Some(container) = self.hosts[host].machine.containers.get_mut(attempt) else { return };
        let ends = container.end_file;
        let Some(guest) = container.guest.as_mut() else { return };
        if !std::mem::take(&mut guest.deaf) {
            return;
        }
        let (process, words) = (guest.process, std::mem::take(&mut guest.unheard));
        if ends {
            return self.guest_ends(host, attempt);
        }
        self.is_past_its_deadline(host, attempt);
        self.attach_again(host, attempt, process);
        for word in words {
            self.word_to_init(host, attempt, word);
        }
    }

    /// Who is connected hears its greeting, as after every silence.
    fn attach_again(&mut self, host: usize, attempt: &AttemptRef, process: ProcessId) {
        let run = self.hosts[host].run;
        let connected = self.hosts[host].machine.guest(attempt).and_then(|guest| guest.connected);
        if connected == Some(run) {
            self.attach(host, attempt, process);
        }
    }

    fn guest_begins(&mut self, host: usize, attempt: &AttemptRef) {
        if let Err(what) = self.reference.may_start(host, attempt) {
            self.fail(format!("machine {host}: the program of {attempt} begins: {what}"));
        }
        let never = self.program(attempt).is_some_and(|program| program.fate == Fate::NeverStarts);
        let at = self.at;
        // Its workspace may have been filled anew since its init was started.
        let found = self.hosts[host].machine.workspaces.get(attempt).map(|workspace| workspace.content);
        let Some(guest) = self.hosts[host].machine.guest_mut(attempt) else { return };
        guest.begun = true;
        guest.since = at;
        guest.content = found.unwrap_or(guest.content);
        guest.begun_from = guest.content.steps;
        if never {
            guest.end = Some(End::NotStarted);
            guest.reported = true;
            return self.init_reports(host, attempt, End::NotStarted);
        }
        self.init_says(host, attempt, FromInit::Started { pid: 2 });
        self.plan_step(host, attempt);
    }

    /// It goes on from where it stood still.
    pub(super) fn let_go(&mut self, host: usize, attempt: &AttemptRef) {
        self.plan_step(host, attempt);
    }

    fn plan_step(&mut self, host: usize, attempt: &AttemptRef) {
        let Some(pace) = self.program(attempt).map(|program| program.pace) else { return };
        let Some(guest) = self.hosts[host].machine.guest_mut(attempt) else { return };
        if !guest.runs() {
            return;
        }
        guest.plan += 1;
        let (plan, left) = (guest.plan, pace.saturating_sub(guest.done).max(1));
        self.after(left, Due::Step { host, attempt: attempt.clone(), plan });
    }

    pub(super) fn program_steps(&mut self, host: usize, attempt: &AttemptRef, plan: u64) {
        let Some(program) = self.program(attempt) else { return };
        if self.is_past_its_deadline(host, attempt) {
            return;
        }
        self.has_effects(host, attempt);
        let at = self.at;
        let machine = &mut self.hosts[host].machine;
        let changed_ns = machine.changed_ns(at);
        let Some(guest) = machine.guest_mut(attempt) else { return };
        if guest.plan != plan || !guest.runs() {
            return;
        }
        let began = guest.begun_from;
        let goes_on = program.next(guest.content, began) == Next::Computes;
        if goes_on {
            guest.content = program.step(guest.content);
            self.stats.program_steps += 1;
        }
        guest.done = 0;
        guest.since = at;
        let content = guest.content;
        if goes_on && let Some(workspace) = machine.workspaces.get_mut(attempt) {
            *workspace = Workspace { content, changed_ns };
            if program.says_saved {
                if let Some(guest) = machine.guest_mut(attempt) {
                    guest.saved_ns = Some(changed_ns);
                }
                self.init_says(host, attempt, FromInit::Saved { at_ns: changed_ns });
            }
        }
        match program.next(content, began) {
            Next::Computes => self.plan_step(host, attempt),
            Next::FillsDisk => {
                // It is counted now and then, whatever else is said meanwhile.
                if self.chance.one_in(8) {
                    let counted = self.chance.between(1, 6_000);
                    let word = FromInit::Usage { bytes: 1 << 50, files: 1 };
                    self.after(counted, Due::InitSays { host, attempt: attempt.clone(), word });
                }
                self.plan_step(host, attempt);
            }
            Next::Exits { exit, memory_limit } => self.program_exits(host, attempt, exit, memory_limit),
        }
    }

    /// Its program has seen that it must leave. One that stands still sees it when it goes on.
    pub(super) fn heeds(&mut self, host: usize, attempt: &AttemptRef, process: ProcessId) {
        let Some(program) = self.program(attempt) else { return };
        let changed_ns = self.hosts[host].machine.changed_ns(self.at);
        let guest = self.hosts[host].machine.guest_mut(attempt).filter(|guest| guest.process == process);
        let Some(guest) = guest.filter(|guest| guest.begun && guest.end.is_none()) else { return };
        if !guest.runs() {
            return self.after(500, Due::Heeds { host, attempt: attempt.clone(), process });
        }
        match program.farewell {
            Farewell::Ignores => {}
            // What it has computed since its last step is not saved, and is lost.
            Farewell::Saves => {
                guest.saved_ns = Some(changed_ns);
                self.init_says(host, attempt, FromInit::Saved { at_ns: changed_ns });
            }
            Farewell::Ends(exit) => self.program_exits(host, attempt, exit, false),
        }
    }

    fn program_exits(&mut self, host: usize, attempt: &AttemptRef, exit: Exit, memory_limit: bool) {
        let end = End::Exited { exit, memory_limit };
        if let Some(guest) = self.hosts[host].machine.guest_mut(attempt) {
            guest.end = Some(end);
            // What it left behind is killed first.
            let cleared = self.chance.mostly_short(1, 2_000);
            self.after(cleared, Due::Cleared { host, attempt: attempt.clone() });
        }
    }

    pub(super) fn cleared(&mut self, host: usize, attempt: &AttemptRef) {
        let Some(guest) = self.hosts[host].machine.guest_mut(attempt) else { return };
        let Some(end) = guest.end.filter(|_| !guest.reported) else { return };
        guest.reported = true;
        self.init_reports(host, attempt, end);
    }

    /// Whoever did it: no process of the guest is left. The agent sees it if it watches.
    pub(super) fn guest_ends(&mut self, host: usize, attempt: &AttemptRef) {
        let linger = self.chance.mostly_short(0, if self.calm { 400 } else { 25_000 });
        let until = self.at + linger;
        let machine = &mut self.hosts[host].machine;
        let watched = machine.guest(attempt).and_then(|guest| guest.connected);
        if machine.end_guest(attempt, until)
            && let Some(run) = watched
        {
            let delay = self.chance.between(1, 60);
            self.after(delay, Due::Gone { host, run, attempt: attempt.clone() });
        }
    }
}
