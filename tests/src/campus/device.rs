//! One device: a user with an agent that runs, and their command line.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use gpunion_protocol::job::JobView;
use gpunion_protocol::local::Snapshot;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;

use super::StandIn;
use crate::lab::{User, wait_for};

const START: Duration = Duration::from_secs(60);
/// Guests get a minute at most, and their workspaces are small.
const STOP: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub struct Device {
    gpunion: PathBuf,
    pub name: String,
    pub user: User,
    engine: PathBuf,
    pub gpus: Option<StandIn>,
    child: Option<Child>,
    /// How often its machine was started anew.
    boots: u32,
}

/// What a command printed and how it ended.
#[derive(Debug, Clone)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// The last JSON object on its stdout.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        let line = self.out.lines().rev().find(|line| line.starts_with(['{', '[']));
        let line = line.with_context(|| format!("no JSON in {:?}; it said {:?}", self.out, self.err))?;
        serde_json::from_str(line).with_context(|| format!("unexpected JSON: {line}"))
    }

    pub fn ok(self) -> Result<Self> {
        ensure!(self.code == Some(0), "exit code {:?}: {}{}", self.code, self.out, self.err);
        Ok(self)
    }
}

impl Device {
    pub(super) fn start(
        gpunion: &Path,
        name: &str,
        user: User,
        engine: &Path,
        gpus: Option<StandIn>,
    ) -> Result<Self> {
        let mut device = Self {
            gpunion: gpunion.to_owned(),
            name: name.to_owned(),
            user,
            engine: engine.to_owned(),
            gpus,
            child: None,
            boots: 0,
        };
        device.start_agent()?;
        Ok(device)
    }

    pub fn start_agent(&mut self) -> Result<()> {
        self.launch_agent()?;
        self.wait_ready()
    }

    /// What lives in memory goes, and the next agent finds the clocks and the id of a new boot. (Its
    /// engine has none of its own: all that an engine says of time is wall time.)
    pub fn boot_anew(&mut self) -> Result<()> {
        for entry in std::fs::read_dir(self.user.runtime())? {
            let path = entry?.path();
            if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) }?;
        }
        self.boots += 1;
        let id = format!("{:08x}-0000-4000-8000-000000000000\n", self.boots);
        std::fs::write(self.boot_id(), id).context("writing the id of the new boot")
    }

    fn boot_id(&self) -> PathBuf {
        self.user.home().join("boot-id")
    }

    /// The same command on a machine that was started a minute ago.
    fn after_boot(&self, command: &Command) -> Result<Command> {
        let up = std::fs::read_to_string("/proc/uptime").context("how long this machine is up")?;
        let up: f64 = up.split_whitespace().next().unwrap_or_default().parse().context("an uptime")?;
        let back = format!("-{}", (up as u64).saturating_sub(60));
        let mut anew = Command::new("unshare");
        anew.args(["--time", "--mount", "--fork", "--boottime", &back, "--monotonic", &back]);
        let script =
            "echo $$ > \"$0.pid\" && mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
        anew.args(["--", "sh", "-c", script]).arg(self.boot_id());
        anew.arg(command.get_program()).args(command.get_args()).env_clear();
        anew.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if let Some(folder) = command.get_current_dir() {
            anew.current_dir(folder);
        }
        Ok(anew)
    }

    fn launch_agent(&mut self) -> Result<()> {
        let out = File::options().create(true).append(true).open(self.log_file())?;
        let mut command = self.command(["agent", "--token-file", "--device-name", &self.name]);
        command.arg("--engine").arg(&self.engine);
        match &self.gpus {
            Some(gpus) => {
                command.arg("--nvml-library").arg(&gpus.library);
                command.arg("--standin").arg(&gpus.folders);
            }
            // No driver in reach, as on most laptops.
            None => {
                command.arg("--nvml-library").arg(self.user.home().join("no-such-library.so"));
            }
        }
        command.env("RUST_LOG", "info,gpunion_agent_core=debug");
        if self.boots > 0 {
            command = self.after_boot(&command)?;
        }
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        self.child = Some(command.spawn().context("starting the agent")?);
        Ok(())
    }

    fn wait_ready(&mut self) -> Result<()> {
        wait_for("the agent", START, || {
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().transpose()) {
                bail!("the agent of {} ended with {}: {}", self.name, status?, self.log());
            }
            Ok(self.snapshot().ok().map(drop))
        })
    }

    /// The command line as its user types it.
    pub fn command<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.user.command(&self.gpunion);
        command.arg("--data").arg(self.data());
        command.arg("--socket").arg(self.user.runtime().join("agent.sock"));
        command.args(words).current_dir(self.user.home());
        super::crash::ask(&self.user, &mut command);
        let roots = self.user.home().join(super::ROOTS);
        if roots.exists() {
            command.env("SSL_CERT_FILE", roots);
        }
        command
    }

    pub fn data(&self) -> PathBuf {
        self.user.home().join("gpunion")
    }

    pub fn run<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Result<Ran> {
        let output = self.command(words).stdin(Stdio::null()).output().context("running gpunion")?;
        Ok(Ran {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Runs it with `--json` and reads what it prints.
    pub fn json<T: DeserializeOwned>(&self, words: &[&str]) -> Result<T> {
        let words: Vec<&str> = ["--json"].into_iter().chain(words.iter().copied()).collect();
        self.run(&words).and_then(Ran::ok).and_then(|ran| ran.json()).with_context(|| format!("{words:?}"))
    }

    pub fn join(&self, link: &str, person: &str) -> Result<()> {
        self.run(["join", link, "--name", person, "--device-name", &self.name])?.ok()?;
        wait_for("the session with the relay", START, || {
            Ok(self.snapshot()?.group.is_some_and(|group| group.connected).then_some(()))
        })
    }

    /// The whole picture that faces show, by the local API that faces use.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let socket = self.user.runtime().join("agent.sock");
        let body = crate::lab::get_over_socket(&socket, "/v1/snapshot")?;
        serde_json::from_str(&body).context("the agent's snapshot makes no sense")
    }

    /// Lends everything, and waits until attempts are taken.
    pub fn share(&self) -> Result<()> {
        self.run(["share", "on", "--cpus", "2"])?.ok()?;
        wait_for("an open offer", START, || Ok(self.snapshot()?.share.open.then_some(())))
    }

    pub fn job(&self, id: &str) -> Result<JobView> {
        self.json(&["show", id])
    }

    /// Waits until the job is as wanted; says how it is when it never gets there.
    pub fn wait_job(
        &self,
        id: &str,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&JobView) -> bool,
    ) -> Result<JobView> {
        let mut last = None;
        wait_for(&format!("{what} of {id}"), limit, || {
            let job = self.job(id)?;
            let good = wanted(&job);
            last = Some(job.clone());
            Ok(good.then_some(job))
        })
        .with_context(|| format!("the job is {last:#?}"))
    }

    pub fn agent_pid(&self) -> Option<i32> {
        let child = self.child.as_ref()?;
        if self.boots == 0 {
            return Some(child.id() as i32);
        }
        // Its parent only waits for it.
        let told = std::fs::read_to_string(self.boot_id().with_added_extension("pid")).ok()?;
        told.trim().parse().ok()
    }

    /// Told to stop, as a service manager does it; how it ended.
    pub fn stop_agent(&mut self) -> Result<std::process::ExitStatus> {
        kill(Pid::from_raw(self.agent_pid().context("no agent runs")?), Signal::SIGTERM)?;
        let mut child = self.child.take().context("no agent runs")?;
        wait_for("the agent's end", STOP, || Ok(child.try_wait()?))
    }

    /// kill -9, as a crash is.
    pub fn kill_agent(&mut self) -> Result<()> {
        let pid = self.agent_pid();
        if let Some(mut child) = self.child.take() {
            match kill(Pid::from_raw(pid.context("the agent has no process")?), Signal::SIGKILL) {
                Ok(()) | Err(nix::errno::Errno::ESRCH) => child.wait()?,
                Err(error) => return Err(error.into()),
            };
        }
        Ok(())
    }

    /// Stops it where it stands, as a machine that swaps does.
    pub fn freeze_agent(&self) -> Result<()> {
        self.signal_agent(Signal::SIGSTOP)
    }

    pub fn thaw_agent(&self) -> Result<()> {
        self.signal_agent(Signal::SIGCONT)
    }

    fn signal_agent(&self, signal: Signal) -> Result<()> {
        let pid = self.agent_pid().context("no agent runs")?;
        kill(Pid::from_raw(pid), signal).with_context(|| format!("{signal} to the agent"))
    }

    fn log_file(&self) -> PathBuf {
        self.user.home().join("agent.log")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Leaves the agent running when this process ends.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = self.kill_agent();
    }
}
