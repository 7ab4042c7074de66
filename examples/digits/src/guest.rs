//! What the program and its surroundings say to each other: SIGTERM, and the files in
//! `/run/gpunion`.
//!
//! As a guest of GPUnion the contract is: creating `saved` says "I have saved"; who must leave
//! saves, says so, and goes on until it is ended. Without `/run/gpunion` SIGTERM ends the program
//! the usual way. GPUnion is never needed: the same program runs on any machine.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::AsFd;

#[derive(Debug)]
pub(crate) struct Guest {
    run: PathBuf,
    terminate: SignalFd,
}

impl Guest {
    /// From here on SIGTERM no longer ends the program: it is seen at the next `pause`.
    pub(crate) fn listen(run: PathBuf) -> Result<Self, String> {
        let mut mask = SigSet::empty();
        mask.add(Signal::SIGTERM);
        let listen = || {
            mask.thread_block()?;
            SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        };
        let terminate = listen().map_err(|e| format!("can't listen for SIGTERM: {e}"))?;
        Ok(Guest { run, terminate })
    }

    /// Waits this long; sooner back, and true, when SIGTERM has come.
    pub(crate) fn pause(&self, time: Duration) -> Result<bool, String> {
        let wait = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.terminate.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, wait) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(format!("can't wait for SIGTERM: {e}")),
        }
        let signal = self.terminate.read_signal();
        signal.map(|s| s.is_some()).map_err(|e| format!("can't read SIGTERM: {e}"))
    }

    /// Runs inside GPUnion, where a job that must leave is ended from outside.
    pub(crate) fn is_hosted(&self) -> bool {
        self.run.is_dir()
    }

    /// Says that all is saved. Not being able to say so is told, but fails no training.
    pub(crate) fn say_saved(&self) -> Result<(), String> {
        if !self.is_hosted() {
            return Ok(());
        }
        let path = self.run.join("saved");
        File::create(&path).map(drop).map_err(|e| format!("can't create {}: {e}", path.display()))
    }
}
