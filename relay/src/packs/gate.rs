//! Between those who count on a file and the sweep that removes it.
//!
//! Whoever is told that a file is here, or puts one that needs it, touches it: its time of change
//! is when somebody counted on it last. Looking and touching is one step beside removing, so what
//! was promised is there for a whole grace.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpunion_protocol::time::{BootMs, Now, WallMs};

use crate::clock;

#[derive(Debug)]
pub(super) struct Gate {
    removing: RwLock<()>,
    start: Now,
}

impl Gate {
    pub(super) fn new(start: Now) -> Self {
        Self { removing: RwLock::new(()), start }
    }

    /// Nothing is removed meanwhile; for what blocks shortly.
    pub(super) fn keeping<T>(&self, work: impl FnOnce() -> T) -> T {
        let _nothing_goes = self.removing.read().unwrap_or_else(PoisonError::into_inner);
        work()
    }

    /// Nobody counts on anything anew meanwhile; for one file at a time.
    pub(super) fn removing<T>(&self, work: impl FnOnce() -> T) -> T {
        let _alone = self.removing.write().unwrap_or_else(PoisonError::into_inner);
        work()
    }

    /// The wall clock at the start, and boot time since: a clock that is set meanwhile makes no file
    /// old.
    pub(super) fn now(&self) -> WallMs {
        self.at(clock::now().boot)
    }

    fn at(&self, boot: BootMs) -> WallMs {
        let since = i64::try_from((boot - self.start.boot).0).unwrap_or(i64::MAX);
        WallMs(self.start.wall.0.saturating_add(since))
    }

    /// Somebody counts on it. False: it is not here.
    pub(super) fn touch(&self, path: &Path) -> io::Result<bool> {
        touch(path, self.now())
    }
}

pub(super) fn touch(path: &Path, at: WallMs) -> io::Result<bool> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    let since = Duration::from_millis(u64::try_from(at.0).unwrap_or(0));
    file.set_modified(UNIX_EPOCH + since)?;
    Ok(true)
}

/// When somebody counted on it last.
pub(super) fn touched(meta: &std::fs::Metadata) -> io::Result<WallMs> {
    let time: SystemTime = meta.modified()?;
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(WallMs(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f42_a_wall_clock_that_is_set_ages_no_file() {
        let gate = Gate::new(Now { boot: BootMs(5_000), wall: WallMs(1_000_000) });
        assert_eq!(gate.at(BootMs(5_000)), WallMs(1_000_000));
        assert_eq!(gate.at(BootMs(65_000)), WallMs(1_060_000));
    }

    #[test]
    fn a_touch_is_read_back_and_needs_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        assert!(!touch(&path, WallMs(5)).unwrap());
        std::fs::write(&path, "x").unwrap();
        assert!(touch(&path, WallMs(1_700_000_000_123)).unwrap());
        assert_eq!(touched(&path.metadata().unwrap()).unwrap(), WallMs(1_700_000_000_123));
    }
}
