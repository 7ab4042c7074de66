//! The thread of one channel: lets init in, takes in what it says, sends on what is left over.
//!
//! A guest's own processes can connect too; they are shown out at once and never crowd out init.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use gpunion_protocol::guest::{Decoder, FromInit};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use tokio::sync::mpsc::{Sender, error::TrySendError};

use super::link::{Heard, Shared, What};
use super::peer::Peer;
use crate::config::clock;

const READ: usize = 64 << 10;
/// Strangers shown out in one go, before the others get their turn and the listener rests.
const STRANGERS: usize = 32;
/// How long the listener rests after a crowd of strangers or an error, and how often a full
/// queue of events is tried again (nanoseconds).
const REST: i64 = 10_000_000;

pub(super) struct Listening {
    listener: UnixListener,
    peer: Peer,
    shared: Arc<Shared>,
    events: Sender<Heard>,
    connection: Option<Open>,
    /// Heard, and no room for it yet: nothing more is read until it is through.
    stuck: Option<Heard>,
    rest: bool,
}

struct Open {
    socket: Arc<OwnedFd>,
    decoder: Decoder,
}

struct Ready {
    listener: bool,
    readable: bool,
    writable: bool,
}

impl Listening {
    pub(super) fn new(
        listener: UnixListener,
        peer: Peer,
        shared: Arc<Shared>,
        events: Sender<Heard>,
    ) -> Self {
        Self { listener, peer, shared, events, connection: None, stuck: None, rest: false }
    }

    pub(super) fn run(mut self) {
        while !self.shared.is_closed() {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    tracing::error!("a guest's control channel has ended: {error}");
                    return;
                }
            };
            if ready.writable && self.shared.flush().is_err() {
                self.lost();
            }
            if ready.readable {
                self.hear();
            }
            if ready.listener {
                self.let_in();
            }
            self.retry();
        }
    }

    fn wait(&mut self) -> io::Result<Ready> {
        let rests = std::mem::take(&mut self.rest);
        let pause = Timespec { tv_sec: 0, tv_nsec: REST };
        let limit = (rests || self.stuck.is_some()).then_some(&pause);
        let mut fds = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        // While something is stuck the socket rests too: its hang-up would be told again and again.
        let open = self.connection.as_ref().filter(|_| self.stuck.is_none());
        if let Some(open) = open {
            let write = if self.shared.has_more_to_send() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(&open.socket, PollFlags::IN | write));
        }
        if !rests {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        match rustix::event::poll(&mut fds, limit) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let happened = |index: usize| fds.get(index).map_or(PollFlags::empty(), PollFd::revents);
        if !happened(0).is_empty() {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.shared.wake, &mut count);
        }
        let socket = if open.is_some() { happened(1) } else { PollFlags::empty() };
        Ok(Ready {
            listener: !rests && !happened(1 + usize::from(open.is_some())).is_empty(),
            readable: socket.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR),
            writable: socket.contains(PollFlags::OUT),
        })
    }

    fn let_in(&mut self) {
        for _ in 0..STRANGERS {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Nobody waits any more; or no descriptor is left, and trying at once is no use.
                    self.rest = error.kind() != io::ErrorKind::WouldBlock;
                    return;
                }
            };
            let Some(init) = self.peer.recognise(&stream) else { continue };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.connection.is_some() {
                self.lost();
            }
            let socket = Arc::new(OwnedFd::from(stream));
            self.shared.connected(Arc::clone(&socket), init);
            self.connection = Some(Open { socket, decoder: Decoder::default() });
            self.tell(What::Connected { init });
        }
        self.rest = true;
    }

    fn hear(&mut self) {
        let Some(open) = &mut self.connection else { return };
        let mut bytes = vec![0; READ];
        match rustix::net::recv(open.socket.as_fd(), &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => self.lost(),
            Ok((_, length)) => {
                open.decoder.feed(bytes.get(..length).unwrap_or_default());
                self.take_words();
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => self.lost(),
        }
    }

    fn take_words(&mut self) {
        while self.stuck.is_none() {
            let Some(open) = &mut self.connection else { return };
            match open.decoder.next::<FromInit>() {
                Ok(Some(said)) => {
                    self.tell(What::Said(said));
                }
                Ok(None) => return,
                Err(gpunion_protocol::guest::BadFrame::NoMessage(reason)) => {
                    tracing::warn!("a guest's init said what can't be read: {reason}");
                }
                Err(gpunion_protocol::guest::BadFrame::TooLong(length)) => {
                    tracing::warn!("a guest's init sent a frame of {length} bytes; it must connect anew");
                    return self.lost();
                }
            }
        }
    }

    fn lost(&mut self) {
        if self.connection.take().is_some() {
            self.shared.disconnected();
            self.tell(What::Gone);
        }
    }

    /// Figures are dropped when nobody takes them; everything else is kept until it is taken, and
    /// so is, one after the other, what init keeps for us.
    fn tell(&mut self, what: What) {
        let heard = Heard { at: clock::boot(), what };
        if self.stuck.is_some() {
            // Only the connection's own coming and going gets here, and the last of it counts.
            self.stuck = Some(heard);
            return;
        }
        match self.events.try_send(heard) {
            Ok(()) => {}
            Err(TrySendError::Full(heard)) if is_figure(&heard.what) => {}
            Err(TrySendError::Full(heard)) => self.stuck = Some(heard),
            // Nobody listens any more.
            Err(TrySendError::Closed(_)) => {}
        }
    }

    fn retry(&mut self) {
        let Some(heard) = self.stuck.take() else { return };
        match self.events.try_send(heard) {
            Ok(()) => self.take_words(),
            Err(TrySendError::Full(heard)) => self.stuck = Some(heard),
            Err(TrySendError::Closed(_)) => {}
        }
    }
}

fn is_figure(what: &What) -> bool {
    match what {
        What::Said(FromInit::Usage { .. } | FromInit::Pong { .. } | FromInit::Confused { .. }) => true,
        What::Said(
            FromInit::Hello { .. }
            | FromInit::Started { .. }
            | FromInit::NotStarted { .. }
            | FromInit::Stopped { .. }
            | FromInit::GoingOn { .. }
            | FromInit::Signalled { .. }
            | FromInit::Saved { .. }
            | FromInit::DeadlinePassed
            | FromInit::Exited(_),
        )
        | What::Connected { .. }
        | What::Gone => false,
    }
}
