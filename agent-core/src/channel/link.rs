//! What a channel's thread and its handles share: the connection, and what waits to be sent. The
//! lock is held for non-blocking work only.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpunion_protocol::guest::{FromInit, ToInit, encode};
use gpunion_protocol::time::BootMs;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::error::ChannelError;
use crate::gpu::ProcessId;

/// Something came over the channel, and when (CLOCK_BOOTTIME).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    pub at: BootMs,
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The guest's init has connected; its `Hello` follows.
    Connected {
        init: ProcessId,
    },
    Said(FromInit),
    /// The connection ended: init ended, or will connect anew.
    Gone,
}

/// Frames that may wait; init reads at once, so more than a few mean that it does not.
const OUTBOX: usize = 64;

pub(super) struct Shared {
    state: Mutex<State>,
    /// Wakes the thread.
    pub(super) wake: OwnedFd,
    ring: File,
}

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    /// Kept after the connection ended, to watch for its end.
    init: Option<ProcessId>,
    closed: bool,
}

struct Connection {
    socket: Arc<OwnedFd>,
    outbox: VecDeque<Frame>,
}

struct Frame {
    bytes: Vec<u8>,
    sent: usize,
    with_ring: bool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl Shared {
    pub(super) fn new(wake: OwnedFd, ring: File) -> Self {
        Self { state: Mutex::default(), wake, ring }
    }

    pub(super) fn init(&self) -> Option<ProcessId> {
        self.lock().init
    }

    pub(super) fn is_connected(&self) -> bool {
        self.lock().connection.is_some()
    }

    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        drop(state);
        self.wake();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn wake(&self) {
        // Full means that it is awake anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Writes the word onto the socket at once, as far as it goes.
    pub(super) fn send(&self, word: &ToInit) -> Result<(), ChannelError> {
        let bytes = encode(word)?;
        let with_ring = match word {
            ToInit::Begin(_) | ToInit::Adopt { .. } => true,
            ToInit::Stop { .. }
            | ToInit::GoOn { .. }
            | ToInit::End { .. }
            | ToInit::Signal { .. }
            | ToInit::Leave { .. }
            | ToInit::Deadline { .. }
            | ToInit::ExitSeen
            | ToInit::Ping { .. } => false,
        };
        let mut state = self.lock();
        let connection = state.connection.as_mut().ok_or(ChannelError::NotConnected)?;
        if connection.outbox.len() >= OUTBOX {
            return Err(ChannelError::Full(connection.outbox.len()));
        }
        connection.outbox.push_back(Frame { bytes, sent: 0, with_ring });
        let whole = flush(connection, &self.ring)?;
        drop(state);
        if !whole {
            self.wake();
        }
        Ok(())
    }

    /// For the thread: goes on with what did not go out at once. True: nothing is left.
    pub(super) fn flush(&self) -> io::Result<bool> {
        match self.lock().connection.as_mut() {
            Some(connection) => flush(connection, &self.ring),
            None => Ok(true),
        }
    }

    pub(super) fn has_more_to_send(&self) -> bool {
        self.lock().connection.as_ref().is_some_and(|connection| !connection.outbox.is_empty())
    }

    pub(super) fn connected(&self, socket: Arc<OwnedFd>, init: ProcessId) {
        let mut state = self.lock();
        state.connection = Some(Connection { socket, outbox: VecDeque::new() });
        state.init = Some(init);
    }

    pub(super) fn disconnected(&self) {
        self.lock().connection = None;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn flush(connection: &mut Connection, ring: &File) -> io::Result<bool> {
    while let Some(frame) = connection.outbox.front_mut() {
        match send_some(&connection.socket, frame, ring) {
            Ok(sent) => frame.sent += sent,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        if frame.sent >= frame.bytes.len() {
            connection.outbox.pop_front();
        }
    }
    Ok(true)
}

fn send_some(socket: &OwnedFd, frame: &Frame, ring: &File) -> Result<usize, Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let rest = frame.bytes.get(frame.sent..).unwrap_or_default();
    if !frame.with_ring || frame.sent > 0 {
        return rustix::net::send(socket, rest, flags);
    }
    // The descriptor travels with the frame's first byte.
    let descriptors = [ring.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(socket, &[IoSlice::new(rest)], &mut control, flags)
}
