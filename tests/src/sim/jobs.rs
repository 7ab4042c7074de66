//! The members: who submits jobs and cancels them, and asks again until they are answered.

use gpunion_protocol::egress::EgressRule;
use gpunion_protocol::guest::Exit;
use gpunion_protocol::http::Submit;
use gpunion_protocol::ids::{AttemptRef, DeviceId, JobId, MemberId};
use gpunion_protocol::job::{Blob, Image, WrappedKey};
use gpunion_protocol::spec::JobSpec;
use gpunion_protocol::time::Millis;
use gpunion_protocol::units::{Bytes, Span};
use gpunion_relay::broker::{Digest, Event as ToBroker, Key, Reply};

use super::chance::{Chance, Stream};
use super::machine::GIB;
use super::program::{Farewell, Fate, Program};
use super::script::{Part, Small};
use super::world::{Due, World};

/// Jobs that are not final at a time.
const OPEN_MAX: usize = 7;

pub(super) struct PlannedJob {
    pub(super) id: JobId,
    pub(super) member: MemberId,
    pub(super) program: Program,
    submit: Submit,
    key: String,
    pub(super) answered: bool,
    pub(super) cancel: bool,
    pub(super) cancel_answered: bool,
}

impl PlannedJob {
    pub(super) fn has_egress(&self) -> bool {
        !self.submit.spec.network.egress.is_empty()
    }
}

impl World {
    pub(super) fn program(&self, attempt: &AttemptRef) -> Option<Program> {
        self.by_id.get(&attempt.job).map(|job| self.jobs[*job].program.clone())
    }

    pub(super) fn member_submits(&mut self) {
        if self.calm {
            return;
        }
        let next = self.chance.between(1_000, 40_000);
        self.after(next, Due::Submit);
        let number = self.submits;
        self.submits += 1;
        let open = self.jobs.iter().filter(|job| !self.reference.is_final(&job.id)).count();
        if open < OPEN_MAX && self.script.has(Part::Job(number)) {
            self.happened.push(Part::Job(number));
            let mut luck = Chance::of(self.seed, Stream::Job, number);
            std::mem::swap(&mut self.chance, &mut luck);
            let job = self.new_job();
            std::mem::swap(&mut self.chance, &mut luck);
            self.after(1, Due::Client { job });
        }
    }

    fn new_job(&mut self) -> usize {
        let number = self.jobs.len();
        let id = JobId::new(self.at, self.chance.bytes());
        let mut program = self.new_program();
        let most = self.hosts.iter().map(|h| h.machine.gpus.len() as u32).max().unwrap_or(1);
        let mut spec = JobSpec::of_image("digits:latest");
        spec.name = format!("job-{number}");
        spec.resources.gpus = [1, 1, 1, 1, 0, most][self.chance.index(6)];
        spec.resources.gpu_memory = Bytes([0, 8, 16][self.chance.index(3)] * GIB);
        if spec.resources.gpus == 2 {
            spec.resources.gpu_memory = Bytes(0);
        }
        // Half of what a machine lends, or all of it, or hardly anything.
        spec.resources.cpus = [1, 1, 2, 4, 8][self.chance.index(5)];
        spec.resources.memory = Bytes([1, 4, 16, 40][self.chance.index(4)] * GIB);
        spec.checkpoint.every = Some(Span(Millis(self.chance.between(10_000, 90_000))));
        if self.chance.one_in(5) {
            spec.checkpoint.every = Some(Span(Millis(24 * 3_600_000)));
        } else if number.is_multiple_of(3) {
            spec.checkpoint.every = None;
        }
        spec.checkpoint.stop_max = Span(Millis([300, 2_000, 10_000][self.chance.index(3)]));
        if self.chance.one_in(5) {
            spec.network.egress = vec!["github.com".to_owned()];
            let allowing = self.hosts.iter().filter(|host| host.egress != EgressRule::Off);
            let most = allowing.map(|host| host.machine.gpus.len() as u32).max().unwrap_or(1);
            spec.resources.gpus = spec.resources.gpus.min(most);
        }
        let host = self.chance.index(self.hosts.len());
        let member = self.hosts[host].member.clone();
        let keys = self.some_keys(&member);
        program.farewell = self.farewell();
        spec.checkpoint.grace = Span(Millis(self.chance.mostly_short(0, 120_000)));
        let image = Image::Registry { reference: "digits:latest".to_owned(), digest: None };
        let submit = Submit {
            job: id.clone(),
            spec,
            image,
            input: None,
            data: Vec::new(),
            keys,
            sealed: Blob(vec![1]),
        };
        self.by_id.insert(id.clone(), number);
        self.jobs.push(PlannedJob {
            id,
            member,
            program,
            submit,
            key: format!("key-{number}"),
            answered: false,
            cancel: false,
            cancel_answered: false,
        });
        number
    }

    /// Some hours of training on any machine, whose program leaves its interval to the product. One of
    /// three says nothing of what it saves.
    pub(super) fn long_job(&mut self) -> usize {
        let job = self.new_job();
        let pace = [15_000, 60_000, 180_000][self.chance.index(3)];
        let hours = self.chance.between(2, 8);
        let keys = self.hosts.iter();
        let keys =
            keys.map(|host| WrappedKey { device: host.device.clone(), wrapped: Blob(vec![7]) }).collect();
        let farewell = if self.chance.coin() { Farewell::Saves } else { Farewell::Ignores };
        let planned = &mut self.jobs[job];
        planned.program.steps = hours * 3_600_000 / pace;
        (planned.program.pace, planned.program.says_saved) = (pace, !job.is_multiple_of(3));
        (planned.program.fate, planned.program.farewell) = (Fate::Finishes, farewell);
        let mut spec = JobSpec::of_image("digits:latest");
        spec.name.clone_from(&planned.submit.spec.name);
        spec.resources.gpus = 1;
        (planned.submit.spec, planned.submit.keys) = (spec, keys);
        job
    }

    /// Devices that were not there at submit get the key later, from a holder.
    fn some_keys(&mut self, member: &MemberId) -> Vec<WrappedKey> {
        let all = self.chance.coin();
        let devices: Vec<(DeviceId, bool)> =
            self.hosts.iter().map(|h| (h.device.clone(), h.member == *member)).collect();
        let mut keys = Vec::new();
        for (device, own) in devices {
            if own || all || self.chance.coin() {
                keys.push(WrappedKey { device, wrapped: Blob(vec![7]) });
            }
        }
        keys
    }

    /// Somebody makes the same call once more, and waits for no answer.
    pub(super) fn submit_again(&mut self, job: &JobId) -> bool {
        let Some(number) = self.by_id.get(job).copied().filter(|number| self.jobs[*number].answered) else {
            return false;
        };
        let event = self.submission(number);
        self.broker(event);
        true
    }

    pub(super) fn cancel_now(&mut self, job: &JobId) -> bool {
        let Some(number) = self.by_id.get(job).copied() else { return false };
        self.reference.cancel_asked(job);
        let (request, by) = (self.relay.request(), self.jobs[number].member.clone());
        self.broker(ToBroker::Cancel { request, by, job: job.clone() });
        true
    }

    fn submission(&mut self, job: usize) -> ToBroker {
        let request = self.relay.request();
        let planned = &self.jobs[job];
        ToBroker::Submit {
            request,
            member: planned.member.clone(),
            key: planned.key.clone(),
            body: Digest::of(planned.key.as_bytes()),
            submit: Box::new(planned.submit.clone()),
        }
    }

    fn new_program(&mut self) -> Program {
        let steps = self.chance.between(2, 30);
        let at = self.chance.between(1, steps);
        let fate = match self.chance.between(0, 29) {
            0 => Fate::Exits { code: 3, at },
            1 => Fate::IsSignalled { signal: 11, at },
            2 => Fate::WantsTooMuchMemory { at },
            3 | 25..=26 => Fate::WantsTooMuchDisk { at },
            4 | 27..=28 => Fate::NeverStarts,
            5 => Fate::HasNoImage,
            6 => Fate::HasNoInput,
            7 | 8 => Fate::StumblesOver { at },
            _ => Fate::Finishes,
        };
        Program {
            seed: u64::from_le_bytes(self.chance.bytes()),
            steps,
            pace: self.chance.between(500, 15_000),
            says_saved: self.chance.coin(),
            fate,
            farewell: Farewell::Ignores,
        }
    }

    fn farewell(&mut self) -> Farewell {
        match self.chance.between(0, 9) {
            0..=2 => Farewell::Ignores,
            3..=6 => Farewell::Saves,
            7 => Farewell::Ends(Exit::Signal { signal: 15 }),
            8 => Farewell::Ends(Exit::Code { code: 0 }),
            _ => Farewell::Ends(Exit::Code { code: 1 }),
        }
    }

    pub(super) fn cancel_some(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let job = self.chance.index(self.jobs.len());
        if self.jobs[job].answered {
            self.jobs[job].cancel = true;
            self.after(1, Due::Client { job });
        }
    }

    /// The member's client: the same call until it is answered.
    pub(super) fn client_calls(&mut self, job: usize) {
        let planned = &self.jobs[job];
        let submits = !planned.answered;
        if !submits && (!planned.cancel || planned.cancel_answered) {
            return;
        }
        self.after(3_000, Due::Client { job });
        if self.relay.broker.is_none() || self.small(Small::Client, 10) {
            return;
        }
        let event = if submits {
            self.key_for_somebody(job);
            self.submission(job)
        } else {
            let planned = &self.jobs[job];
            self.reference.cancel_asked(&planned.id);
            let (by, job) = (planned.member.clone(), planned.id.clone());
            ToBroker::Cancel { request: self.relay.request(), by, job }
        };
        self.relay.waiting.insert(self.relay.last_request(), job);
        self.broker(event);
    }

    /// Who submits for a second time does it for the devices that there are now.
    fn key_for_somebody(&mut self, job: usize) {
        let keys = &self.jobs[job].submit.keys;
        if !keys.iter().any(|key| self.host_of(&key.device).is_some_and(|host| self.is_admitted(host))) {
            let member = self.jobs[job].member.clone();
            self.jobs[job].submit.keys = self.some_keys(&member);
        }
    }

    pub(super) fn client_answered(&mut self, job: usize, reply: Result<Reply, String>) {
        let planned = &mut self.jobs[job];
        let id = planned.id.clone();
        match reply {
            Ok(Reply::Submitted(_)) => {
                planned.answered = true;
                self.reference.accepted(&id);
                if !self.relay.holds(&Key::Job(id.clone())) {
                    self.fail(format!("{id} was accepted and is not on the relay's disk"));
                }
            }
            Ok(Reply::State(state)) => {
                planned.cancel_answered = true;
                if !state.is_final() {
                    self.fail(format!("{id} was cancelled and is {}", state.word()));
                }
            }
            Ok(other) => self.fail(format!("a client got {other:?}")),
            // Its devices were revoked while it asked: it asks again for those that are there then.
            Err(problem) if problem.contains("none is for a device of this group") => {}
            Err(problem) => self.fail(format!("a client was refused: {problem}")),
        }
    }
}
