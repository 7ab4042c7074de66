//! Snapshots: one immutable version of a folder, cut into chunks, bundled into sealed packs,
//! described by a sealed manifest. Inputs, checkpoints and results all travel this way.
//!
//! Knows no network, no containers and no clock but the file system's own. All calls block: run
//! them where blocking is fine (`spawn_blocking`, the workspace program). The format is written
//! down byte by byte in `docs/protocol.md`, and held by test vectors.

mod beneath;
mod cache;
mod chunk;
mod error;
pub mod helper_wire;
mod holes;
mod ids;
mod index;
mod keys;
mod manifest;
mod pack;
mod path;
mod random;
mod reader;
mod restore;
mod tend;
mod trim;
mod walk;
mod watch;
mod wire;
mod writer;

pub use beneath::open_root;
pub use cache::{FileCache, MAX_CACHED_FILES};
pub use chunk::{AVG_CHUNK, MAX_CHUNK, MIN_CHUNK};
pub use error::{Error, Result};
pub use gpunion_protocol::tables::{manifest_table, pack_table};
pub use ids::{ChunkId, PackId, SnapshotId, pack_id, snapshot_id};
pub use index::ChunkIndex;
pub use keys::{
    ChunkKey, DevicePublic, DeviceSecret, JobKey, KEY_LEN, MAX_SECRET, PackKey, WRAPPED_LEN, open_secret,
    seal_secret, unwrap_job_key, wrap_job_key,
};
pub use manifest::{
    ChunkRef, Entry, EntryKind, FileBody, Hole, MAX_FILE, Manifest, Meta, PackRef, SealedManifest,
};
pub use pack::{PackRecord, Place, SealedPack};
pub use path::{MAX_DEPTH, MAX_NAME, MAX_PATH, TreePath};
pub use random::{Randomness, SeededRandomness, SystemRandomness};
pub use reader::{PackSource, Reader};
pub use restore::{RestoreOptions, restore};
pub use tend::{Usage, clear, prepare, usage};
pub use trim::keep_only;
pub use walk::{FolderSnapshot, LeaveOut, Report, Taken, WalkOptions};
pub use watch::{Cancel, Progress, Watch};
pub use writer::{Finished, PackSink, Writer, Written};
