//! Large files that are written once and read once, past the page cache: what is on its way through
//! this machine must not push its owner's files out of memory, and copying it there costs more CPU
//! than all that is done to make it (half of a snapshot's, measured by `cargo xtask bench
//! snapshot_cpu`). Where a file system can't do that, it is written as any other file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{Advice, OFlags, fadvise};

/// What the kernel asks of addresses, lengths and offsets, for every disk there is; in bytes.
const ALIGNED: usize = 4096;
/// Bytes that are copied and written at a time.
const PIECE: usize = 1 << 20;

/// Makes or replaces the file. Not synced: after a crash of the machine it may be torn.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match write_direct(path, bytes) {
        // A file system without it, or a disk that wants more.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
            std::fs::write(path, bytes)
        }
        written => written,
    }
}

/// The whole file; what of it came into the page cache may go at once.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    // Only advice: a file system that takes none loses nothing.
    let _ = fadvise(&file, 0, None, Advice::DontNeed);
    Ok(bytes)
}

fn write_direct(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let flags = i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0);
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(path)?;
    let mut room = vec![0; PIECE.min(bytes.len()) + 2 * ALIGNED];
    let start = room.as_ptr().align_offset(ALIGNED);
    let room = room.get_mut(start..).unwrap_or_default();
    for piece in bytes.chunks(PIECE) {
        let whole = piece.len().next_multiple_of(ALIGNED);
        let (used, beyond) = room.split_at_mut(piece.len());
        used.copy_from_slice(piece);
        beyond[..whole - piece.len()].fill(0);
        write_all(&mut file, &room[..whole])?;
    }
    file.set_len(bytes.len() as u64)
}

/// A write that took less than it was given leaves an offset from which nothing direct can go on.
fn write_all(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    match file.write(bytes)? {
        all if all == bytes.len() => Ok(()),
        0 => Err(io::ErrorKind::WriteZero.into()),
        some if some.is_multiple_of(ALIGNED) => write_all(file, &bytes[some..]),
        _ => Err(io::ErrorKind::StorageFull.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_written_as_it_is_and_replaces_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let bytes: Vec<u8> = (0..3 * PIECE + 100).map(|n| ((n * 7) >> 3) as u8).collect();
        for len in [3 * PIECE + 100, 0, 1, ALIGNED - 1, ALIGNED, ALIGNED + 1, PIECE, PIECE + 1] {
            write(&path, &bytes[..len]).unwrap();
            assert!(read(&path).unwrap() == bytes[..len], "{len} bytes");
        }
    }

    #[test]
    fn what_can_not_be_written_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(write(&folder.path().join("none/a"), b"x").is_err());
        assert!(write(folder.path(), b"x").is_err());
    }

    #[test]
    fn a_file_system_in_memory_takes_it_too() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = folder.path().join("a");
        write(&path, &[7; 10_000]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), [7; 10_000]);
    }
}
