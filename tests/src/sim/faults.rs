//! All that goes wrong, drawn by chance; and the calm at the end, in which everything must come
//! to its end.

use gpunion_protocol::ids::{AttemptRef, GpuUuid, JobId};
use gpunion_protocol::job::JobState;

use super::chance::{Chance, Stream};
use super::machine::GIB;
use super::people::Owner;
use super::reference::unfinished;
use super::script::Part;
use super::world::{Due, World};

impl World {
    pub(super) fn fault(&mut self) {
        if self.calm {
            return;
        }
        let next = self.fault_times.between(50, self.peace * 2);
        self.after(next, Due::Fault);
        let number = self.faults;
        self.faults += 1;
        if self.script.has(Part::Fault(number)) {
            self.happened.push(Part::Fault(number));
            let mut luck = Chance::of(self.seed, Stream::Fault, number);
            std::mem::swap(&mut self.chance, &mut luck);
            self.strikes(number);
            std::mem::swap(&mut self.chance, &mut luck);
        }
    }

    fn strikes(&mut self, number: u64) {
        let host = self.chance.index(self.hosts.len());
        if self.lurking && self.chance.one_in(12) && self.is_awake(host) {
            return self.second_life(host);
        }
        if self.lurking && !self.chance.one_in(4) {
            self.trace.say(self.at, || format!("fault f{number} (an ambush, machine {host})"));
            return self.lie_in_wait(host);
        }
        let kind = self.chance.between(0, 41);
        self.trace.say(self.at, || format!("fault f{number} (kind {kind}, machine {host})"));
        match kind {
            0 | 1 => self.kill_relay_soon(),
            2 => self.relay_disk_fills(),
            3 => self.relay_is_restored(),
            4 => self.cancel_some(),
            5 => self.relay_hangs(),
            6..=9 => self.old_message(host),
            10 | 11 => self.cut_sessions(host),
            12 => self.net_goes(host),
            13 => self.step_wall_clock(host),
            14 | 15 => self.reboot(host),
            // A machine that sleeps has no trouble of its own.
            _ if !self.is_awake(host) => {}
            16..=18 => self.kill_agent_soon(host),
            19 => self.engine_goes(host),
            20 => self.engine_dies(host),
            21 => self.owners_process(host),
            22 => self.guest_is_killed(host),
            23 => self.gpu_falls_silent(host),
            24 => self.gpu_falls_off(host),
            25..=27 => self.owner_takes_back(host),
            28 => self.agent_disk_fills(host),
            29 | 30 => self.sleeps(host),
            31 | 32 => self.agent_hangs(host),
            33 | 34 => self.some_init_falls_silent(host),
            35 => {
                self.leaves_group(host);
            }
            36 => self.some_device_is_revoked(host),
            37 => self.false_alarm(host),
            _ => self.owner_says(host),
        }
    }

    fn some_device_is_revoked(&mut self, host: usize) {
        self.revoke(host);
    }

    fn kill_agent_soon(&mut self, host: usize) {
        if self.hosts[host].agent.is_some() {
            let after = self.chance.mostly_short(0, 60);
            self.hosts[host].dies_in = Some(after);
        }
    }

    fn kill_relay_soon(&mut self) {
        if self.relay.broker.is_some() {
            self.relay.dies_in = Some(self.chance.mostly_short(0, 60));
        }
    }

    fn reboot(&mut self, host: usize) {
        self.power_goes(host, None);
    }

    /// It comes back after so long, or by chance.
    pub(super) fn power_goes(&mut self, host: usize, for_ms: Option<u64>) {
        if !self.hosts[host].powered {
            return;
        }
        self.trace.say(self.at, || format!("machine {host} loses power"));
        self.stats.reboots += 1;
        if self.hosts[host].agent.is_some() {
            self.agent_dies(host);
            match for_ms {
                Some(length) => self.after(length, Due::AgentStarts { host }),
                None => self.back_later(host),
            }
        }
        let at = self.at;
        let seat = &mut self.hosts[host];
        seat.powered = false;
        seat.asleep_until = 0;
        seat.slept += 1;
        seat.machine.reboot(at);
        // An engine may be slow to come back with the machine.
        if self.chance.one_in(3) {
            self.hosts[host].machine.engine = false;
            let away = self.chance.mostly_short(1_000, 60_000);
            self.after(away, Due::EngineBack { host });
        }
    }

    /// It comes back and has ended what it ran.
    fn engine_dies(&mut self, host: usize) {
        let living: Vec<AttemptRef> =
            self.hosts[host].machine.living().map(|(attempt, ..)| attempt.clone()).collect();
        self.engine_goes(host);
        for attempt in living {
            self.guest_ends(host, &attempt);
        }
    }

    fn engine_goes(&mut self, host: usize) {
        if self.hosts[host].powered && self.hosts[host].machine.engine {
            self.stats.engine_outages += 1;
            self.set_engine(host, false);
            let away = self.chance.mostly_short(30, 60_000);
            self.after(away, Due::EngineBack { host });
        }
    }

    fn net_goes(&mut self, host: usize) {
        self.hosts[host].net = false;
        let away = self.chance.mostly_short(1_000, 120_000);
        self.after(away, Due::NetBack { host });
        self.cut_sessions(host);
    }

    pub(super) fn cut_sessions(&mut self, host: usize) {
        for session in self.net.of_host(host) {
            self.cut(session, host);
        }
    }

    fn agent_disk_fills(&mut self, host: usize) {
        self.hosts[host].disk_full = true;
        let full = self.chance.mostly_short(20, 30_000);
        self.after(full, Due::DiskHasRoom { host });
    }

    fn relay_disk_fills(&mut self) {
        self.relay.disk_full = true;
        let full = self.chance.mostly_short(20, 30_000);
        self.after(full, Due::RelayHasRoom);
    }

    fn step_wall_clock(&mut self, host: usize) {
        let step = self.chance.between(0, 7_200_000) as i64 - 3_600_000;
        self.hosts[host].machine.clock.wall_off += step;
        self.relay.clock.wall_off -= step / 2;
        self.work.clock_is_set(self.at);
    }

    fn owners_process(&mut self, host: usize) {
        let start = self.at;
        let pid = 50_000 + self.chance.between(0, 9_999) as u32;
        let gpu = self.chance.index(self.hosts[host].machine.gpus.len());
        let foreign = &mut self.hosts[host].machine.gpus[gpu].foreign;
        if foreign.pop().is_none() {
            foreign.push((pid, start, 2 * GIB));
            let ends = self.chance.mostly_short(2_000, 120_000);
            self.after(ends, Due::Owner { host, what: Owner::WorkEnds { gpu } });
        }
    }

    fn guest_is_killed(&mut self, host: usize) {
        let living: Vec<AttemptRef> =
            self.hosts[host].machine.living().map(|(attempt, ..)| attempt.clone()).collect();
        if !living.is_empty() {
            let attempt = living[self.chance.index(living.len())].clone();
            self.trace.say(self.at, || format!("somebody kills the guest of {attempt}"));
            self.stats.guests_killed += 1;
            self.guest_ends(host, &attempt);
        }
    }

    /// Then the owner may want the GPU back, with the engine away too.
    fn some_init_falls_silent(&mut self, host: usize) {
        let living: Vec<AttemptRef> =
            self.hosts[host].machine.living().map(|(attempt, ..)| attempt.clone()).collect();
        if living.is_empty() {
            return;
        }
        let attempt = living[self.chance.index(living.len())].clone();
        self.trace.say(self.at, || format!("the init of {attempt} falls silent"));
        self.init_falls_silent(host, &attempt);
        if self.chance.coin() {
            self.engine_goes(host);
        }
        if self.chance.coin() {
            self.owner_takes_back(host);
        }
    }

    /// What a session carried comes once more, later than it should.
    fn old_message(&mut self, host: usize) {
        let Some(session) = self.hosts[host].session else { return };
        let delay = self.chance.between(1, 4_000);
        if self.chance.coin() {
            if let Some(message) = self.net.old_to_relay(session, &mut self.chance) {
                self.stats.doubled += 1;
                self.after(delay, Due::AtRelay { host, session, message: Box::new(message) });
            }
        } else if let Some(message) = self.net.old_to_agent(session, &mut self.chance) {
            self.stats.doubled += 1;
            self.after(delay, Due::AtAgent { host, session, message: Box::new(message) });
        }
    }

    fn gpu_falls_silent(&mut self, host: usize) {
        let gpu = self.chance.index(self.hosts[host].machine.gpus.len());
        let gpu = &mut self.hosts[host].machine.gpus[gpu];
        gpu.answers = !gpu.answers;
    }

    fn gpu_falls_off(&mut self, host: usize) {
        let gpu = self.chance.index(self.hosts[host].machine.gpus.len());
        let gpu = &mut self.hosts[host].machine.gpus[gpu];
        gpu.gone = !gpu.gone;
    }

    fn some_gpu(&mut self, host: usize) -> Option<GpuUuid> {
        let gpus = &self.hosts[host].machine.gpus;
        let gpu = gpus[self.chance.index(gpus.len())].uuid.clone();
        self.chance.coin().then_some(gpu)
    }

    pub(super) fn owner_takes_back(&mut self, host: usize) {
        let gpu = self.some_gpu(host);
        let again = self.chance.mostly_short(500, 60_000);
        self.after(1, Due::Owner { host, what: Owner::Reclaim { gpu: gpu.clone() } });
        let lends_again = Owner::Share { on: true, gpu, for_ms: None };
        self.after(again, Due::Owner { host, what: lends_again });
    }

    pub(super) fn owner_pauses(&mut self, host: usize) {
        let length = self.chance.between(5_000, 300_000);
        let (for_ms, until_ms) = match self.chance.between(0, 2) {
            0 => (Some(length), None),
            1 => (None, Some(length)),
            _ => (None, None),
        };
        self.after(1, Due::Owner { host, what: Owner::Pause { for_ms, until_ms } });
        if until_ms.or(for_ms).is_none() || self.chance.one_in(3) {
            let again = self.chance.mostly_short(500, 60_000);
            self.after(again, Due::Owner { host, what: Owner::Resume });
        }
    }

    fn owner_says(&mut self, host: usize) {
        if self.chance.one_in(6) {
            return self.after(1, Due::Owner { host, what: Owner::StopAgent });
        }
        if self.chance.one_in(3) {
            return self.owner_pauses(host);
        }
        if self.chance.one_in(3) {
            return self.some_rule(host);
        }
        if self.chance.one_in(6) {
            return self.after(1, Due::Owner { host, what: Owner::Wipes });
        }
        let gpu = self.some_gpu(host);
        let on = self.chance.coin();
        let for_ms = self.chance.one_in(3).then(|| self.chance.between(5_000, 300_000));
        self.after(1, Due::Owner { host, what: Owner::Share { on, gpu, for_ms } });
        if !on {
            let again = self.chance.mostly_short(500, 60_000);
            self.after(again, Due::Owner { host, what: Owner::Share { on: true, gpu: None, for_ms: None } });
        }
    }

    /// From now on all is well, and stays so.
    pub(super) fn calm_down(&mut self) {
        self.trace.say(self.at, || "the world calms down".to_owned());
        self.calm = true;
        self.relay.dies_in = None;
        self.relay.disk_full = false;
        self.relay.hung_until = 0;
        self.relay.lurking.clear();
        self.after(1, Due::RelayStarts);
        for host in 0..self.hosts.len() {
            let seat = &mut self.hosts[host];
            seat.net = true;
            seat.dies_in = None;
            seat.asleep_until = 0;
            seat.hung_until = 0;
            seat.lurking.clear();
            seat.slept += 1;
            for gpu in &mut seat.machine.gpus {
                gpu.foreign.clear();
                gpu.answers = true;
                gpu.gone = false;
            }
            self.rules_of_calm(host);
            self.after(1, Due::AgentStarts { host });
            self.after(2, Due::EngineBack { host });
            self.after(3, Due::DiskHasRoom { host });
            let deaf: Vec<AttemptRef> =
                self.hosts[host].machine.living().map(|(attempt, ..)| attempt.clone()).collect();
            for attempt in deaf {
                // It may have slept until now.
                self.is_past_its_deadline(host, &attempt);
                self.after(4, Due::InitHears { host, attempt });
            }
            for wait in [120_000, 400_000] {
                self.after(
                    wait,
                    Due::Owner { host, what: Owner::Share { on: true, gpu: None, for_ms: None } },
                );
            }
        }
    }

    /// A held job waits for its member: in the calm they give it up, and also one whose key is lost.
    pub(super) fn let_held_jobs_go(&mut self) {
        for job in unfinished(&self.reference) {
            if (self.reference.is_held(&job) || self.is_to_be_submitted_again(&job))
                && let Some(number) = self.by_id.get(&job).copied()
                && !self.jobs[number].cancel
            {
                self.stats.held += 1;
                self.jobs[number].cancel = true;
                self.after(1, Due::Client { job: number });
            }
        }
    }

    fn is_to_be_submitted_again(&self, job: &JobId) -> bool {
        let state = self.relay.broker.as_ref().and_then(|broker| broker.job_state(job));
        matches!(state, Some(JobState::Queued { why }) if why.contains("cancel the job and submit it again"))
    }

    /// Every job is final, and nobody has anything left of one.
    pub(super) fn is_at_rest(&self) -> bool {
        let answered = self.jobs.iter().all(|job| job.answered);
        answered
            && unfinished(&self.reference).is_empty()
            && self.hosts.iter().all(|host| {
                let books = host.agent.as_ref().map_or(1, |agent| agent.attempts().count());
                let machine = &host.machine;
                books == 0 && machine.containers.is_empty() && machine.workspaces.is_empty()
            })
    }

    /// Who is not at rest, in a sentence.
    pub(super) fn unrest(&self) -> String {
        let jobs: Vec<String> = unfinished(&self.reference).iter().map(ToString::to_string).collect();
        let books: Vec<String> = self
            .hosts
            .iter()
            .flat_map(|host| host.agent.iter().flat_map(|agent| agent.attempts()))
            .map(|attempt| format!("{} {:?}", attempt.name(), attempt.record.phase))
            .collect();
        let broker = self.relay.broker.as_ref();
        let states: Vec<String> = unfinished(&self.reference)
            .iter()
            .map(|job| format!("{:?}", broker.and_then(|broker| broker.job_state(job))))
            .collect();
        let left: Vec<&AttemptRef> = self
            .hosts
            .iter()
            .flat_map(|host| host.machine.containers.keys().chain(host.machine.workspaces.keys()))
            .collect();
        format!("jobs {jobs:?} ({states:?}), books {books:?}, left on machines {left:?}")
    }
}
