//! Names of chunks, packs and snapshots: the types are the protocol's, how they are made is here.
//!
//! A chunk's id is keyed (see `chunk`), so that nobody without the member's key can ask whether
//! she has a file. Packs and snapshots are named by the plain hash of their sealed bytes, so that
//! a relay can verify them and read nothing.

pub use gpunion_protocol::ids::{ChunkId, PackId, SnapshotId};

/// Length of every id in bytes.
pub(crate) const ID_LEN: usize = 32;

/// The id of a pack with these bytes.
#[must_use]
pub fn pack_id(sealed: &[u8]) -> PackId {
    PackId(*blake3::hash(sealed).as_bytes())
}

/// The id of a snapshot whose sealed manifest these bytes are.
#[must_use]
pub fn snapshot_id(sealed: &[u8]) -> SnapshotId {
    SnapshotId(*blake3::hash(sealed).as_bytes())
}
