//! Wakes the loop when something changes in the two folders that are watched.
//!
//! Only a wake-up: what changed is looked at by name each time, so a guest that floods the
//! queue gains nothing. Where inotify can't be had (its instances are counted by user, and a
//! guest may use them up) the loop looks often instead; it looks now and then in any case.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};

/// Microseconds between two looks without and with inotify.
const LOOK_OFTEN: u64 = 100_000;
const LOOK_ANYWAY: u64 = 1_000_000;

#[derive(Debug)]
pub(crate) struct Watch {
    inotify: Option<OwnedFd>,
}

impl Watch {
    pub(crate) fn over(folders: &[&Path]) -> Self {
        let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ATTRIB | WatchFlags::ONLYDIR;
        let all = || -> rustix::io::Result<OwnedFd> {
            let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            for folder in folders {
                add_watch(&inotify, *folder, flags)?;
            }
            Ok(inotify)
        };
        Self { inotify: all().ok() }
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(OwnedFd::as_fd)
    }

    /// Microseconds until the folders are to be looked at without being woken.
    pub(crate) fn look_every(&self) -> u64 {
        if self.inotify.is_some() { LOOK_ANYWAY } else { LOOK_OFTEN }
    }

    /// Takes some of what woke us; the rest wakes again.
    pub(crate) fn clear(&self) {
        let mut bytes = [0; 4096];
        if let Some(inotify) = &self.inotify {
            let _taken = rustix::io::read(inotify, &mut bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_inotify_the_folders_are_looked_at_ten_times_a_second() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Watch::over(&[folder.path()]).look_every(), LOOK_ANYWAY);
        let blind = Watch::over(&[folder.path(), Path::new("/no/such/folder")]);
        assert!(blind.fd().is_none() && blind.look_every() <= 100_000);
    }
}
