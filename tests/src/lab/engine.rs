//! One container engine, "a machine": dockerd and a containerd of its own, all below one folder.
//!
//! It is stopped, frozen, killed and started again as real ones are. It has no bridge and touches
//! no packet filter, so several stand side by side with the machine's own.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;

use super::cgroup2;
use super::http::{Body, EngineReply, call};
use super::processes::{self, Identity};
use super::record::{self, Made, unmount_below};
use super::{user, wait_for};

const READY_LIMIT: Duration = Duration::from_secs(90);
const STOP_LIMIT: Duration = Duration::from_secs(15);
const CALL_LIMIT: Duration = Duration::from_secs(60);
const IMPORT_LIMIT: Duration = Duration::from_secs(300);

/// An own containerd, since dockerd would otherwise share the system's, where one runs; without
/// the part for Kubernetes, which is half of it.
const CONTAINERD_CONFIG: &str = "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n";

#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Guests outlive a dockerd that was killed.
    pub live_restore: bool,
    /// A machine with cgroup v2 and nothing else, whatever this one mounts; see `cgroup2.rs`. What
    /// runs on it must be started through `Engine::inside`.
    pub cgroup2: bool,
    /// Further arguments of dockerd.
    pub arguments: Vec<String>,
}

/// Dropping it ends its containers and itself, and removes its folder.
#[derive(Debug)]
pub struct Engine {
    name: String,
    lab: PathBuf,
    dir: PathBuf,
    options: EngineOptions,
    containerd: Option<Daemon>,
    dockerd: Option<Daemon>,
}

#[derive(Debug)]
struct Daemon {
    child: Child,
    identity: Identity,
}

impl Engine {
    /// Starts it; `wait_ready` comes next.
    pub(super) fn launch(lab: &Path, name: &str, options: EngineOptions) -> Result<Self> {
        let dir = lab.join(name);
        fs::create_dir(&dir).with_context(|| format!("making {}", dir.display()))?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
        fs::write(dir.join("dockerd.json"), "{}")?;
        fs::write(dir.join("containerd.toml"), CONTAINERD_CONFIG)?;
        let (name, lab) = (name.to_owned(), lab.to_owned());
        let mut engine = Engine { name, lab, dir, options, containerd: None, dockerd: None };
        engine.spawn()?;
        Ok(engine)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its API, 0660, of the group that `Lab::user` is in.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("docker.sock")
    }

    /// What a user puts into DOCKER_HOST.
    pub fn host(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// The host's pid of dockerd, while it runs.
    pub fn dockerd_pid(&self) -> Option<i32> {
        self.dockerd.as_ref().map(|daemon| daemon.identity.pid)
    }

    /// The host's pid of containerd, while it runs.
    pub fn containerd_pid(&self) -> Option<i32> {
        self.containerd.as_ref().map(|daemon| daemon.identity.pid)
    }

    /// The same program, started on the engine's machine: where `/sys/fs/cgroup` is what the engine
    /// has there. For the agent, which reads its guests' limits and processes.
    pub fn inside(&self, command: Command) -> Result<Command> {
        if !self.options.cgroup2 {
            return Ok(command);
        }
        let daemon = self.containerd.as_ref().or(self.dockerd.as_ref());
        let daemon = daemon.context("the engine's machine is gone with the engine")?;
        Ok(cgroup2::enter(daemon.identity.pid, &command))
    }

    /// A plain call to its API, e.g. `("GET", "/containers/json?all=1", None)`.
    pub fn call(&self, method: &str, path: &str, body: Option<&serde_json::Value>) -> Result<EngineReply> {
        call(&self.socket(), method, path, body.map_or(Body::None, Body::Json), CALL_LIMIT)
    }

    /// Ids of all its containers, running or not.
    pub fn containers(&self) -> Result<Vec<String>> {
        let listed = self.call("GET", "/containers/json?all=1", None)?.ok()?.json()?;
        let listed = listed.as_array().context("the engine lists containers")?;
        Ok(listed.iter().filter_map(|c| Some(c.get("Id")?.as_str()?.to_owned())).collect())
    }

    /// Makes an image of a root file system in a tar file, as `docker import` does. Returns its
    /// id. `tag`: `name:tag`.
    pub fn import(&self, rootfs: &Path, tag: &str) -> Result<String> {
        let (repository, version) = tag.split_once(':').unwrap_or((tag, "latest"));
        let path = format!("/images/create?fromSrc=-&repo={repository}&tag={version}");
        let socket = self.socket();
        let reply = call(&socket, "POST", &path, Body::Tar(rootfs), IMPORT_LIMIT)?.ok()?;
        // A stream of JSON objects: an error in it comes after "200 OK".
        ensure!(!reply.body.contains("\"error\""), "importing {tag}: {}", reply.body.trim());
        let image = self.call("GET", &format!("/images/{repository}:{version}/json"), None)?;
        let id = image.ok()?.json()?;
        Ok(id.get("Id").and_then(|id| id.as_str()).context("an image has an id")?.to_owned())
    }

    /// Stops dockerd and containerd where they stand (SIGSTOP); guests run on.
    pub fn freeze(&self) -> Result<()> {
        self.signal_both(Signal::SIGSTOP)
    }

    /// SIGCONT.
    pub fn thaw(&self) -> Result<()> {
        self.signal_both(Signal::SIGCONT)
    }

    /// kill -9 of dockerd. Its containerd and its guests live on.
    pub fn kill(&mut self) -> Result<()> {
        end(self.dockerd.take(), Signal::SIGKILL)
    }

    /// kill -9 of dockerd and of containerd. The guests live on.
    pub fn kill_both(&mut self) -> Result<()> {
        end(self.dockerd.take(), Signal::SIGKILL)?;
        end(self.containerd.take(), Signal::SIGKILL)
    }

    /// kill -9 of a container's first process that runs `program`: of several, the `which`th. False
    /// when there is none. The engine is not asked.
    pub fn kill_first_process(&self, program: &str, which: usize) -> Result<bool> {
        let mut found = first_processes(&self.dir);
        found.retain(|process| process.program() == program && process.is_alive());
        let Some(process) = found.get(which % found.len().max(1)) else { return Ok(false) };
        process.signal(Signal::SIGKILL)?;
        Ok(true)
    }

    /// Asks dockerd to stop, as the system does at shutdown: it ends its containers (unless
    /// `live_restore`).
    pub fn stop(&mut self) -> Result<()> {
        self.thaw()?;
        end(self.dockerd.take(), Signal::SIGTERM)
    }

    /// Starts what does not run, and waits until the engine answers.
    pub fn start(&mut self) -> Result<()> {
        self.spawn()?;
        self.wait_ready()
    }

    /// Leaves it running when this process ends; see `Lab::keep`.
    pub fn keep(self) {
        std::mem::forget(self);
    }

    pub fn is_ready(&self) -> bool {
        let ping = call(&self.socket(), "GET", "/_ping", Body::None, Duration::from_secs(2));
        ping.is_ok_and(|reply| reply.status == 200)
    }

    pub(super) fn wait_ready(&mut self) -> Result<()> {
        let what = format!("engine {}", self.name);
        wait_for(&what, READY_LIMIT, || {
            for daemon in [&mut self.containerd, &mut self.dockerd].into_iter().flatten() {
                if let Some(status) = daemon.child.try_wait()? {
                    bail!("it ended at once ({status}): {}", last_lines(&self.dir));
                }
            }
            Ok(self.is_ready().then_some(()))
        })
        .with_context(|| last_lines(&self.dir))
    }

    fn spawn(&mut self) -> Result<()> {
        if self.containerd.is_none() {
            let socket = self.dir.join("c/containerd.sock");
            // The one of a containerd that was killed says nothing of the next.
            let _ = fs::remove_file(&socket);
            let arguments = [
                ("--config", self.dir.join("containerd.toml")),
                ("--root", self.dir.join("containerd")),
                ("--state", self.dir.join("c")),
                ("--address", socket.clone()),
            ];
            let mut command = Command::new("containerd");
            for (option, value) in arguments {
                command.arg(option).arg(value);
            }
            command.args(["--log-level", "warn"]);
            let command = match (&self.dockerd, self.options.cgroup2) {
                (_, false) => command,
                // A containerd that was killed comes back to where its dockerd has its mounts.
                (Some(dockerd), true) => cgroup2::enter(dockerd.identity.pid, &command),
                (None, true) => cgroup2::found(&command),
            };
            self.containerd = Some(self.daemon(command, "containerd.log")?);
            wait_for("containerd's socket", READY_LIMIT, || Ok(socket.exists().then_some(())))
                .with_context(|| last_lines(&self.dir))?;
        }
        if self.dockerd.is_none() {
            let _ = fs::remove_file(self.dir.join("dockerd.pid"));
            self.dockerd = Some(self.daemon(self.inside(self.dockerd_command())?, "dockerd.log")?);
        }
        Ok(())
    }

    fn dockerd_command(&self) -> Command {
        let mut command = Command::new("dockerd");
        let arguments = [
            ("--config-file", self.dir.join("dockerd.json")),
            ("--containerd", self.dir.join("c/containerd.sock")),
            ("--data-root", self.dir.join("data")),
            ("--exec-root", self.dir.join("e")),
            ("--pidfile", self.dir.join("dockerd.pid")),
        ];
        for (option, value) in arguments {
            command.arg(option).arg(value);
        }
        command
            .args(["--host", &self.host(), "--group", user::GROUP])
            .args(["--bridge", "none", "--iptables=false", "--ip6tables=false"])
            .args(["--ip-forward=false", "--userland-proxy=false", "--log-level", "warn"]);
        if self.options.live_restore {
            command.arg("--live-restore");
        }
        command.args(&self.options.arguments);
        command
    }

    /// Apart from our process group: a Ctrl-C on the terminal is for the lab, which then ends it
    /// in order.
    fn daemon(&self, mut command: Command, log: &str) -> Result<Daemon> {
        let log = File::options().create(true).append(true).open(self.dir.join(log))?;
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command
            .process_group(0)
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| {
                format!("starting {program}: install a container engine (apt-get install docker.io)")
            })?;
        let identity = Identity::of(child.id() as i32)
            .with_context(|| format!("{program} is gone before it started"))?;
        record::add(&self.lab, &Made::Daemon(identity))?;
        Ok(Daemon { child, identity })
    }

    fn signal_both(&self, signal: Signal) -> Result<()> {
        for daemon in [&self.dockerd, &self.containerd].into_iter().flatten() {
            daemon.identity.signal(signal)?;
        }
        Ok(())
    }

    fn take_down(&mut self) -> Result<()> {
        self.thaw()?;
        if self.is_ready() {
            for container in self.containers()? {
                // What can't be removed this way is ended below.
                let _ = self.call("DELETE", &format!("/containers/{container}?force=1"), None);
            }
        }
        end(self.dockerd.take(), Signal::SIGTERM)?;
        end_containers(&self.dir)?;
        end(self.containerd.take(), Signal::SIGTERM)?;
        unmount_below(&self.dir)?;
        fs::remove_dir_all(&self.dir).with_context(|| format!("removing {}", self.dir.display()))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Err(error) = self.take_down() {
            record::complain(&format!("taking down engine {}: {error:#}", self.name));
        }
    }
}

/// Sends the signal and reaps; SIGKILL when it takes too long.
fn end(daemon: Option<Daemon>, signal: Signal) -> Result<()> {
    let Some(Daemon { mut child, identity }) = daemon else { return Ok(()) };
    identity.signal(signal)?;
    let ended = wait_for("a daemon's end", STOP_LIMIT, || Ok(child.try_wait()?.map(drop)));
    if ended.is_err() {
        child.kill()?;
        child.wait()?;
    }
    Ok(())
}

/// Each container has a shim, which names its containerd's socket.
fn shims(dir: &Path) -> Vec<Identity> {
    processes::with_argument("containerd-shim", &format!("{}/", dir.display()))
}

fn first_processes(dir: &Path) -> Vec<Identity> {
    shims(dir).into_iter().flat_map(processes::children).collect()
}

/// Containers outlive dockerd and containerd.
pub(super) fn end_containers(dir: &Path) -> Result<()> {
    for shim in shims(dir) {
        for container in processes::children(shim) {
            container.end()?;
        }
        shim.end()?;
    }
    Ok(())
}

/// Why it did not start is at the end of its logs.
fn last_lines(dir: &Path) -> String {
    let mut text = String::new();
    for log in ["containerd.log", "dockerd.log"] {
        let lines = fs::read_to_string(dir.join(log)).unwrap_or_default();
        let lines: Vec<&str> = lines.lines().collect();
        text.push_str(&format!("\n{log}: {}", lines[lines.len().saturating_sub(5)..].join("\n")));
    }
    text
}
