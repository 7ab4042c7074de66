//! What a file looked like when it was read, so that the next snapshot need not read it again.
//!
//! Kept by the caller, on the machine of the workspace only; it is no part of a snapshot. A stamp
//! is kept only for files that had rested since before the snapshot began (see `walk`): for those,
//! every later change, also through a shared mapping, moves the change time.

use std::collections::BTreeMap;

use rustix::fs::Stat;

use crate::error::Result;
use crate::ids::SnapshotId;
use crate::wire::{Fields, u32_of};

const CACHE_MAGIC: &[u8; 8] = b"GPUCACH1";
/// Most files that are remembered; of more, the largest are.
pub const MAX_CACHED_FILES: usize = 1 << 17;
const STAMP_BYTES: usize = 3 * 8 + 2 * 12;

/// Seconds and nanoseconds since 1970.
pub(crate) type Time = (i64, u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
}

impl Stamp {
    pub(crate) fn of(stat: &Stat) -> Self {
        let nanos = |value: u64| u32::try_from(value).unwrap_or(0);
        Self {
            dev: stat.st_dev,
            ino: stat.st_ino,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mtime: (stat.st_mtime, nanos(stat.st_mtime_nsec)),
            ctime: (stat.st_ctime, nanos(stat.st_ctime_nsec)),
        }
    }

    pub(crate) fn inode(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }
}

/// Stamps of the files of one snapshot. Opaque to the caller: bytes in, bytes out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileCache {
    snapshot: SnapshotId,
    files: Vec<(Stamp, u32)>,
}

impl FileCache {
    pub(crate) fn new(snapshot: SnapshotId, mut files: Vec<(Stamp, u32)>) -> Self {
        if files.len() > MAX_CACHED_FILES {
            files.sort_by_key(|(stamp, _)| std::cmp::Reverse(stamp.size));
            files.truncate(MAX_CACHED_FILES);
        }
        Self { snapshot, files }
    }

    /// The snapshot that this belongs to; with any other parent it is of no use.
    #[must_use]
    pub fn snapshot(&self) -> SnapshotId {
        self.snapshot
    }

    /// Stamp and number of the manifest's entry, by inode.
    pub(crate) fn by_inode(&self) -> BTreeMap<(u64, u64), (Stamp, u32)> {
        let files = self.files.iter();
        files.map(|(stamp, entry)| (stamp.inode(), (*stamp, *entry))).collect()
    }

    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(44 + self.files.len() * (STAMP_BYTES + 4));
        out.extend_from_slice(CACHE_MAGIC);
        out.extend_from_slice(&self.snapshot.0);
        out.extend_from_slice(&u32_of(self.files.len()).to_le_bytes());
        for (stamp, entry) in &self.files {
            for field in [stamp.dev, stamp.ino, stamp.size] {
                out.extend_from_slice(&field.to_le_bytes());
            }
            for (seconds, nanos) in [stamp.mtime, stamp.ctime] {
                out.extend_from_slice(&seconds.to_le_bytes());
                out.extend_from_slice(&nanos.to_le_bytes());
            }
            out.extend_from_slice(&entry.to_le_bytes());
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Fields::new("file cache", bytes);
        from.magic(CACHE_MAGIC)?;
        let snapshot = SnapshotId(from.array()?);
        let count = from.count(STAMP_BYTES + 4, MAX_CACHED_FILES)?;
        let mut files = Vec::with_capacity(count);
        for _ in 0..count {
            let stamp = Stamp {
                dev: from.u64()?,
                ino: from.u64()?,
                size: from.u64()?,
                mtime: (from.i64()?, from.u32()?),
                ctime: (from.i64()?, from.u32()?),
            };
            files.push((stamp, from.u32()?));
        }
        from.end()?;
        Ok(Self { snapshot, files })
    }
}
