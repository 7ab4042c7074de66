//! One machine that lends, with its engine behind a proxy, for everything that goes wrong while
//! its owner wants the GPU back.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use gpunion_protocol::receipt::Receipt;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Campus, Device, GPU_MEMORY, PATIENCE, Pace, Relay, processes_of};
use crate::lab::{Disk, Engine, EngineOptions, EngineProxy, User, wait_for};

/// It holds its GPU, says nothing, and does not end by itself.
const QUIET: Pace = Pace { epochs: 2, epoch_seconds: 3_600.0 };

#[derive(Debug)]
pub struct Solo {
    // Devices and relay end before what they stand on.
    pub ada: Device,
    pub owner: Device,
    pub relay: Relay,
    pub proxy: EngineProxy,
    pub disk: Option<Disk>,
    pub engine: Engine,
    pub campus: Campus,
    /// The UUID of its one GPU.
    pub gpu: String,
}

/// A guest that runs, as an outsider knows it.
#[derive(Debug)]
pub struct Caught {
    pub job: String,
    pub container: String,
    /// Host pid of its init.
    pub init: u32,
}

impl Solo {
    /// It lends. `disk`: makes what the agent's data folder lies on.
    pub fn lending(disk: impl FnOnce(&Path, &User, &Path) -> Result<Option<Disk>>) -> Result<Self> {
        let campus = Campus::new()?;
        let engine = campus.lab.engine_with("a", EngineOptions::default())?;
        let proxy = EngineProxy::start(&engine.socket(), &campus.lab.dir().join("proxy.sock"))?;
        let relay = campus.relay(campus.lab.user("op")?)?;
        let grace = campus.lab.user("grace")?;
        let disk = disk(&grace.home().join("gpunion"), &grace, campus.lab.dir())?;
        let gpu = campus.gpu("7");
        let gpus = campus.stand_in("lab-7", &[(&gpu, GPU_MEMORY)])?;
        let owner = campus.device("lab-7", grace, proxy.socket(), Some(gpus))?;
        owner.join(&relay.invite("member")?, "grace")?;
        let ada = campus.device("laptop", campus.lab.user("ada")?, &engine.socket(), None)?;
        ada.join(&relay.invite("member")?, "ada")?;
        campus.digits_image(&engine)?;
        campus.busybox_image(&engine)?;
        let solo = Self { ada, owner, relay, proxy, disk, engine, campus, gpu };
        solo.lend()?;
        Ok(solo)
    }

    /// Lends, and has its second way ready.
    pub fn lend(&self) -> Result<()> {
        // Half of what is free on a small disk is nothing.
        self.owner.run(["share", "on", "--cpus", "2", "--disk", "8 GiB"])?.ok()?;
        wait_for("an open offer", PATIENCE, || Ok(self.owner.snapshot()?.share.open.then_some(())))
            .with_context(|| self.logs())?;
        self.second_way_listens()
    }

    pub fn second_way_listens(&self) -> Result<()> {
        use gpunion_agent_core::second_way::ask;
        use gpunion_protocol::second_way::ToSecondWay;
        let folder = self.owner.data().join("second-way");
        let limit = std::time::Duration::from_secs(1);
        wait_for("the second way to listen", PATIENCE, || {
            Ok(ask(&folder, &ToSecondWay::End { containers: Vec::new() }, limit).ok().map(drop))
        })
        .with_context(|| self.logs())
    }

    /// A quiet job, from the moment that it and its child hold the GPU.
    pub fn catch(&self, name: &str) -> Result<Caught> {
        let folder = self.ada.digits_folder(name, QUIET)?;
        let (job, ..) = self.ada.submit(&folder)?;
        let gpus = self.owner.gpus.as_ref().context("it has a GPU")?;
        wait_for("its guest to hold the GPU", PATIENCE, || {
            let read = gpus.read()?;
            Ok((read[0].processes.as_ref().map_or(0, Vec::len) == 2).then_some(()))
        })
        .with_context(|| self.logs())?;
        self.caught(job)
    }

    /// The one guest that runs.
    pub fn caught(&self, job: String) -> Result<Caught> {
        let guests = self.engine.guests()?;
        let container =
            guests.into_iter().find(|one| processes_of(one).len() >= 2).context("no guest runs")?;
        let mut inits = processes_of(&container).into_iter().filter(|pid| is_first_of_its_namespace(*pid));
        let init = inits.next_back().context("a guest has an init")?;
        Ok(Caught { job, container, init })
    }

    /// Everything is well again, and nothing of the job is left.
    pub fn put_away(&self, caught: &Caught) -> Result<()> {
        self.ada.run(["cancel", &caught.job])?.ok()?;
        let mut left = Vec::new();
        wait_for("the guest's container and volume to be gone", PATIENCE, || {
            left = self.engine.left_of_guests()?;
            Ok(left.is_empty().then_some(()))
        })
        .with_context(|| format!("the engine still has {left:?}\n{}", self.logs()))
    }

    pub fn logs(&self) -> String {
        format!(
            "\n== owner\n{}\n== relay\n{}",
            super::pair::last(&self.owner.log()),
            super::pair::last(&self.relay.log())
        )
    }
}

impl Caught {
    /// Its init answers nobody any more: not its channel, not the file `end`.
    pub fn silence_init(&self) -> Result<()> {
        kill(Pid::from_raw(self.init as i32), Signal::SIGSTOP).context("stopping the init")
    }
}

impl Device {
    /// `gpunion reclaim`: its receipt and its exit code.
    pub fn reclaim(&self) -> Result<(Receipt, Option<i32>)> {
        let library = self.gpus.as_ref().context("it has GPUs")?.library.clone();
        let library = library.to_str().context("a plain path")?;
        let ran = self.run(["--json", "reclaim", "--nvml-library", library])?;
        Ok((ran.json()?, ran.code))
    }
}

fn is_first_of_its_namespace(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    ids.split_whitespace().count() > 1 && ids.split_whitespace().next_back() == Some("1")
}
