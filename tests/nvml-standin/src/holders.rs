//! Who holds stand-in memory: found in the world, never told by a script.
//!
//! Every process that holds memory keeps its own POSIX lock (fcntl) on a file `holder-*` of its
//! own in the folder that stands for the device; the file's logical size is the bytes it holds.
//! The kernel drops such a lock when its process ends and at no other time, and a child does not
//! inherit it: so a leaked child counts for as long as it lives, and nothing but the end of a
//! holder frees memory. Locks are read from /proc/locks, which needs no right; pids are those
//! that the reader sees. Files are only looked at, never opened: a guest may write this folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    pub(crate) bytes: u64,
}

/// Major and minor of the device, inode.
type FileId = (u64, u64, u64);

/// The size each holder's file had when it was last seen under its name: a holder that removes
/// its file while it lives frees nothing. Kept for as long as somebody locks the file.
static SEEN: Mutex<BTreeMap<PathBuf, BTreeMap<FileId, u64>>> = Mutex::new(BTreeMap::new());

/// All holders of one device, by pid; a process with several files holds their sum.
pub(crate) fn holders(folder: &Path) -> Vec<Holder> {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let locks: BTreeSet<Lock> = locks.lines().filter_map(parse_lock).collect();
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let files = seen.entry(folder.to_owned()).or_default();
    files.extend(files_in(folder));
    files.retain(|file, _| locks.iter().any(|lock| lock.file == *file));
    let mut held: BTreeMap<u32, u64> = BTreeMap::new();
    for lock in &locks {
        if let Some(bytes) = files.get(&lock.file) {
            let sum = held.entry(lock.pid).or_default();
            *sum = sum.saturating_add(*bytes);
        }
    }
    held.into_iter().map(|(pid, bytes)| Holder { pid, bytes }).collect()
}

fn files_in(folder: &Path) -> Vec<(FileId, u64)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter(|e| e.file_name().as_encoded_bytes().starts_with(b"holder-"));
    named.filter_map(|e| file(&e.path())).collect()
}

fn file(path: &Path) -> Option<(FileId, u64)> {
    let meta = fs::symlink_metadata(path).ok().filter(|meta| meta.file_type().is_file())?;
    Some(((major(meta.st_dev()), minor(meta.st_dev()), meta.st_ino()), meta.len()))
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Lock {
    pid: u32,
    file: FileId,
}

/// `7: POSIX  ADVISORY  WRITE 4242 08:01:131077 0 EOF`; a lock that only waits has `->` in front.
fn parse_lock(line: &str) -> Option<Lock> {
    let mut words = line.split_ascii_whitespace().skip(1);
    if words.next()? != "POSIX" {
        return None;
    }
    let pid = words.nth(2)?.parse().ok().filter(|pid| *pid > 0)?;
    let mut file = words.next()?.split(':');
    let major = u64::from_str_radix(file.next()?, 16).ok()?;
    let minor = u64::from_str_radix(file.next()?, 16).ok()?;
    let inode = file.next()?.parse().ok()?;
    Some(Lock { pid, file: (major, minor, inode) })
}

fn major(dev: u64) -> u64 {
    u64::from(rustix::fs::major(dev))
}

fn minor(dev: u64) -> u64 {
    u64::from(rustix::fs::minor(dev))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_posix_locks_and_nothing_else() {
        let lock = parse_lock("7: POSIX  ADVISORY  WRITE 4242 08:1f:131077 0 EOF");
        assert_eq!(lock, Some(Lock { pid: 4242, file: (8, 31, 131_077) }));
        assert_eq!(parse_lock("7: -> POSIX  ADVISORY  WRITE 4242 08:01:1 0 EOF"), None);
        assert_eq!(parse_lock("7: FLOCK  ADVISORY  WRITE 4242 08:01:1 0 EOF"), None);
        assert_eq!(parse_lock("7: OFDLCK ADVISORY  WRITE -1 08:01:1 0 EOF"), None);
        assert_eq!(parse_lock(""), None);
    }
}
