//! Carries connections from the guest's own loopback to the agent's proxy, in a thread of its own.
//!
//! It reads nothing of what it carries and decides nothing: what may be reached is the agent's
//! business, and without the agent nothing is. Connections and buffers are bounded, whatever the
//! guest does; more connections than that wait in the listener's queue.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use gpunion_protocol::guest::{EGRESS_DIR, EGRESS_PORT, EGRESS_SOCKET};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, connect, socket_with,
};

use crate::lane::{Broken, Lane};
use crate::threads;

/// As many as the agent takes.
const PAIRS: usize = 32;
/// Buffers that one pair may move before the others get their turn.
const TURNS: usize = 16;
const LISTENER: u64 = u64::MAX;
/// How long the listener rests when it is full, or no descriptor is left.
const REST: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Listens before the program starts, so that nobody else has the port.
pub(crate) fn start() -> io::Result<()> {
    let at = SocketAddrV4::new(Ipv4Addr::LOCALHOST, EGRESS_PORT);
    let listener = TcpListener::bind(at)
        .map_err(|error| io::Error::new(error.kind(), format!("{at} can't be had: {error}")))?;
    listener.set_nonblocking(true)?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut carrying = Carrying { listener, epoll, pairs: Vec::new(), listens: true, rests: false };
    carrying.pairs.resize_with(PAIRS, || None);
    // What breaks it would break everything else of init as well.
    threads::start("egress", move || while carrying.turn().is_ok() {})
}

struct Carrying {
    listener: TcpListener,
    epoll: OwnedFd,
    pairs: Vec<Option<Pair>>,
    /// The listener is waited for: there is room.
    listens: bool,
    /// No descriptor was left; it is tried again in a moment.
    rests: bool,
}

/// A connection of the guest's, and the one to the agent.
struct Pair {
    inner: OwnedFd,
    outer: OwnedFd,
    out: Lane,
    back: Lane,
    /// It had more to move when its turn was over.
    busy: bool,
}

impl Carrying {
    fn turn(&mut self) -> io::Result<()> {
        let busy = self.pairs.iter().flatten().any(|pair| pair.busy);
        let limit = if busy { Some(&AT_ONCE) } else { self.rests.then_some(&REST) };
        let mut happened = Vec::with_capacity(2 * PAIRS + 1);
        match epoll::wait(&self.epoll, spare_capacity(&mut happened), limit) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let woken: Vec<usize> =
            happened.iter().filter_map(|event| usize::try_from(event.data.u64()).ok()).collect();
        for (at, place) in self.pairs.iter_mut().enumerate() {
            if let Some(pair) = place
                && (pair.busy || woken.contains(&at))
                && !matches!(pair.carry(), Ok(true))
            {
                // Closing both ends tells both sides.
                *place = None;
            }
        }
        if !self.listens || happened.iter().any(|event| event.data.u64() == LISTENER) {
            self.let_in()?;
        }
        Ok(())
    }

    fn let_in(&mut self) -> io::Result<()> {
        self.rests = false;
        for _ in 0..PAIRS {
            let Some(at) = self.pairs.iter().position(Option::is_none) else { break };
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(inner) => self.pairs[at] = self.pair(at, inner).ok(),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(_) => {
                    self.rests = true;
                    break;
                }
            }
        }
        let listens = !self.rests && self.pairs.iter().any(Option::is_none);
        if listens != self.listens {
            self.listens = listens;
            let flags = if listens { EventFlags::IN } else { EventFlags::empty() };
            epoll::modify(&self.epoll, &self.listener, EventData::new_u64(LISTENER), flags)?;
        }
        Ok(())
    }

    /// An agent that is away costs this connection; the next may find it.
    fn pair(&self, at: usize, inner: OwnedFd) -> rustix::io::Result<Pair> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let outer = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&outer, &SocketAddrUnix::new(Path::new(EGRESS_DIR).join(EGRESS_SOCKET))?)?;
        for end in [&inner, &outer] {
            // By edges: whatever can be moved is moved until nothing can.
            let all = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
            epoll::add(&self.epoll, end, EventData::new_u64(at as u64), all)?;
        }
        Ok(Pair { inner, outer, out: Lane::default(), back: Lane::default(), busy: true })
    }
}

impl Pair {
    /// False: both ways are over.
    fn carry(&mut self) -> Result<bool, Broken> {
        for _ in 0..TURNS {
            let out = self.out.step(self.inner.as_fd(), self.outer.as_fd())?;
            let back = self.back.step(self.outer.as_fd(), self.inner.as_fd())?;
            if self.out.is_over() && self.back.is_over() {
                return Ok(false);
            }
            if !out && !back {
                self.busy = false;
                return Ok(true);
            }
        }
        self.busy = true;
        Ok(true)
    }
}
