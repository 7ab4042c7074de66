//! The end of one process, told by the kernel the moment it happens, and of no other process
//! that gets its number later. Works for processes of every user.
//!
//! Where the kernel gives no descriptor of it (too old, a filter, none left) it is looked for
//! again and again instead: whoever waits for an end must hear of it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use gpunion_protocol::time::Millis;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::config::clock;
use crate::gpu::{ProcessId, start_time};

/// Names the process that has this pid now.
pub fn identify(pid: u32) -> Option<ProcessId> {
    Some(ProcessId { pid, start_time: start_time(pid)? })
}

/// How often it is looked for without a descriptor.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct Watched {
    /// Or none, and it is looked for.
    pidfd: Option<OwnedFd>,
    process: ProcessId,
}

impl Watched {
    /// `None`: it has ended already.
    pub fn open(process: ProcessId) -> io::Result<Option<Self>> {
        let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        Ok(Self::opened(process, rustix::process::pidfd_open(pid, PidfdFlags::empty())))
    }

    fn opened(process: ProcessId, pidfd: Result<OwnedFd, Errno>) -> Option<Self> {
        let pidfd = match pidfd {
            Ok(pidfd) => Some(pidfd),
            Err(Errno::SRCH) => return None,
            Err(error) => {
                tracing::debug!(pid = process.pid, "no descriptor of it ({error}); it is looked for");
                None
            }
        };
        // Held by the descriptor the pid can't change any more: if it is still the right one now,
        // it is the right one for ever.
        (start_time(process.pid) == Some(process.start_time)).then_some(Self { pidfd, process })
    }

    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// Waits in this thread; true when it has ended.
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        let until = clock::boot() + Millis(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        loop {
            let left = (until - clock::boot()).as_std();
            let ended = match &self.pidfd {
                Some(pidfd) => poll_end(pidfd.as_fd(), &Timespec::try_from(left).map_err(io::Error::other)?),
                None if self.is_over() => Ok(true),
                None => {
                    std::thread::sleep(left.min(LOOK));
                    Ok(self.is_over())
                }
            };
            match ended {
                Ok(true) => return Ok(true),
                Ok(false) if clock::boot() >= until => return Ok(false),
                Ok(false) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub async fn ended(&self) -> io::Result<()> {
        if let Some(pidfd) = &self.pidfd {
            match readable(pidfd.as_fd()).await {
                Ok(()) => return Ok(()),
                Err(error) => tracing::debug!("a descriptor can't be waited on ({error}); looking instead"),
            }
        }
        while !self.is_over() {
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// A zombie does nothing more; who reaps it, and when, is the engine's business.
    fn is_over(&self) -> bool {
        start_time(self.process.pid) != Some(self.process.start_time) || is_zombie(self.process.pid)
    }
}

fn is_zombie(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

#[expect(
    deprecated,
    reason = "its successor is unsafe code; this descriptor is borrowed for longer than it is waited on"
)]
async fn readable(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    let pidfd = AsyncFd::with_interest(pidfd, Interest::READABLE)?;
    let _guard = pidfd.readable().await?;
    Ok(())
}

fn poll_end(pidfd: BorrowedFd<'_>, time: &Timespec) -> Result<bool, Errno> {
    let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    Ok(rustix::event::poll(&mut fds, Some(time))? > 0)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// As on a kernel without them, or under a filter that forbids them.
    #[tokio::test]
    async fn without_a_descriptor_the_end_is_heard_of_all_the_same() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let process = identify(child.id()).unwrap();
        for error in [Errno::NOSYS, Errno::PERM, Errno::MFILE, Errno::INVAL] {
            let watched = Watched::opened(process, Err(error)).unwrap();
            assert!(!watched.wait(Duration::from_millis(10)).unwrap(), "{error}");
        }
        let (watched, other) =
            (Watched::opened(process, Err(Errno::NOSYS)).unwrap(), Watched::open(process).unwrap().unwrap());
        child.kill().unwrap();
        // Not reaped yet: it is a zombie, and over.
        for watched in [&watched, &other] {
            tokio::time::timeout(Duration::from_secs(20), watched.ended()).await.unwrap().unwrap();
            assert!(watched.wait(Duration::ZERO).unwrap());
        }
        child.wait().unwrap();
        assert!(Watched::opened(process, Err(Errno::NOSYS)).is_none());
    }
}
