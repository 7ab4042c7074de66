//! The manifest: all that a snapshot is apart from its bytes, sealed with the job's key.
//!
//! In front of the sealed part stands a plain, authenticated table of the packs that the snapshot
//! needs: by it a relay checks that a snapshot is whole, and sweeps, without reading anything.
//! Owners (uid, gid) and extended attributes are not kept: a uid means nothing on another machine.

mod decode;
mod encode;
mod order;

use std::fmt;

use crate::error::Result;
use crate::ids::{ChunkId, PackId, SnapshotId};
use crate::keys::{ChunkKey, JobKey, PackKey, derive};
use crate::pack::Place;
use crate::path::TreePath;
use crate::random::Randomness;

/// Largest unsealed, decompressed manifest in bytes.
pub(crate) const MAX_BODY: usize = 256 * 1024 * 1024;
pub(crate) const MAX_CHUNKS: usize = 1 << 22;
pub(crate) const MAX_ENTRIES: usize = 1 << 22;
/// Largest file in bytes (the largest of ext4).
pub const MAX_FILE: u64 = 1 << 44;
/// Most holes of one file; what lies behind the last is kept as plain zeros.
pub(crate) const MAX_HOLES: usize = 1 << 16;
/// All permission bits that are kept.
pub(crate) const MAX_MODE: u16 = 0o1777;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    pub chunk_key: ChunkKey,
    /// Sorted by id, none twice.
    pub packs: Vec<PackRef>,
    pub chunks: Vec<ChunkRef>,
    /// Sorted by path, none twice, each folder before what is in it.
    pub entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackRef {
    pub id: PackId,
    pub key: PackKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRef {
    pub id: ChunkId,
    /// Number in `Manifest::packs`.
    pub pack: u32,
    pub place: Place,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub path: TreePath,
    pub meta: Meta,
    pub kind: EntryKind,
}

/// Permission bits (01777) and time of last change. Set-user-id and set-group-id are not kept:
/// without an owner they mean nothing, and they could make a fetched file run as the member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    pub mode: u16,
    /// Seconds since 1970, and nanoseconds on top.
    pub mtime: (i64, u32),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    Dir,
    File(FileBody),
    Symlink {
        target: Vec<u8>,
    },
    /// Number in `Manifest::entries` of a file that stands before this one.
    HardLink {
        to: u32,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileBody {
    /// Length in bytes, holes included.
    pub size: u64,
    /// In order, not touching.
    pub holes: Vec<Hole>,
    /// Numbers in `Manifest::chunks`; together they are the bytes outside of the holes, in order.
    pub chunks: Vec<u32>,
}

/// A stretch of a file that holds no data, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    pub offset: u64,
    pub len: u64,
}

/// A manifest as it is stored and sent.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedManifest {
    pub id: SnapshotId,
    pub bytes: Vec<u8>,
}

impl fmt::Debug for SealedManifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedManifest({}, {} bytes)", self.id, self.bytes.len())
    }
}

impl Manifest {
    /// Encodes, compresses and seals; fails where the manifest is over a limit.
    pub fn seal(&self, job_key: &JobKey, random: &mut dyn Randomness) -> Result<SealedManifest> {
        encode::seal(self, &manifest_key(job_key), random)
    }

    /// Opens and checks a sealed manifest whole: what comes out keeps every promise of the types.
    pub fn open(job_key: &JobKey, sealed: &[u8]) -> Result<Self> {
        decode::open(&manifest_key(job_key), sealed)
    }

    /// Bytes that the files hold, holes left out and each hard link counted once.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        let chunks = self.entries.iter().flat_map(|entry| match &entry.kind {
            EntryKind::File(body) => body.chunks.as_slice(),
            EntryKind::Dir | EntryKind::Symlink { .. } | EntryKind::HardLink { .. } => &[],
        });
        chunks
            .filter_map(|number| self.chunks.get(*number as usize))
            .map(|chunk| u64::from(chunk.place.raw_len))
            .sum()
    }

    #[must_use]
    pub fn files(&self) -> u64 {
        let is_file = |entry: &&Entry| matches!(entry.kind, EntryKind::File(_));
        self.entries.iter().filter(is_file).count() as u64
    }

    #[must_use]
    pub fn find(&self, path: &TreePath) -> Option<&Entry> {
        let found = self.entries.binary_search_by(|entry| entry.path.cmp(path));
        found.ok().and_then(|at| self.entries.get(at))
    }
}

fn manifest_key(job_key: &JobKey) -> zeroize::Zeroizing<[u8; crate::keys::KEY_LEN]> {
    derive("gpunion 2026 manifest v1", job_key.expose())
}
