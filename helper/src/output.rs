//! Stdout that a deaf agent can't hold us at: never blocks for good, and gives up once the end of
//! stdin has said that nobody wants the answer.

use std::io::{self, Stdout, Write};

use gpunion_snapshot::Cancel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// How often the flag is looked at while the pipe is full, in nanoseconds.
const LOOK: i64 = 100_000_000;

pub(crate) struct Output {
    stdout: Stdout,
    cancel: Cancel,
}

impl Output {
    pub(crate) fn new(cancel: Cancel) -> Self {
        let stdout = io::stdout();
        if let Ok(flags) = fcntl_getfl(&stdout) {
            // Where this can't be set a full pipe blocks; all else works the same.
            let _ = fcntl_setfl(&stdout, flags | OFlags::NONBLOCK);
        }
        Self { stdout, cancel }
    }

    fn wait(&self) -> io::Result<()> {
        if self.cancel.is_cancelled() {
            return Err(io::Error::other("the agent is gone"));
        }
        let look = Timespec { tv_sec: 0, tv_nsec: LOOK };
        match poll(&mut [PollFd::new(&self.stdout, PollFlags::OUT)], Some(&look)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            // Past the line buffer of the standard library, which would keep what did not go.
            match rustix::io::write(&self.stdout, bytes) {
                Ok(written) => return Ok(written),
                Err(Errno::AGAIN) => self.wait()?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
