//! The socket to the agent: non-blocking, framed, with a bounded outbox.
//!
//! It must never make init wait. An agent that does not read costs figures first; when even
//! words that matter pile up, the connection is given up: what matters is told again at the next.

use std::collections::VecDeque;
use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use gpunion_protocol::guest::{BadFrame, Decoder, FromInit, ToInit, encode};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

const OUTBOX_MAX: usize = 256;
const READ: usize = 16 << 10;

/// The connection is of no use any more.
#[derive(Debug)]
pub(crate) struct Lost;

#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
    decoder: Decoder,
    outbox: Outbox,
    ring: Option<OwnedFd>,
}

impl Channel {
    pub(crate) fn connect(path: &Path) -> rustix::io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Of a unix socket a full backlog is an error at once, never a connect in progress.
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self { socket, decoder: Decoder::default(), outbox: Outbox::default(), ring: None })
    }

    pub(crate) fn say(&mut self, message: &FromInit) -> Result<(), Lost> {
        let Ok(frame) = encode(message) else { return Ok(()) };
        self.outbox.push(frame, may_be_dropped(message))?;
        self.flush()
    }

    pub(crate) fn wants_to_write(&self) -> bool {
        !self.outbox.frames.is_empty()
    }

    pub(crate) fn flush(&mut self) -> Result<(), Lost> {
        while let Some(rest) = self.outbox.front() {
            match rustix::net::send(&self.socket, rest, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(length) => self.outbox.sent(length),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(_) => return Err(Lost),
            }
        }
        Ok(())
    }

    /// Takes in what one call gives; `Lost` when the agent is gone.
    pub(crate) fn read(&mut self) -> Result<(), Lost> {
        let mut bytes = [0; READ];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        match rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Ok(got) => {
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                        self.ring = descriptors.last().or(self.ring.take());
                    }
                }
                if got.bytes == 0 {
                    return Err(Lost);
                }
                self.decoder.feed(&bytes[..got.bytes]);
                Ok(())
            }
            Err(Errno::INTR | Errno::AGAIN) => Ok(()),
            Err(_) => Err(Lost),
        }
    }

    pub(crate) fn next_word(&mut self) -> Result<Option<ToInit>, BadFrame> {
        self.decoder.next()
    }

    /// The descriptor that came last and was not taken yet.
    pub(crate) fn take_ring(&mut self) -> Option<File> {
        self.ring.take().map(File::from)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Figures and courtesies; everything else is an answer or a fact that somebody waits for.
fn may_be_dropped(message: &FromInit) -> bool {
    match message {
        FromInit::Usage { .. }
        | FromInit::Pong { .. }
        | FromInit::Confused { .. }
        | FromInit::Signalled { .. } => true,
        FromInit::Hello { .. }
        | FromInit::Started { .. }
        | FromInit::NotStarted { .. }
        | FromInit::Stopped { .. }
        | FromInit::GoingOn { .. }
        | FromInit::Saved { .. }
        | FromInit::DeadlinePassed
        | FromInit::Exited(_) => false,
    }
}

#[derive(Debug, Default)]
struct Outbox {
    frames: VecDeque<(Vec<u8>, bool)>,
    /// Bytes of the first frame that are on their way already; it can't be dropped any more.
    sent: usize,
}

impl Outbox {
    fn push(&mut self, frame: Vec<u8>, droppable: bool) -> Result<(), Lost> {
        if self.frames.len() >= OUTBOX_MAX {
            let started = usize::from(self.sent > 0);
            let oldest = self.frames.iter().skip(started).position(|(_, droppable)| *droppable);
            match oldest {
                Some(at) => drop(self.frames.remove(at + started)),
                None if droppable => return Ok(()),
                None => return Err(Lost),
            }
        }
        self.frames.push_back((frame, droppable));
        Ok(())
    }

    fn front(&self) -> Option<&[u8]> {
        self.frames.front().and_then(|(frame, _)| frame.get(self.sent..))
    }

    fn sent(&mut self, length: usize) {
        self.sent += length;
        if self.frames.front().is_some_and(|(frame, _)| self.sent >= frame.len()) {
            self.frames.pop_front();
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_outbox_is_bounded_and_loses_only_figures(
            steps in proptest::collection::vec((any::<bool>(), 0usize..12), 0..2000),
        ) {
            let mut outbox = Outbox::default();
            let (mut expected, mut seen, mut number) = (Vec::new(), Vec::new(), 0u32);
            let mut drain = |outbox: &mut Outbox, mut length: usize| {
                while length > 0 && let Some(rest) = outbox.front() {
                    let n = rest.len().min(length);
                    seen.extend_from_slice(&rest[..n]);
                    outbox.sent(n);
                    length -= n;
                }
            };
            for (droppable, length) in steps {
                number += 1;
                if outbox.push((number * 2 + u32::from(droppable)).to_le_bytes().to_vec(), droppable).is_err() {
                    prop_assert!(!droppable);
                    break;
                }
                if !droppable {
                    expected.push(number * 2);
                }
                prop_assert!(outbox.frames.len() <= OUTBOX_MAX);
                drain(&mut outbox, length);
            }
            drain(&mut outbox, usize::MAX);
            let numbers = seen.chunks(4).map(|frame| u32::from_le_bytes(frame.try_into().unwrap()));
            let kept: Vec<u32> = numbers.filter(|number| number % 2 == 0).collect();
            prop_assert_eq!(kept, expected);
        }
    }
}
