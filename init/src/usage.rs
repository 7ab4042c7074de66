//! Counts what a workspace holds: allocated bytes, and files, as `du` does.
//!
//! Runs in a thread of its own. Never follows a link, never leaves the file system, holds two
//! descriptors however deep the tree is (it climbs by `..`, and gives up when a folder was moved
//! under it: the next count is near). What the guest forbids to read counts as its entry alone.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat, statvfs};

use crate::events::Usage;

/// Files with several names are counted once; of more than so many it is not remembered.
const LINKS_MAX: usize = 200_000;
/// Between two looks at the free space.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A folder on the way down, and those below it that are still to be visited.
struct Level {
    place: (u64, u64),
    todo: Vec<CString>,
}

/// Absent when the workspace can't be opened at all.
pub(crate) fn count(root: &Path) -> Option<Usage> {
    let here = openat(CWD, root, flags(), Mode::empty()).ok()?;
    let found = fstat(&here).ok()?;
    let mut walk = Walk { usage: Usage::default(), links: BTreeSet::new(), device: found.st_dev };
    let _whole = walk.all(here, &found);
    Some(walk.usage)
}

/// Whether the file system of `root` loses at least so many bytes while `on` holds. Its own count,
/// which costs nothing to ask for; it knows of no owner, so it's a reason to count and no more.
pub(crate) fn is_taken(root: &Path, least: u64, mut on: impl FnMut() -> bool) -> bool {
    let Some(before) = free(root) else { return false };
    while on() {
        thread::sleep(LOOK_EVERY);
        match free(root) {
            Some(now) if before.saturating_sub(now) >= least => return true,
            Some(_) => {}
            None => return false,
        }
    }
    false
}

fn free(root: &Path) -> Option<u64> {
    let found = statvfs(root).ok()?;
    Some(found.f_bfree.saturating_mul(found.f_frsize))
}

struct Walk {
    usage: Usage,
    links: BTreeSet<u64>,
    device: u64,
}

impl Walk {
    /// Absent when the tree was moved under it.
    fn all(&mut self, mut here: OwnedFd, found: &Stat) -> Option<()> {
        let mut levels = vec![self.level(&here, found)];
        loop {
            let level = levels.last_mut()?;
            let Some(name) = level.todo.pop() else {
                levels.pop();
                let Some(above) = levels.last().map(|level| level.place) else { return Some(()) };
                here = openat(&here, c"..", flags(), Mode::empty()).ok()?;
                if place(&fstat(&here).ok()?) != above {
                    return None;
                }
                continue;
            };
            let Ok(below) = openat(&here, &name, flags(), Mode::empty()) else { continue };
            let Ok(found) = fstat(&below) else { continue };
            if found.st_dev == self.device {
                levels.push(self.level(&below, &found));
                here = below;
            }
        }
    }

    /// Counts what stands in one folder.
    fn level(&mut self, folder: &OwnedFd, found: &Stat) -> Level {
        let mut todo = Vec::new();
        let entries = Dir::read_from(folder).into_iter().flatten().filter_map(Result::ok);
        for entry in entries {
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let Ok(found) = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if found.st_dev != self.device || !self.first_sight(&found) {
                continue;
            }
            self.usage.bytes =
                self.usage.bytes.saturating_add(u64::try_from(found.st_blocks).unwrap_or(0) * 512);
            if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                todo.push(name.to_owned());
            } else {
                self.usage.files += 1;
            }
        }
        Level { place: place(found), todo }
    }

    fn first_sight(&mut self, found: &Stat) -> bool {
        let folder = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        folder || found.st_nlink < 2 || self.links.len() >= LINKS_MAX || self.links.insert(found.st_ino)
    }
}

fn place(found: &Stat) -> (u64, u64) {
    (found.st_dev, found.st_ino)
}

fn flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    #[test]
    fn counts_as_du_does_and_follows_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("workspace");
        let outside = folder.path().join("outside");
        fs::create_dir_all(at.join("a/b/c")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("big"), vec![7; 1 << 20]).unwrap();
        fs::write(at.join("a/one"), vec![7; 100_000]).unwrap();
        fs::hard_link(at.join("a/one"), at.join("a/b/two")).unwrap();
        fs::write(at.join("a/b/c/three"), vec![7; 5_000]).unwrap();
        symlink(&outside, at.join("a/link")).unwrap();
        symlink("..", at.join("a/b/up")).unwrap();
        let usage = count(&at).unwrap();
        let du = Command::new("du").args(["-s", "-B1"]).arg(&at).output().unwrap().stdout;
        let du: u64 = String::from_utf8(du).unwrap().split_whitespace().next().unwrap().parse().unwrap();
        let root = u64::try_from(rustix::fs::stat(&at).unwrap().st_blocks).unwrap() * 512;
        assert_eq!(usage.bytes + root, du);
        assert_eq!(usage.files, 4);
    }

    #[test]
    fn a_tree_deeper_than_any_path_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let make =
            "i=0; while [ $i -lt 900 ]; do mkdir 0123456789; cd 0123456789; i=$((i+1)); done; echo x > file";
        assert!(Command::new("sh").args(["-c", make]).current_dir(folder.path()).status().unwrap().success());
        assert_eq!(count(folder.path()).map(|usage| usage.files), Some(1));
    }

    #[test]
    fn what_is_written_is_missing_from_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("filler");
        let mut looks = 0;
        let taken = is_taken(folder.path(), 64 << 20, || {
            looks += 1;
            if looks == 1 {
                fs::write(&file, vec![7; 192 << 20]).unwrap();
            }
            looks < 20
        });
        assert!(taken);
        assert!(!is_taken(folder.path(), u64::MAX, || {
            looks += 1;
            looks < 23
        }));
        assert!(!is_taken(Path::new("/no/such/folder"), 0, || true));
    }

    #[test]
    fn a_workspace_that_can_not_be_opened_has_no_size() {
        assert_eq!(count(Path::new("/no/such/folder")), None);
    }
}
