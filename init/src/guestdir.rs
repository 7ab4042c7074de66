//! The guest's own door to init, `/run/gpunion`: writes `leaving`, sees and removes `saved`.
//!
//! The guest may put anything there. Nothing in it is ever opened but a new file of init's own;
//! everything else is looked at and unlinked by name, relative to a handle of the folder.

use std::fs::File;
use std::io;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;

use gpunion_protocol::guest::{LEAVING_FILE, SAVED_FILE};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, renameat, statat, unlinkat};
use rustix::io::Errno;

const NEW_LEAVING: &str = ".leaving.new";

#[derive(Debug)]
pub(crate) struct GuestDir {
    folder: OwnedFd,
    /// What was reported and could not be removed: inode and change time.
    reported: Option<(u64, i64)>,
}

impl GuestDir {
    pub(crate) fn open(path: &Path) -> rustix::io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self { folder: openat(CWD, path, flags, Mode::empty())?, reported: None })
    }

    /// When `saved` is there: its change time in nanoseconds since the epoch (a time that the
    /// program can't set), and the name is free to be used again.
    pub(crate) fn take_saved(&mut self) -> Option<i64> {
        let found = statat(&self.folder, SAVED_FILE, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let nanos = i64::try_from(found.st_ctime_nsec).unwrap_or(0);
        let at_ns = found.st_ctime.saturating_mul(1_000_000_000).saturating_add(nanos);
        let removed = match unlinkat(&self.folder, SAVED_FILE, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => unlinkat(&self.folder, SAVED_FILE, AtFlags::REMOVEDIR),
            other => other,
        };
        let mark = (found.st_ino, at_ns);
        if self.reported == Some(mark) {
            return None;
        }
        self.reported = removed.is_err().then_some(mark);
        Some(at_ns)
    }

    /// Makes `leaving` appear, whole, with this text.
    pub(crate) fn write_leaving(&self, text: &str) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o444);
        let new = match openat(&self.folder, NEW_LEAVING, flags, mode) {
            Err(Errno::EXIST) => {
                self.clear(NEW_LEAVING);
                openat(&self.folder, NEW_LEAVING, flags, mode)
            }
            other => other,
        };
        File::from(new?).write_all(text.as_bytes())?;
        if renameat(&self.folder, NEW_LEAVING, &self.folder, LEAVING_FILE).is_err() {
            // A folder stands in the way.
            self.clear(LEAVING_FILE);
            renameat(&self.folder, NEW_LEAVING, &self.folder, LEAVING_FILE)?;
        }
        Ok(())
    }

    fn clear(&self, name: &str) {
        let _file = unlinkat(&self.folder, name, AtFlags::empty());
        let _folder = unlinkat(&self.folder, name, AtFlags::REMOVEDIR);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn open() -> (tempfile::TempDir, GuestDir) {
        let folder = tempfile::tempdir().unwrap();
        let dir = GuestDir::open(folder.path()).unwrap();
        (folder, dir)
    }

    #[test]
    fn saved_is_told_once_each_time_it_is_made() {
        let (folder, mut dir) = open();
        assert_eq!(dir.take_saved(), None);
        fs::write(folder.path().join("saved"), "x").unwrap();
        let first = dir.take_saved().unwrap();
        assert_eq!(dir.take_saved(), None);
        fs::write(folder.path().join("saved"), "x").unwrap();
        assert!(dir.take_saved().unwrap() >= first);
    }

    #[test]
    fn a_link_a_fifo_and_folders_in_place_of_saved_do_no_harm() {
        let (folder, mut dir) = open();
        let (saved, target) = (folder.path().join("saved"), folder.path().join("target"));
        fs::write(&target, "kept").unwrap();
        symlink(&target, &saved).unwrap();
        dir.take_saved().unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
        nix::unistd::mkfifo(&saved, nix::sys::stat::Mode::S_IRWXU).unwrap();
        dir.take_saved().unwrap();
        fs::create_dir_all(&saved).unwrap();
        dir.take_saved().unwrap();
        assert!(!saved.exists());
        fs::create_dir_all(saved.join("full")).unwrap();
        dir.take_saved().unwrap();
        assert_eq!(dir.take_saved(), None, "a folder that can't be removed is told once");
    }

    #[test]
    fn leaving_replaces_whatever_stands_there_and_follows_nothing() {
        let (folder, dir) = open();
        let (leaving, target) = (folder.path().join("leaving"), folder.path().join("target"));
        fs::write(&target, "kept").unwrap();
        symlink(&target, &leaving).unwrap();
        symlink(&target, folder.path().join(NEW_LEAVING)).unwrap();
        dir.write_leaving("1\n").unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
        assert_eq!(fs::read_to_string(&leaving).unwrap(), "1\n");
        fs::remove_file(&leaving).unwrap();
        fs::create_dir(&leaving).unwrap();
        dir.write_leaving("2\n").unwrap();
        assert_eq!(fs::read_to_string(&leaving).unwrap(), "2\n");
    }
}
