//! How much room the disk has: what grows by what others send stops while the database, which is
//! what the group lives by, can still be written.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Cheap to clone; asks the file system each time.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    dir: PathBuf,
    keep_free: u64,
    /// Bytes that are on their way to this disk.
    coming: Arc<AtomicU64>,
    #[cfg(test)]
    told: Option<Arc<AtomicU64>>,
}

/// Room for something on its way; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    room: Room,
    bytes: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.room.coming.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Room {
    pub(crate) fn new(dir: &Path, keep_free: u64) -> Self {
        Self {
            dir: dir.to_owned(),
            keep_free,
            coming: Arc::default(),
            #[cfg(test)]
            told: None,
        }
    }

    /// A disk of which a test says how much is free.
    #[cfg(test)]
    pub(crate) fn told(free: Arc<AtomicU64>, keep_free: u64) -> Self {
        Self { told: Some(free), ..Self::new(Path::new("/"), keep_free) }
    }

    /// False when the disk is so full that only the database may still grow.
    pub(crate) fn is_there(&self) -> bool {
        self.free().is_none_or(|free| free > self.keep_free)
    }

    /// A place for so many bytes, beside all that is on its way already; absent when they would leave
    /// too little to the database.
    pub(crate) fn place(&self, bytes: u64) -> Option<Place> {
        let before = self.coming.fetch_add(bytes, Ordering::Relaxed);
        let place = Place { room: self.clone(), bytes };
        let taken = self.keep_free.saturating_add(before).saturating_add(bytes);
        self.free().is_none_or(|free| free > taken).then_some(place)
    }

    /// Soon nothing is taken any more.
    pub(crate) fn is_tight(&self) -> bool {
        self.free().is_some_and(|free| free <= self.keep_free.saturating_mul(2))
    }

    /// Unsure means unknown: the write itself then tells.
    fn free(&self) -> Option<u64> {
        #[cfg(test)]
        if let Some(told) = &self.told {
            return Some(told.load(Ordering::Relaxed));
        }
        let stat = rustix::fs::statvfs(&self.dir).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
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

    #[test]
    fn f101_what_is_on_its_way_counts_and_soon_full_is_told() {
        let free = Arc::new(AtomicU64::new(1_000));
        let room = Room::told(Arc::clone(&free), 300);
        assert!(room.is_there() && !room.is_tight());
        let first = room.place(400).unwrap();
        assert!(room.place(300).is_none(), "700 would leave what is to be kept free, and no more");
        let second = room.place(299).unwrap();
        assert!(room.place(1).is_none());
        drop((first, second));
        assert!(room.place(699).is_some());
        free.store(600, Ordering::Relaxed);
        assert!(room.is_there() && room.is_tight());
    }
}
