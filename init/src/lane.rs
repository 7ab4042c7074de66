//! One direction of a carried connection: a bounded buffer between two ends. Moves what there is
//! and waits for nobody.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

const BUFFER: usize = 16 << 10;

/// The connection is of no use any more.
#[derive(Debug)]
pub(crate) struct Broken;

#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// Empty until the first byte comes: most connections that wait hold nothing.
    buffer: Vec<u8>,
    sent: usize,
    from_ended: bool,
    to_told: bool,
}

impl Lane {
    /// Moves at most one buffer; true when anything moved. `Broken`: an end is gone.
    pub(crate) fn step(&mut self, from: impl AsFd, to: impl AsFd) -> Result<bool, Broken> {
        let mut moved = false;
        if self.sent == self.buffer.len() && !self.from_ended {
            moved |= self.fill(from)?;
        }
        if self.sent < self.buffer.len() {
            moved |= self.drain(&to)?;
        }
        if self.from_ended && self.sent == self.buffer.len() && !self.to_told {
            self.to_told = true;
            // The other way may still carry something.
            shutdown(to, Shutdown::Write).map_err(|_| Broken)?;
            moved = true;
        }
        Ok(moved)
    }

    /// Everything has come and gone.
    pub(crate) fn is_over(&self) -> bool {
        self.to_told
    }

    fn fill(&mut self, from: impl AsFd) -> Result<bool, Broken> {
        self.buffer.resize(BUFFER, 0);
        self.sent = 0;
        let read = recv(from, &mut self.buffer[..], RecvFlags::DONTWAIT);
        let length = read.as_ref().map_or(0, |(_, length)| *length);
        self.buffer.truncate(length);
        match read {
            Ok((_, 0)) => self.from_ended = true,
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(false),
            // Not tried: it is tried again.
            Err(Errno::INTR) => {}
            Err(_) => return Err(Broken),
        }
        Ok(true)
    }

    fn drain(&mut self, to: impl AsFd) -> Result<bool, Broken> {
        match send(to, &self.buffer[self.sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(length) => {
                self.sent += length;
                Ok(length > 0)
            }
            Err(Errno::AGAIN) => Ok(false),
            Err(Errno::INTR) => Ok(true),
            Err(_) => Err(Broken),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn all_bytes_arrive_in_order_and_then_the_end_past_a_reader_that_is_slow() {
        let (mut source, from) = UnixStream::pair().unwrap();
        let (to, mut sink) = UnixStream::pair().unwrap();
        let sent: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
        let bytes = sent.clone();
        let writing = std::thread::spawn(move || source.write_all(&bytes).map(|()| drop(source)));
        let mut lane = Lane::default();
        let mut got = Vec::new();
        sink.set_nonblocking(true).unwrap();
        while !lane.is_over() {
            if !lane.step(&from, &to).unwrap() {
                // Full: the reader takes a little, and the lane goes on.
                assert!(lane.buffer.len() <= BUFFER);
                let mut some = [0; 4096];
                let length = sink.read(&mut some).unwrap_or(0);
                got.extend_from_slice(&some[..length]);
            }
        }
        writing.join().unwrap().unwrap();
        sink.set_nonblocking(false).unwrap();
        sink.read_to_end(&mut got).unwrap();
        assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    }

    #[test]
    fn an_end_that_is_gone_breaks_it() {
        let (source, from) = UnixStream::pair().unwrap();
        let (to, sink) = UnixStream::pair().unwrap();
        drop(sink);
        (&source).write_all(b"x").unwrap();
        let mut lane = Lane::default();
        assert!(lane.step(&from, &to).is_err());
    }
}
