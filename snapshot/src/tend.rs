//! What else is done to a workspace: measured, made ready, cleared. By handle like everything
//! here, since whoever wrote the tree may have meant it as a trap.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use rustix::fs::{self, AtFlags, FileType, Gid, Mode, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::beneath::{kind, look, names, open_dir};
use crate::error::{Error, Result};
use crate::path::{MAX_DEPTH, TreePath};
use crate::watch::Cancel;

/// The folder that `HOME` points to, in the workspace.
const HOME: &[u8] = b".home";
/// Folders are cleared this deep in place; what is deeper is first moved up, so that no depth
/// of nesting runs out of handles or stack.
const CLEAR_DEPTH: usize = 64;
/// Rounds that clearing makes while something still writes.
const CLEAR_ROUNDS: usize = 16;

/// How much a tree takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Bytes on disk, as blocks are counted; a hard link counts once.
    pub disk_bytes: u64,
    /// Sum of the files' lengths in bytes.
    pub bytes: u64,
    /// Files, links, sockets and fifos.
    pub files: u64,
    pub folders: u64,
}

/// Measures a tree that may change meanwhile: what vanishes is not counted.
pub fn usage(root: &OwnedFd, cancel: &Cancel) -> Result<Usage> {
    let mut run = Measure { cancel, usage: Usage::default(), linked: BTreeSet::new() };
    run.folder(root, &mut Vec::new(), 0)?;
    Ok(run.usage)
}

struct Measure<'a> {
    cancel: &'a Cancel,
    usage: Usage,
    linked: BTreeSet<(u64, u64)>,
}

impl Measure<'_> {
    fn folder(&mut self, dir: &OwnedFd, path: &mut Vec<u8>, depth: usize) -> Result<()> {
        if depth >= MAX_DEPTH {
            return Err(Error::TooDeep { path: TreePath::unchecked(path), limit: MAX_DEPTH });
        }
        for name in names(dir).or_else(|error| gone(path, error))? {
            self.cancel.check()?;
            let Ok(stat) = look(dir, &name) else {
                continue;
            };
            let blocks = u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
            if kind(&stat) == FileType::Directory {
                self.usage.folders += 1;
                self.usage.disk_bytes += blocks;
                if let Ok(inner) = open_dir(dir, &name) {
                    let len = path.len();
                    push(path, &name);
                    self.folder(&inner, path, depth + 1)?;
                    path.truncate(len);
                }
                continue;
            }
            self.usage.files += 1;
            if stat.st_nlink < 2 || self.linked.insert((stat.st_dev, stat.st_ino)) {
                self.usage.disk_bytes += blocks;
                self.usage.bytes += u64::try_from(stat.st_size).unwrap_or(0);
            }
        }
        Ok(())
    }
}

fn gone(path: &[u8], error: Errno) -> Result<Vec<Vec<u8>>> {
    match error {
        Errno::NOENT => Ok(Vec::new()),
        other => Err(Error::Unreadable { path: TreePath::unchecked(path), source: other.into() }),
    }
}

/// Removes everything below `root`, as much as can be; then names the first that could not.
pub fn clear(root: &OwnedFd, cancel: &Cancel) -> Result<()> {
    let (mut idle_rounds, mut numbers) = (0, 0);
    while idle_rounds < CLEAR_ROUNDS {
        let mut run = Clear { root, cancel, numbers, moved: false, first: None };
        run.folder(root, &mut Vec::new(), 0)?;
        if names(root).is_ok_and(|left| left.is_empty()) {
            return Ok(());
        }
        numbers = run.numbers;
        if !run.moved {
            // Nothing was moved up for this round: what is left can't be removed, or is new.
            match run.first {
                Some(error) => return Err(error),
                None => idle_rounds += 1,
            }
        }
    }
    Err(Error::Changed { path: TreePath::unchecked(b"") })
}

struct Clear<'a> {
    root: &'a OwnedFd,
    cancel: &'a Cancel,
    /// For the names of folders that are moved up to the root, never used twice.
    numbers: u64,
    /// Whether any was, so that the next round has work.
    moved: bool,
    first: Option<Error>,
}

impl Clear<'_> {
    fn folder(&mut self, dir: &OwnedFd, path: &mut Vec<u8>, depth: usize) -> Result<()> {
        let names = match names(dir) {
            Ok(names) => names,
            Err(error) => {
                self.note(path, error);
                return Ok(());
            }
        };
        for name in names {
            self.cancel.check()?;
            let len = path.len();
            push(path, &name);
            match self.remove(dir, &name, path, depth)? {
                Ok(()) => {}
                // Swapped or filled meanwhile: goes next round.
                Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(Errno::ISDIR | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => self.note(path, error),
            }
            path.truncate(len);
        }
        Ok(())
    }

    fn remove(
        &mut self,
        dir: &OwnedFd,
        name: &[u8],
        path: &mut Vec<u8>,
        depth: usize,
    ) -> Result<std::result::Result<(), Errno>> {
        match fs::unlinkat(dir, name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) if is_dir(dir, name) => {}
            other => return Ok(other),
        }
        if depth == CLEAR_DEPTH {
            self.numbers += 1;
            let up = format!(".gpunion-clear-{}", self.numbers);
            let done = fs::renameat(dir, name, self.root, up.as_str());
            self.moved |= done.is_ok();
            return Ok(done);
        }
        match open_dir(dir, name) {
            Ok(inner) => self.folder(&inner, path, depth + 1)?,
            Err(error) => return Ok(Err(error)),
        }
        Ok(fs::unlinkat(dir, name, AtFlags::REMOVEDIR))
    }

    fn note(&mut self, path: &[u8], error: Errno) {
        self.first.get_or_insert_with(|| unwritable(path, error));
    }
}

fn is_dir(dir: &OwnedFd, name: &[u8]) -> bool {
    look(dir, name).is_ok_and(|stat| kind(&stat) == FileType::Directory)
}

/// Makes `.home`, and gives it and the root itself to the guest's uid. What else is there keeps
/// its owner: a restore gave it one.
pub fn prepare(root: &OwnedFd, uid: u32, gid: u32) -> Result<()> {
    let (owner, group) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    match fs::mkdirat(root, HOME, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(unwritable(HOME, error)),
    }
    // Fails where a link or a file took the name.
    let home = open_dir(root, HOME).map_err(|error| unwritable(HOME, error))?;
    for (fd, path) in [(&home, HOME), (root, b"".as_slice())] {
        fs::fchown(fd, owner, group).map_err(|error| unwritable(path, error))?;
        fs::fchmod(fd, Mode::RWXU).map_err(|error| unwritable(path, error))?;
    }
    Ok(())
}

fn unwritable(path: &[u8], error: Errno) -> Error {
    Error::Unwritable { path: TreePath::unchecked(path), source: error.into() }
}

fn push(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}
