//! The relay of a campus, run by one user.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::lab::{User, wait_for};

#[derive(Debug)]
pub struct Relay {
    gpunion: PathBuf,
    pub user: User,
    /// How it is started the next time.
    pub setup: Setup,
    address: String,
    child: Child,
}

/// What an operator may choose.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// `relay.toml`; none when empty.
    pub settings: String,
    /// What it tells devices; where it listens when empty.
    pub addresses: Vec<String>,
}

const START: Duration = Duration::from_secs(60);

impl Relay {
    pub(super) fn start(gpunion: &Path, user: User, setup: Setup) -> Result<Self> {
        let address = free_address()?;
        let child = launch(gpunion, &user, &address, &setup)?;
        let mut relay = Self { gpunion: gpunion.to_owned(), user, setup, address, child };
        relay.wait_ready()?;
        Ok(relay)
    }

    fn wait_ready(&mut self) -> Result<()> {
        wait_for("the relay", START, || {
            if let Some(status) = self.child.try_wait()? {
                anyhow::bail!("the relay ended with {status}: {}", self.log());
            }
            // Its own machine's door opens last.
            Ok(std::os::unix::net::UnixStream::connect(self.state().join("relay.sock")).ok().map(drop))
        })
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn state(&self) -> PathBuf {
        state(&self.user)
    }

    /// Where it listens from its next start on.
    pub fn move_to(&mut self, address: String) {
        self.address = address;
    }

    /// What an operator says on the relay's own machine.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = self.user.command(&self.gpunion);
        command.arg("relay").args(words).arg("--state").arg(self.state());
        command
    }

    /// A new invite link, by the operator's command.
    pub fn invite(&self, role: &str) -> Result<String> {
        let mut command = self.command(&["invite", "--role", role]);
        let output = command.arg("--json").output().context("asking for an invite")?;
        ensure!(output.status.success(), "no invite: {}", String::from_utf8_lossy(&output.stderr));
        let made: gpunion_protocol::http::MadeInvite = serde_json::from_slice(&output.stdout)?;
        Ok(made.link)
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// kill -9, as a crash is.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Stops it where it stands: what is sent to it is lost in silence, as behind a cut wire.
    pub fn freeze(&self) -> Result<()> {
        kill(Pid::from_raw(self.pid()), Signal::SIGSTOP).context("stopping the relay")
    }

    pub fn thaw(&self) -> Result<()> {
        kill(Pid::from_raw(self.pid()), Signal::SIGCONT).context("letting the relay go on")
    }

    /// On the same state.
    pub fn start_again(&mut self) -> Result<()> {
        // The socket of the run before would look like this one's.
        let _ = std::fs::remove_file(self.state().join("relay.sock"));
        self.child = launch(&self.gpunion, &self.user, &self.address, &self.setup)?;
        self.wait_ready()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(log(&self.user)).unwrap_or_default()
    }

    /// Leaves it running when this process ends.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

fn log(user: &User) -> PathBuf {
    user.home().join("relay.log")
}

fn state(user: &User) -> PathBuf {
    user.home().join("relay")
}

/// On loopback. It is free now, and nothing else on this machine asks for a port by this number.
pub fn free_address() -> Result<String> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    Ok(format!("127.0.0.1:{port}"))
}

fn launch(gpunion: &Path, user: &User, address: &str, setup: &Setup) -> Result<Child> {
    let out = File::options().create(true).append(true).open(log(user))?;
    let state = state(user);
    if !setup.settings.is_empty() {
        std::fs::create_dir_all(&state)?;
        std::fs::write(state.join("relay.toml"), &setup.settings)?;
        std::os::unix::fs::chown(&state, Some(user.uid()), Some(user.gid()))?;
    }
    let mut command = user.command(gpunion);
    command.args(["relay", "serve", "--listen", address, "--group", super::GROUP]);
    match setup.addresses.as_slice() {
        [] => command.args(["--address", address]),
        addresses => command.args(addresses.iter().flat_map(|address| ["--address", address.as_str()])),
    };
    command.arg("--state").arg(state);
    super::crash::ask(user, &mut command);
    command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
    command.spawn().context("starting the relay")
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
