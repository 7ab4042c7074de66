//! A connection to the outside that is counted and guarded: each byte passes the gate, is on the
//! books, and shows that the connection is not idle.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use gpunion_protocol::time::{BootMs, Millis};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::gate::Gate;
use super::ledger::Counts;
use crate::config::clock;

/// A connection that moves nothing for so long is closed.
const IDLE: Millis = Millis::from_secs(300);
const LOOK: Duration = Duration::from_secs(5);

/// When something moved last.
#[derive(Debug)]
pub(super) struct Pulse(AtomicU64);

impl Pulse {
    fn beat(&self) {
        self.0.store(clock::boot().0, Ordering::Relaxed);
    }

    /// Returns when nothing has moved for too long.
    pub(super) async fn stops(&self) {
        while clock::boot() - BootMs(self.0.load(Ordering::Relaxed)) < IDLE {
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[derive(Debug)]
pub(super) struct Metered<S> {
    inner: S,
    gate: Arc<Gate>,
    counts: [Arc<Counts>; 2],
    pulse: Arc<Pulse>,
}

impl<S> Metered<S> {
    pub(super) fn new(inner: S, gate: Arc<Gate>, counts: [Arc<Counts>; 2]) -> Self {
        let pulse = Arc::new(Pulse(AtomicU64::new(clock::boot().0)));
        Self { inner, gate, counts, pulse }
    }

    pub(super) fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    fn pass(&self) -> io::Result<()> {
        if self.gate.is_open() { Ok(()) } else { Err(io::Error::other("the lease has run out")) }
    }

    fn moved(&self, bytes: usize, counter: impl Fn(&Counts) -> &AtomicU64) {
        if bytes > 0 {
            self.pulse.beat();
            for counts in &self.counts {
                counter(counts).fetch_add(bytes as u64, Ordering::Relaxed);
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.pass()?;
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        self.moved(buffer.filled().len() - before, |counts| &counts.down);
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.pass()?;
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = &polled {
            self.moved(*written, |counts| &counts.up);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
