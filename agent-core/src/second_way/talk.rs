//! One question to the second way, from a plain thread: no engine, no agent, no runtime.

use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use gpunion_protocol::guest::{Decoder, encode};
use gpunion_protocol::second_way::{FromSecondWay, GuestEnd, SECOND_WAY_SOCKET, ToSecondWay};
use gpunion_protocol::time::{BootMs, Millis};
use rustix::fs::{Mode, OFlags};

use crate::config::clock;

/// What it answered, and when it was asked.
#[derive(Debug, Clone)]
pub struct Told {
    pub asked: BootMs,
    pub answer: FromSecondWay,
}

impl Told {
    /// When no thread of this guest ran any more.
    pub fn stopped(&self, guest: &GuestEnd) -> Option<BootMs> {
        guest.stopped_us.map(|us| self.asked + Millis(us / 1_000))
    }
}

/// `folder`: where its socket is. Blocks for `limit` at most, unless the disk of the folder hangs.
pub fn ask(folder: &Path, question: &ToSecondWay, limit: Duration) -> io::Result<Told> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let held = rustix::fs::open(folder, flags, Mode::empty())?;
    // A socket's path has room for 107 bytes only and the folder's own may be longer.
    let short = format!("/proc/self/fd/{}/{SECOND_WAY_SOCKET}", held.as_raw_fd());
    let mut stream = UnixStream::connect(short)?;
    stream.set_write_timeout(Some(limit))?;
    stream.set_read_timeout(Some(limit))?;
    let asked = clock::boot();
    stream.write_all(&encode(question).map_err(io::Error::other)?)?;
    let mut decoder = Decoder::default();
    let mut bytes = [0; 4096];
    loop {
        if let Some(answer) = decoder.next().map_err(io::Error::other)? {
            return Ok(Told { asked, answer });
        }
        let read = stream.read(&mut bytes)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        decoder.feed(bytes.get(..read).unwrap_or_default());
    }
}
