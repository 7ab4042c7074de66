//! The simulated world: the product's own machines (`Provider`, `Broker`) and their own loading
//! code, with everything around them made up: clocks, network, disks, engines, guests, GPUs,
//! people. No thread, no sleep, no chance but the seed's: a failure comes again whenever its seed
//! does. What must hold is in `reference`, written from the design and not from the machines.

mod agent_host;
mod ambush;
mod aside;
mod backup;
mod chance;
mod clock;
mod commit;
mod egress;
mod engine;
mod faults;
mod foul;
mod further;
mod group;
mod guest;
mod jobs;
mod lost;
mod machine;
mod net;
mod owner_rules;
mod owners;
mod pairs;
mod people;
mod program;
mod reference;
mod relay_host;
mod script;
mod sessions;
mod shorten;
mod stats;
mod still;
mod trace;
mod work;
mod world;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use gpunion_protocol::ids::JobId;
use gpunion_relay::broker::{Change, Key, Record};

pub use lost::{LostWork, lost_work};
pub use pairs::Pairs;
pub use script::{Part, Script};
pub use shorten::Short;
pub use stats::Stats;
use world::World;

/// Steps of trouble in a world, when nothing else is said.
pub const WORLD: u64 = 2_500;

/// Virtual time in which the calm must bring every job to its end, milliseconds.
const CALM: u64 = 4 * 3_600_000;
/// And steps.
const CALM_STEPS: u64 = 200_000;

/// One world from its beginning to its rest.
#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    pub steps: u64,
    pub stats: Stats,
    pub pairs: Pairs,
    /// Faults and jobs, in order.
    pub happened: Vec<Part>,
    pub failure: Option<Failure>,
}

/// What did not hold, and what had happened.
#[derive(Debug)]
pub struct Failure {
    pub step: u64,
    pub what: String,
    /// The last things that happened, oldest first.
    pub trace: Vec<String>,
}

impl Failure {
    /// The end of the trace: what a person reads first.
    pub fn last(&self, lines: usize) -> &[String] {
        &self.trace[self.trace.len().saturating_sub(lines)..]
    }
}

/// Runs the world of this seed: `steps` of trouble, then calm until all is at rest.
pub fn run(seed: u64, steps: u64) -> Outcome {
    once(seed, steps, Script::default(), false)
}

/// The same, of these parts alone.
pub fn run_parts(seed: u64, steps: u64, script: Script) -> Outcome {
    once(seed, steps, script, false)
}

/// The same with the trace of a failure, which costs more than the world.
pub fn run_traced(seed: u64, steps: u64, script: Script) -> Outcome {
    once(seed, steps, script, true)
}

/// The failure of this world with as little of it as was found to do, and its trace.
pub fn shorten(outcome: Outcome, steps: u64) -> Short {
    let seed = outcome.seed;
    let mut short = shorten::shorten(outcome, |script| once(seed, steps, script, false));
    let script = Script::of(short.parts.iter().copied());
    let script = if short.parts.len() == short.of { Script::default() } else { script };
    short.outcome = run_traced(seed, steps, script);
    short
}

fn once(seed: u64, steps: u64, script: Script, trace: bool) -> Outcome {
    let mut world = World::new(seed, script, trace);
    let lived = catch_unwind(AssertUnwindSafe(|| world.live(steps)));
    if let Err(panic) = lived {
        let words = panic.downcast_ref::<String>().cloned();
        let words = words.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        world.failure = Some(format!("a machine panicked: {}", words.unwrap_or_default()));
    }
    world.tell(seed)
}

impl World {
    fn live(&mut self, steps: u64) {
        while self.stats.steps < steps && self.failure.is_none() {
            self.step();
        }
        if self.failure.is_some() {
            return;
        }
        self.calm_down();
        let (end, last) = (self.at + CALM, self.stats.steps + CALM_STEPS);
        while self.failure.is_none() && !self.is_at_rest() {
            self.step();
            self.let_held_jobs_go();
            if self.at > end || self.stats.steps > last {
                let unrest = self.unrest();
                self.fail(format!("in the calm not all comes to its end: {unrest}"));
            }
        }
    }

    fn tell(mut self, seed: u64) -> Outcome {
        for job in &self.jobs {
            self.stats.count_end(self.reference.end(&job.id));
        }
        self.stats.jobs = self.jobs.len() as u64;
        self.stats.attempts = self.reference.attempts();
        self.stats.virtual_seconds = self.at / 1_000;
        self.count_work();
        let (step, trace, pairs) = (self.stats.steps, self.trace, self.pairs);
        let failure = self.failure.map(|what| Failure { step, what, trace: trace.into_lines() });
        Outcome { seed, steps: step, stats: self.stats, pairs, happened: self.happened, failure }
    }

    /// What the relay has on its disk now, held against what must be true.
    fn relay_committed(&mut self, changes: &[Change], at: u64) -> Result<(), String> {
        // One commit may hold both an attempt and the end of its job.
        let ended = |change: &Change| match change {
            Change::Put(Record::Attempt(attempt)) if self.reference.is_final(&attempt.job) => {
                Some(attempt.job.clone())
            }
            Change::Put(_) | Change::Delete(_) => None,
        };
        let ended: BTreeSet<JobId> = changes.iter().filter_map(ended).collect();
        for change in changes {
            match change {
                Change::Put(Record::Course(course)) => {
                    let Some(job) = self.by_id.get(&course.job) else {
                        return Err(format!("{} was never submitted", course.job));
                    };
                    let (program, store) = (&self.jobs[*job].program, &self.store);
                    let known = reference::Known { store, program };
                    self.reference.course_changed(course, &known)?;
                    self.work_accepted(course, at);
                }
                Change::Put(Record::Attempt(attempt)) => {
                    let was_final = ended.contains(&attempt.job);
                    let Some(job) = self.by_id.get(&attempt.job) else {
                        return Err(format!("{} was never submitted", attempt.job));
                    };
                    let member = &self.jobs[*job].member;
                    if self.reference.attempt_changed(attempt, member, at, was_final)? {
                        self.nobody_else_has_effects();
                    }
                    self.work_of(attempt, at)?;
                }
                Change::Put(_) => {}
                Change::Delete(key) => match key {
                    Key::Job(job) | Key::Course(job) => {
                        return Err(format!("{job} is deleted from the disk"));
                    }
                    Key::Attempt(..) => {
                        return Err(format!("{key:?} is deleted from the disk"));
                    }
                    Key::Member(_) | Key::Device(_) | Key::Invite(_) | Key::Usage(_) => {}
                },
            }
        }
        if self.reference.commit_ends(at)? {
            self.stats.put_aside += 1;
        }
        Ok(())
    }
}
