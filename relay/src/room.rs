//! How much room the disk has: what grows by what others send stops while the database, which is
//! what the group lives by, can still be written.

use std::path::{Path, PathBuf};

/// Cheap to clone; asks the file system each time.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    dir: PathBuf,
    keep_free: u64,
}

impl Room {
    pub(crate) fn new(dir: &Path, keep_free: u64) -> Self {
        Self { dir: dir.to_owned(), keep_free }
    }

    /// False when the disk is so full that only the database may still grow.
    pub(crate) fn is_there(&self) -> bool {
        // Unsure means unknown: the write itself then tells.
        let Ok(stat) = rustix::fs::statvfs(&self.dir) else { return true };
        stat.f_bavail.saturating_mul(stat.f_frsize) > self.keep_free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_kept_free_is_no_room() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Room::new(dir.path(), 0).is_there());
        assert!(!Room::new(dir.path(), u64::MAX).is_there());
        assert!(Room::new(Path::new("/no/such/place"), u64::MAX).is_there(), "unknown is not full");
    }
}
