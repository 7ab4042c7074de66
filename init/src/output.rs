//! Carries the program's stdout and stderr into the ring, in a thread of its own.
//!
//! A thread, because a write to the agent's file may be held up by the kernel (a full disk that
//! is slow, a throttled writer), and words about stopping must not wait behind it. The pipe is
//! always drained, ring or no ring; what can't be written is dropped.

use std::fs::File;
use std::io::{self, PipeReader, Read};
use std::sync::{Arc, Mutex, PoisonError};

use crate::ring::Ring;
use crate::threads::{FromThread, Wake};

const CHUNK: usize = 64 << 10;

/// Where the next ring is left for the thread that writes.
#[derive(Debug, Clone, Default)]
pub(crate) struct NextRing(Arc<Mutex<Option<File>>>);

impl NextRing {
    pub(crate) fn put(&self, file: File) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
    }

    fn take(&self) -> Option<File> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Returns when nobody holds the other end any more.
pub(crate) fn copy(mut output: PipeReader, next: &NextRing, wake: &Wake) {
    let mut ring = None;
    let mut buffer = vec![0; CHUNK];
    loop {
        match output.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => {
                if let Some(file) = next.take() {
                    ring = Ring::adopt(file).ok().or(ring);
                }
                if let Some(ring) = &mut ring {
                    // A full disk costs output, never the program.
                    let _dropped = ring.write(&buffer[..length]);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    wake.tell(FromThread::OutputEnded);
}
