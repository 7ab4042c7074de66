//! How init's few side threads report to its one loop: a message, and a byte that wakes it.
//!
//! They exist for what may block (starting a program, writing a file, walking a workspace);
//! the loop that serves the owner never does.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::events::Usage;

/// Starting, output, counting and watching report once each at a time; so many never wait for each other.
const PENDING_MAX: usize = 8;
const STACK: usize = 256 << 10;

#[derive(Debug)]
pub(crate) enum FromThread {
    Launched(Result<i32, String>),
    OutputEnded,
    Counted { usage: Option<Usage>, took_us: u64 },
    SpaceTaken,
}

#[derive(Debug, Clone)]
pub(crate) struct Wake {
    sender: SyncSender<FromThread>,
    pipe: Arc<OwnedFd>,
}

#[derive(Debug)]
pub(crate) struct Reports {
    receiver: Receiver<FromThread>,
    pipe: OwnedFd,
}

pub(crate) fn reports() -> rustix::io::Result<(Wake, Reports)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let (sender, receiver) = sync_channel(PENDING_MAX);
    Ok((Wake { sender, pipe: Arc::new(writer) }, Reports { receiver, pipe: reader }))
}

/// Starts a thread at the lowest priority, which what it starts inherits; init itself keeps its
/// own, so that a guest that computes on every core can't slow down the answer to the owner.
pub(crate) fn start(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let body = move || {
        // Failing only costs politeness.
        let _nice = rustix::process::setpriority_process(None, 19);
        work();
    };
    thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(body).map(drop)
}

impl Wake {
    pub(crate) fn tell(&self, report: FromThread) {
        // The loop lives as long as the process; a full pipe wakes it just as well.
        let _sent = self.sender.send(report);
        let _woken = rustix::io::write(&*self.pipe, b"!");
    }
}

impl Reports {
    /// The next report, without waiting.
    pub(crate) fn next(&self) -> Option<FromThread> {
        self.receiver.try_recv().ok()
    }

    /// Takes the bytes that woke the loop.
    pub(crate) fn clear(&self) {
        let mut bytes = [0; 64];
        while rustix::io::read(&self.pipe, &mut bytes).is_ok_and(|length| length > 0) {}
    }
}

impl AsFd for Reports {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}
