//! Processes of the host as /proc shows them: who they are, and ending them.
//!
//! A process id alone may have been given to somebody else by now, so an identity here is (pid,
//! start time).

use std::fs;
use std::time::Duration;

use anyhow::Result;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::wait_for;

/// `start`: clock ticks after boot, field 22 of /proc/PID/stat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) pid: i32,
    pub(super) start: u64,
}

impl Identity {
    pub(super) fn of(pid: i32) -> Option<Self> {
        let (_, fields) = stat(pid)?;
        Some(Identity { pid, start: fields.get(19)?.parse().ok()? })
    }

    /// A zombie waits only for its parent: it does nothing more and holds nothing.
    pub(super) fn is_alive(self) -> bool {
        Identity::of(self.pid) == Some(self)
            && stat(self.pid).is_some_and(|(_, fields)| !fields[0].starts_with(['Z', 'X']))
    }

    /// The program that it was started as.
    pub(super) fn program(self) -> String {
        let arguments = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let program = arguments.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(program).into_owned()
    }

    pub(super) fn signal(self, signal: Signal) -> Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        match kill(Pid::from_raw(self.pid), signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// SIGKILL, and waits until it is gone.
    pub(super) fn end(self) -> Result<()> {
        self.thaw();
        self.signal(Signal::SIGKILL)?;
        wait_for(&format!("the end of process {}", self.pid), Duration::from_secs(20), || {
            Ok((!self.is_alive()).then_some(()))
        })
    }

    /// On cgroup v1 SIGKILL waits for as long as a container is frozen.
    fn thaw(self) {
        let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).unwrap_or_default();
        for line in cgroups.lines() {
            if let Some((_, path)) = line.split_once(":freezer:")
                && path != "/"
            {
                let state = format!("/sys/fs/cgroup/freezer{path}/freezer.state");
                // Where there is none, nothing is frozen.
                let _ = fs::write(state, "THAWED");
            }
        }
    }
}

/// (name, the fields after it) of /proc/PID/stat; the name may hold anything, so from its last
/// parenthesis.
fn stat(pid: i32) -> Option<(String, Vec<String>)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (head, tail) = text.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    Some((name, tail.split_whitespace().map(str::to_owned).collect()))
}

pub(super) fn all() -> Vec<Identity> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(Identity::of).collect()
}

pub(super) fn children(parent: Identity) -> Vec<Identity> {
    let is_child =
        |process: &Identity| stat(process.pid).is_some_and(|(_, fields)| fields[1] == parent.pid.to_string());
    all().into_iter().filter(is_child).collect()
}

/// All processes that run as this user.
pub(super) fn of_user(uid: u32) -> Vec<Identity> {
    let runs_as = |process: &Identity| {
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid));
        let status = status.unwrap_or_default();
        let uids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        uids.is_some_and(|uids| uids.split_whitespace().any(|field| field == uid.to_string()))
    };
    all().into_iter().filter(runs_as).collect()
}

/// Processes whose program has such a name and one of whose arguments starts with `prefix`.
pub(super) fn with_argument(program_prefix: &str, prefix: &str) -> Vec<Identity> {
    let fits = |process: &Identity| {
        let arguments = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
        let mut arguments = arguments.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let program = arguments.next().unwrap_or_default();
        let name = program.rsplit('/').next().unwrap_or_default();
        name.starts_with(program_prefix) && arguments.any(|argument| argument.starts_with(prefix))
    };
    all().into_iter().filter(fits).collect()
}
