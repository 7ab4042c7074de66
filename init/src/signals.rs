//! The signals that init takes: children that ended, and the engine's wish to end the guest.
//!
//! Taken through a descriptor, with no handler installed. The kernel keeps from PID 1 what it
//! has no handler for; what is blocked for the descriptor does reach it, so who sent it is
//! looked at: a process of the guest must not be able to end the guest by a signal to init.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::{WaitOptions, wait};

use gpunion_protocol::guest::Exit;

/// Sent with plain `kill`, which no sender can pretend.
const SI_USER: i32 = 0;

#[derive(Debug)]
pub(crate) struct Signals {
    taken: SignalFd,
}

impl Signals {
    /// To be called before any thread starts: they inherit what is blocked.
    pub(crate) fn take() -> nix::Result<Self> {
        // What images name as their stop signal, beside the usual one.
        let ends = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP];
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGCHLD);
        ends.into_iter().for_each(|signal| mask.add(signal));
        mask.thread_block()?;
        Ok(Self { taken: SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)? })
    }

    /// Takes all signals that wait; whether the engine is among those who asked for the end.
    pub(crate) fn end_asked(&self) -> bool {
        let mut asked = false;
        while let Ok(Some(signal)) = self.taken.read_signal() {
            let end = signal.ssi_signo != Signal::SIGCHLD as u32;
            // A sender outside this PID namespace has no pid in it.
            asked |= end && signal.ssi_pid == 0 && signal.ssi_code == SI_USER;
        }
        asked
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.taken.as_fd()
    }
}

/// The next child that ended, or orphan that was left to init.
pub(crate) fn reap() -> Option<(i32, Exit)> {
    loop {
        let (pid, status) = wait(WaitOptions::NOHANG).ok()??;
        let exit = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Exit::Code { code },
            (None, Some(signal)) => Exit::Signal { signal },
            (None, None) => continue,
        };
        return Some((pid.as_raw_nonzero().get(), exit));
    }
}
