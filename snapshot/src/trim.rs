//! Takes out of a folder what a snapshot does not have there, so that a restore on top of an older
//! snapshot of the same tree writes only what is different. By handle, like everything here.

use std::os::fd::OwnedFd;

use rustix::fs::{self, AtFlags, FileType, Mode};
use rustix::io::Errno;

use crate::beneath::{kind, look, names, open_dir};
use crate::error::{Error, Result};
use crate::manifest::{EntryKind, Manifest};
use crate::path::{MAX_DEPTH, TreePath};
use crate::tend::clear;
use crate::watch::Cancel;

/// Leaves folders and plain files that the snapshot has too, whatever is in them. For a folder that
/// nobody else writes.
pub fn keep_only(root: &OwnedFd, manifest: &Manifest, cancel: &Cancel) -> Result<()> {
    Trim { manifest, cancel }.folder(root, &mut Vec::new(), 0)
}

struct Trim<'a> {
    manifest: &'a Manifest,
    cancel: &'a Cancel,
}

impl Trim<'_> {
    fn folder(&self, dir: &OwnedFd, path: &mut Vec<u8>, depth: usize) -> Result<()> {
        if depth >= MAX_DEPTH {
            return Err(Error::TooDeep { path: TreePath::unchecked(path), limit: MAX_DEPTH });
        }
        for name in names(dir).map_err(|error| failed(path, error))? {
            self.cancel.check()?;
            let len = path.len();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
            self.name(dir, &name, path, depth)?;
            path.truncate(len);
        }
        Ok(())
    }

    fn name(&self, dir: &OwnedFd, name: &[u8], path: &mut Vec<u8>, depth: usize) -> Result<()> {
        let there = kind(&look(dir, name).map_err(|error| failed(path, error))?);
        let wanted = self.manifest.find(&TreePath::unchecked(path)).map(|entry| &entry.kind);
        let stays = match wanted {
            Some(EntryKind::Dir) => there == FileType::Directory,
            // What lies where a hole is to be would stay.
            Some(EntryKind::File(body)) => there == FileType::RegularFile && body.holes.is_empty(),
            Some(EntryKind::Symlink { .. } | EntryKind::HardLink { .. }) | None => false,
        };
        if there == FileType::Directory {
            let inner = open_dir(dir, name).map_err(|error| failed(path, error))?;
            if stays {
                fs::fchmod(&inner, Mode::RWXU).map_err(|error| failed(path, error))?;
                return self.folder(&inner, path, depth + 1);
            }
            clear(&inner, self.cancel)?;
            return fs::unlinkat(dir, name, AtFlags::REMOVEDIR).map_err(|error| failed(path, error));
        }
        if stays {
            return Ok(());
        }
        fs::unlinkat(dir, name, AtFlags::empty()).map_err(|error| failed(path, error))
    }
}

fn failed(path: &[u8], error: Errno) -> Error {
    Error::Unwritable { path: TreePath::unchecked(path), source: error.into() }
}
