//! What most tests need: a relay, two machines that lend a stand-in GPU each, and a member.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gpunion_protocol::job::{JobState, JobView};

use super::{Campus, Device, Relay};
use crate::lab::{Engine, wait_for};

/// Memory of each stand-in GPU.
pub const GPU_MEMORY: u64 = 8 << 30;
/// A whole job takes seconds; a busy machine may take many times as long.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The member is on a machine of her own without a GPU, whose engine is that of the first
/// provider: there lies her image, and nowhere else.
#[derive(Debug)]
pub struct Pair {
    // Devices and relay end before the engines, those before the lab.
    pub ada: Device,
    pub providers: [Device; 2],
    pub relay: Relay,
    pub engines: [Engine; 2],
    pub campus: Campus,
}

impl Pair {
    /// Everybody has joined; nobody lends yet. `gpus`: the UUIDs of each machine's GPUs.
    pub fn found(gpus: [&[&str]; 2]) -> Result<Self> {
        Self::found_in(Campus::new()?, gpus)
    }

    fn found_in(campus: Campus, gpus: [&[&str]; 2]) -> Result<Self> {
        let engines = campus.lab.engines(["a", "b"])?;
        let relay = campus.relay(campus.lab.user("op")?)?;
        let provider = |name: &str, user: &str, engine: &Engine, gpus: &[&str]| -> Result<Device> {
            let gpus: Vec<(&str, u64)> = gpus.iter().map(|uuid| (*uuid, GPU_MEMORY)).collect();
            let gpus = campus.stand_in(name, &gpus)?;
            let device = campus.device(name, campus.lab.user(user)?, &engine.socket(), Some(gpus))?;
            device.join(&relay.invite("member")?, user)?;
            Ok(device)
        };
        let lab7 = provider("lab-7", "grace", &engines[0], gpus[0])?;
        let lab3 = provider("lab-3", "linus", &engines[1], gpus[1])?;
        let ada = campus.device("laptop", campus.lab.user("ada")?, &engines[0].socket(), None)?;
        ada.join(&relay.invite("member")?, "ada")?;
        Ok(Self { ada, providers: [lab7, lab3], relay, engines, campus })
    }

    /// Both lend, and the member's engine has `digits:latest`.
    pub fn lending() -> Result<Self> {
        Self::lending_each(1)
    }

    /// The same, where each lends so many GPUs.
    pub fn lending_each(many: usize) -> Result<Self> {
        let campus = Campus::new()?;
        let of = |machine: &str| -> Vec<String> {
            let others = (1..many).map(|number| campus.gpu(&format!("{machine}-{number}")));
            std::iter::once(campus.gpu(machine)).chain(others).collect()
        };
        let gpus = [of("7"), of("3")];
        let [seven, three] = gpus.each_ref().map(|of| of.iter().map(String::as_str).collect::<Vec<_>>());
        let pair = Self::found_in(campus, [&seven, &three])?;
        pair.campus.digits_image(&pair.engines[0])?;
        for provider in &pair.providers {
            provider.share()?;
        }
        Ok(pair)
    }

    /// Which provider has the job's newest attempt.
    pub fn at(&self, job: &JobView) -> Result<usize> {
        let name = &job.attempts.last().context("the job has no attempt")?.device_name;
        self.providers.iter().position(|p| p.name == *name).with_context(|| format!("who is {name}?"))
    }

    /// Until the job has a checkpoint and goes on computing; who runs it.
    pub fn in_the_middle(&self, id: &str) -> Result<usize> {
        let job = self.ada.wait_job(id, "a checkpoint", PATIENCE, |job| {
            !job.checkpoints.is_empty() || job.state.is_final()
        })?;
        ensure!(!job.state.is_final(), "the job ended before it could be disturbed: {job:#?}");
        self.at(&job)
    }

    /// Until the job has ended; it must have ended well.
    pub fn succeeds(&self, id: &str) -> Result<JobView> {
        let job = self.ada.wait_job(id, "the end", PATIENCE, |job| job.state.is_final());
        let job = job.with_context(|| self.logs())?;
        ensure!(job.state == JobState::Succeeded, "it did not end well: {job:#?}\n{}", self.logs());
        Ok(job)
    }

    /// Until nothing of any job is left on either machine.
    pub fn is_clean(&self) -> Result<()> {
        for engine in &self.engines {
            let mut left = Vec::new();
            wait_for("the guests' containers and volumes to be gone", PATIENCE, || {
                left = engine.left_of_guests()?;
                Ok(left.is_empty().then_some(()))
            })
            .with_context(|| format!("engine {} still has {left:?}\n{}", engine.name(), self.logs()))?;
        }
        Ok(())
    }

    /// What everybody said, for a test that failed.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for device in self.providers.iter().chain([&self.ada]) {
            text.push_str(&format!("\n== {}\n{}", device.name, last(&device.log())));
        }
        text.push_str(&format!("\n== relay\n{}", last(&self.relay.log())));
        text
    }
}

pub(super) fn last(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}
