//! From the click until no process of the guest lives: our reclaim against the engine's own kill
//! of the same container. Both are asked over a unix socket by this program, both are timed by
//! the kernel's word on the same processes, and they take turns.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gpunion_protocol::receipt::Receipt;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::json;
use system_tests::campus::{Campus, Device, GPU_MEMORY, PATIENCE, Pace, Relay, processes_of};
use system_tests::interrupt::go_on;
use system_tests::lab::{Engine, post_over_socket, wait_for};

use crate::cpu::{ms, now};
use crate::table::{Table, median, worst};

const ROUNDS: usize = 50;
/// NVML is read so often while a reclaim is under way, in milliseconds.
const POLL_PERIOD: f64 = 100.0;
/// Far longer than the job is left to run.
const SLOW: Pace = Pace { epochs: 1000, epoch_seconds: 1.0 };
const LIMIT: Duration = Duration::from_secs(30);

pub(crate) struct World {
    pub(crate) ada: Device,
    pub(crate) provider: Device,
    _relay: Relay,
    pub(crate) engine: Engine,
    pub(crate) campus: Campus,
}

impl World {
    pub(crate) fn found() -> Result<Self> {
        let campus = Campus::new()?;
        let engine = campus.lab.engine("a")?;
        campus.digits_image(&engine)?;
        let relay = campus.relay(campus.lab.user("op")?)?;
        let gpus = campus.stand_in("lab-7", &[(&campus.gpu("7"), GPU_MEMORY)])?;
        let provider = campus.device("lab-7", campus.lab.user("grace")?, &engine.socket(), Some(gpus))?;
        provider.join(&relay.invite("member")?, "grace")?;
        provider.share()?;
        let ada = campus.device("laptop", campus.lab.user("ada")?, &engine.socket(), None)?;
        ada.join(&relay.invite("member")?, "ada")?;
        Ok(Self { ada, provider, _relay: relay, engine, campus })
    }
}

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    let world = World::found()?;
    let (mut ours, mut verified, mut engines) = (Vec::new(), Vec::new(), Vec::new());
    let mut stopped = Vec::new();
    for _ in 0..ROUNDS {
        go_on()?;
        let caught = Caught::new(&world)?;
        let (ended, receipt) = caught.reclaim(&world)?;
        ensure!(receipt.verified, "not verified: {receipt:#?}");
        ours.push(ended);
        stopped.push(receipt.stopped_ms.context("milliseconds to stopped")? as f64);
        verified.push(receipt.verified_ms.context("milliseconds to verified")? as f64);
        caught.let_go(&world)?;

        let caught = Caught::new(&world)?;
        engines.push(caught.engine_kill(&world)?);
        caught.let_go(&world)?;
    }
    if table.wants("reclaim_ended") {
        let against = format!("engine kill, {:.1} ms (p50)", median(&engines));
        table.aimed("reclaim_ended_p50", median(&ours) / median(&engines), "x", &against, 0.5);
        let against = format!("engine kill, {:.1} ms (worst)", worst(&engines));
        table.aimed("reclaim_ended_worst", worst(&ours) / worst(&engines), "x", &against, 0.5);
        table.told("ended_after_click_p50", median(&ours), "ms", "stand-in GPU");
        table.told("stopped_after_click_p50", median(&stopped), "ms", "by the receipt");
        table.told("ended_after_click_worst", worst(&ours), "ms", "stand-in GPU");
    }
    if table.wants("reclaim_verified") {
        let against = "NVML is read each 100 ms; stand-in GPU";
        table.aimed("reclaim_verified_p50", median(&verified) / POLL_PERIOD, "periods", against, 2.0);
        table.aimed("reclaim_verified_worst", worst(&verified) / POLL_PERIOD, "periods", against, 2.0);
    }
    Ok(())
}

/// A guest that computes and holds memory of the GPU, with a child of it.
struct Caught {
    job: String,
    container: String,
    processes: Vec<OwnedFd>,
}

impl Caught {
    fn new(world: &World) -> Result<Self> {
        let folder = world.ada.digits_folder("endless", SLOW)?;
        let (job, ..) = world.ada.submit(&folder)?;
        let container = wait_for("a guest that holds the GPU", PATIENCE, || {
            let gpus = world.provider.snapshot()?.gpus;
            let processes = gpus.first().and_then(|gpu| gpu.sample.processes.as_ref().map(Vec::len));
            let guests = world.engine.guests()?;
            let computes = guests.into_iter().find(|guest| processes_of(guest).len() >= 3);
            Ok(computes.filter(|_| processes == Some(2)))
        })?;
        let open = |pid| {
            let pid = Pid::from_raw(pid as i32).context("a pid")?;
            pidfd_open(pid, PidfdFlags::empty()).context("a handle of a process of the guest")
        };
        let processes = processes_of(&container).into_iter().map(open).collect::<Result<_>>()?;
        Ok(Self { job, container, processes })
    }

    fn reclaim(&self, world: &World) -> Result<(f64, Receipt)> {
        let socket = world.provider.user.runtime().join("agent.sock");
        let (ended, answer) =
            self.timed(move || post_over_socket(&socket, "/v1/reclaim", Some(&json!({})), LIMIT))?;
        Ok((ended, serde_json::from_str(answer.trim()).with_context(|| format!("no receipt: {answer}"))?))
    }

    fn engine_kill(&self, world: &World) -> Result<f64> {
        let (socket, path) = (world.engine.socket(), format!("/containers/{}/kill", self.container));
        Ok(self.timed(move || post_over_socket(&socket, &path, None, LIMIT))?.0)
    }

    /// Milliseconds from before the word until the last process is gone.
    fn timed(&self, word: impl FnOnce() -> Result<String> + Send + 'static) -> Result<(f64, String)> {
        let began = now();
        let asking = std::thread::spawn(word);
        self.wait_for_the_end(began)?;
        let ended = ms(began.elapsed());
        let answer = asking.join().ok().context("asking broke off")??;
        Ok((ended, answer))
    }

    fn wait_for_the_end(&self, began: Instant) -> Result<()> {
        let mut left: Vec<&OwnedFd> = self.processes.iter().collect();
        while !left.is_empty() {
            ensure!(began.elapsed() < LIMIT, "{} processes still live", left.len());
            let mut fds: Vec<PollFd<'_>> = left.iter().map(|fd| PollFd::new(*fd, PollFlags::IN)).collect();
            let second = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };
            poll(&mut fds, Some(&second))?;
            let lives: Vec<bool> = fds.iter().map(|fd| fd.revents().is_empty()).collect();
            let mut lives = lives.into_iter();
            left.retain(|_| lives.next().unwrap_or(false));
        }
        Ok(())
    }

    /// Everything as before: no job, no guest, lending again.
    fn let_go(self, world: &World) -> Result<()> {
        world.ada.run(["cancel", &self.job])?.ok()?;
        wait_for("the guest to be cleared away", PATIENCE, || {
            Ok(world.engine.guests()?.iter().all(|guest| processes_of(guest).is_empty()).then_some(()))
        })?;
        world.ada.wait_job(&self.job, "the end", PATIENCE, |job| {
            job.state.is_final() && job.attempts.iter().all(|attempt| attempt.state.is_ended())
        })?;
        world.provider.share()
    }
}
