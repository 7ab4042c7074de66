//! The reader's side of the ring that init writes the program's output to, and the making of it.
//!
//! The reader never makes the writer wait: what was overwritten before it came is told as a gap.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use gpunion_protocol::guest::ring::{self, CAPACITY, HEADER};
use rustix::fs::FallocateFlags;

/// Bytes that the writer may be overwriting while the totals still say otherwise: data first,
/// totals after. Init writes less than this at once.
const IN_FLIGHT: u64 = 128 << 10;
const HEADER_TRIES: usize = 50;

/// A ring's file, open for handing to init.
#[derive(Debug)]
pub struct Ring {
    pub(super) file: File,
}

impl Ring {
    /// Makes it, or opens the one that is there (a restart of the agent).
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::of_capacity(path, CAPACITY)
    }

    pub(super) fn of_capacity(path: &Path, capacity: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC).bits();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(flags.cast_signed());
        let file = options.open(path)?;
        if file.metadata()?.len() < HEADER + capacity {
            // Its room is taken now, so that a disk that fills up later costs no output. Not
            // every file system can.
            if rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, HEADER + capacity).is_err() {
                file.set_len(HEADER + capacity)?;
            }
            file.write_all_at(&ring::header(capacity, 0), 0)?;
        }
        Ok(Self { file })
    }

    pub fn reader(&self) -> io::Result<RingReader> {
        Ok(RingReader { file: self.file.try_clone()? })
    }
}

#[derive(Debug)]
pub struct RingReader {
    file: File,
}

/// A piece of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RingRead {
    /// Where in the stream it begins. Beyond the offset that was asked for: what lies between
    /// was overwritten.
    pub from: u64,
    pub bytes: Vec<u8>,
    /// All bytes ever written.
    pub total: u64,
}

impl RingReader {
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::open(path)? })
    }

    /// At most `max` bytes from `offset` on; none when there is nothing new.
    pub fn read(&self, offset: u64, max: usize) -> io::Result<RingRead> {
        let (capacity, total) = self.header()?;
        let from = offset.max(oldest(capacity, total)).min(total);
        let to = total.min(from.saturating_add(max as u64));
        let mut bytes = Vec::with_capacity(usize::try_from(to - from).unwrap_or(0));
        for (at, length) in ring::pieces(capacity, from, to) {
            let mut piece = vec![0; usize::try_from(length).unwrap_or(0)];
            self.file.read_exact_at(&mut piece, at)?;
            bytes.append(&mut piece);
        }
        // What the writer has come upon meanwhile is not the stream's any more.
        let (_, now) = self.header()?;
        let sound = oldest(capacity, now).clamp(from, to);
        bytes.drain(..usize::try_from(sound - from).unwrap_or(0).min(bytes.len()));
        Ok(RingRead { from: sound, bytes, total: now })
    }

    fn header(&self) -> io::Result<(u64, u64)> {
        let mut bytes = [0; 32];
        for _ in 0..HEADER_TRIES {
            self.file.read_exact_at(&mut bytes, 0)?;
            if let Some(whole) = ring::parse(&bytes) {
                return self.plausible(whole);
            }
            std::thread::yield_now();
        }
        // A writer that was ended between the two totals: the second is the older one, and all
        // up to it is written.
        let second: [u8; 8] = bytes.last_chunk().copied().unwrap_or_default();
        bytes[16..24].copy_from_slice(&second);
        let mended = ring::parse(&bytes).ok_or_else(|| io::Error::other("the file is no ring of output"))?;
        self.plausible(mended)
    }

    /// A capacity that the file does not have room for is a lie.
    fn plausible(&self, (capacity, total): (u64, u64)) -> io::Result<(u64, u64)> {
        if self.file.metadata()?.len() < HEADER.saturating_add(capacity) {
            return Err(io::Error::other("the ring of output is shorter than it says"));
        }
        Ok((capacity, total))
    }
}

/// The oldest byte of the stream that can still be trusted.
fn oldest(capacity: u64, total: u64) -> u64 {
    if total <= capacity {
        // Nothing has been overwritten, unless the piece that is being written now wraps round.
        return total.saturating_add(in_flight(capacity)).saturating_sub(capacity).min(total);
    }
    total - (capacity - in_flight(capacity))
}

fn in_flight(capacity: u64) -> u64 {
    IN_FLIGHT.min(capacity / 4)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Writes as init does: data, first total, second total.
    fn write(file: &File, capacity: u64, total: &mut u64, bytes: &[u8]) {
        let to = *total + bytes.len() as u64;
        let mut rest = bytes;
        for (at, length) in ring::pieces(capacity, *total, to) {
            let (now, after) = rest.split_at(length as usize);
            file.write_all_at(now, at).unwrap();
            rest = after;
        }
        file.write_all_at(&to.to_le_bytes(), 16).unwrap();
        file.write_all_at(&to.to_le_bytes(), 24).unwrap();
        *total = to;
    }

    proptest! {
        #[test]
        fn every_byte_comes_once_or_is_told_as_a_gap(
            capacity in 8u64..100,
            writes in proptest::collection::vec((1usize..30, any::<bool>()), 0..60),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let ring = Ring::of_capacity(&folder.path().join("r"), capacity).unwrap();
            let reader = ring.reader().unwrap();
            let (mut total, mut next, mut stream) = (0u64, 0u64, Vec::new());
            for (length, read_now) in writes {
                let length = length.min((capacity / 4) as usize);
                let bytes: Vec<u8> = (0..length).map(|i| (total as usize + i) as u8).collect();
                stream.extend_from_slice(&bytes);
                write(&ring.file, capacity, &mut total, &bytes);
                if read_now {
                    let got = reader.read(next, 16).unwrap();
                    prop_assert!(got.from >= next && got.total == total);
                    prop_assert!(got.from == next || got.from + capacity - capacity / 4 >= total);
                    let end = got.from as usize + got.bytes.len();
                    prop_assert_eq!(&got.bytes[..], &stream[got.from as usize..end]);
                    prop_assert!(!got.bytes.is_empty() || got.from == total);
                    next = end as u64;
                }
            }
        }

        #[test]
        fn a_header_of_any_bytes_is_read_or_refused(bytes in any::<[u8; 32]>()) {
            let folder = tempfile::tempdir().unwrap();
            let ring = Ring::of_capacity(&folder.path().join("r"), 64).unwrap();
            ring.file.write_all_at(&bytes, 0).unwrap();
            let _ = ring.reader().unwrap().read(0, 100);
            let mut with_magic = ring::header(64, 0);
            with_magic[16..].copy_from_slice(&bytes[16..]);
            ring.file.write_all_at(&with_magic, 0).unwrap();
            let got = ring.reader().unwrap().read(u64::MAX, 100);
            prop_assert!(got.is_ok());
        }
    }

    #[test]
    fn a_ring_is_the_agent_s_alone_and_survives_being_opened_again() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ring");
        let ring = Ring::create(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        write(&ring.file, CAPACITY, &mut 0, b"epoch 1\n");
        let again = Ring::create(&path).unwrap();
        assert_eq!(again.reader().unwrap().read(0, 100).unwrap().bytes, b"epoch 1\n");
    }

    #[test]
    fn a_writer_that_was_ended_between_the_two_totals_loses_no_earlier_byte() {
        let folder = tempfile::tempdir().unwrap();
        let ring = Ring::of_capacity(&folder.path().join("r"), 1024).unwrap();
        write(&ring.file, 1024, &mut 0, b"hello");
        ring.file.write_all_at(&9u64.to_le_bytes(), 16).unwrap();
        assert_eq!(ring.reader().unwrap().read(0, 100).unwrap().bytes, b"hello");
    }
}
