//! Handing over to a program of ours that works with engines and users, and the broom after it.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::Pid;

use crate::command::{as_root, run, show};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// With this code; it said all by itself.
    With(u8),
    /// By a signal: it could say nothing.
    Killed,
}

/// Runs it to its end. A Ctrl-C on the terminal reaches it by itself: it is in our process group.
/// We stay, since it must clean up, and pass on what was sent to us alone.
pub(crate) fn hand_over(mut command: Command) -> Result<Ended> {
    let mut child = command.spawn().with_context(|| format!("starting {}", show(&command)))?;
    let mut mask = SigSet::empty();
    mask.add(Signal::SIGINT);
    mask.add(Signal::SIGTERM);
    mask.add(Signal::SIGCHLD);
    mask.thread_block()?;
    let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    loop {
        if let Some(status) = child.try_wait()? {
            let code = status.code().map(|code| u8::try_from(code).unwrap_or(1));
            return Ok(code.map_or(Ended::Killed, Ended::With));
        }
        let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        // Once a second too: a child that ended before the mask was set sends no more signal.
        poll(&mut fds, PollTimeout::from(1000u16))?;
        while let Some(signal) = signals.read_signal()? {
            // From a process, not from the terminal (which told the child, too).
            let from_a_process = signal.ssi_pid != 0 && signal.ssi_signo != Signal::SIGCHLD as u32;
            if from_a_process && let Ok(signal) = Signal::try_from(signal.ssi_signo as i32) {
                // It may have ended this moment.
                let _ = kill(Pid::from_raw(child.id() as i32), signal);
            }
        }
    }
}

/// Removes what labs of programs that were killed left: in their usual place, or in this one.
pub(crate) fn sweep(programs: &Path, place: Option<&str>) -> Result<()> {
    run(as_root(programs.join("lab"))?.arg("clean").args(place))
}
