//! The handle on one guest's channel. Saying never blocks; answers come with all else that is heard.

use std::io;
use std::sync::Arc;

use gpunion_protocol::guest::ToInit;
use rustix::event::EventfdFlags;
use tokio::sync::mpsc;

use super::control_dir::ControlDir;
use super::error::ChannelError;
use super::link::{Heard, Shared};
use super::peer::Peer;
use super::ring::Ring;
use super::thread::Listening;
use crate::gpu::ProcessId;

/// Events that may wait for the driver.
const EVENTS: usize = 1024;

/// The channel ends, and its thread with it, when the last clone is dropped.
#[derive(Debug, Clone)]
pub struct Channel {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.close();
    }
}

impl Channel {
    /// Listens in the guest's control folder. Call it before the guest starts, and after a
    /// restart of the agent for each guest that goes on.
    pub fn listen(folder: &ControlDir, peer: Peer, ring: Ring) -> io::Result<(Self, mpsc::Receiver<Heard>)> {
        let listener = folder.bind()?;
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared::new(wake, ring.file));
        let (events, heard) = mpsc::channel(EVENTS);
        let listening = Listening::new(listener, peer, Arc::clone(&shared), events);
        std::thread::Builder::new().name("guest-channel".to_owned()).spawn(move || listening.run())?;
        Ok((Self { inner: Arc::new(Inner { shared }) }, heard))
    }

    /// Says a word; the ring goes along with `Begin` and `Adopt`. Never blocks.
    pub fn send(&self, word: &ToInit) -> Result<(), ChannelError> {
        self.inner.shared.send(word)
    }

    pub fn is_connected(&self) -> bool {
        self.inner.shared.is_connected()
    }

    /// The guest's init, once it has connected; kept after the connection ended.
    pub fn init(&self) -> Option<ProcessId> {
        self.inner.shared.init()
    }
}
