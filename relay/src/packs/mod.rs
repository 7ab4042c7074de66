//! Sealed packs and manifests on disk: immutable files, each named by the BLAKE3 of its bytes.
//!
//! The relay can read none of them. It takes a file in only when its bytes have the id they
//! claim, and it shows one only when it is whole: written aside, synced, then given its name.
//! Resuming after a cut needs nothing more: whoever sends asks which ids are missing.
//!
//! A manifest is here only with all its packs: it comes after them (`Received::keep_with`) and goes
//! before them (`sweep`).

mod gate;
mod parts;
mod receive;
mod shelf;
mod sweep;

pub(crate) use parts::{Added, Parts};
pub(crate) use receive::{Kept, PutError, Received};
pub(crate) use shelf::Shelf;
pub(crate) use sweep::{Graces, Sweeper, Swept};

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use gate::Gate;
use gpunion_protocol::ids::SnapshotId;
use gpunion_protocol::time::WallMs;
use tokio::sync::Notify;

use crate::clock;
use crate::error::Error;
use crate::room::Room;

/// A pack is at most 8 MiB; a little more is let in so that the format may grow a header.
pub(crate) const PACK_MAX: u64 = 9 << 20;
/// A manifest of some million files.
pub(crate) const SNAPSHOT_MAX: u64 = 64 << 20;

/// Everything sealed that the relay keeps.
pub(crate) struct Packs {
    pub(crate) packs: Shelf,
    pub(crate) snapshots: Shelf,
    pub(crate) parts: Parts,
    /// Somebody was refused for want of room.
    pub(crate) full: Notify,
    pub(crate) totals: Totals,
    room: Room,
    /// Snapshots that somebody began to fetch.
    fetched: Mutex<BTreeSet<[u8; 32]>>,
    /// What records named when the database was copied, and when that was.
    copied: Mutex<Vec<(WallMs, BTreeSet<SnapshotId>)>>,
}

/// What sweeps did since the start, and what the last one found; for `/metrics`.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) files: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) missing: AtomicU64,
}

impl Packs {
    pub(crate) fn open(state_dir: &Path, keep_free: u64) -> Result<Self, Error> {
        Self::with_room(state_dir, Room::new(state_dir, keep_free))
    }

    fn with_room(state_dir: &Path, room: Room) -> Result<Self, Error> {
        let incoming = state_dir.join("incoming");
        shelf::empty_dir(&incoming)?;
        let gate = Arc::new(Gate::new(clock::now()));
        let shelf = |name: &str, max| Shelf::open(&state_dir.join(name), &incoming, max, &room, &gate);
        Ok(Self {
            packs: shelf("packs", PACK_MAX)?,
            snapshots: shelf("snapshots", SNAPSHOT_MAX)?,
            parts: Parts::default(),
            full: Notify::new(),
            totals: Totals::default(),
            room,
            fetched: Mutex::default(),
            copied: Mutex::default(),
        })
    }

    /// Somebody begins to fetch it, and will come for its packs: it stays for the long grace from now
    /// on. Failing, it is as safe as it was.
    pub(crate) async fn fetches(&self, snapshot: SnapshotId) {
        if self.snapshots.missing(vec![snapshot.0]).await.is_ok_and(|missing| missing.is_empty()) {
            self.fetched().insert(snapshot.0);
        }
    }

    /// Nobody who counts on a file after this loses it in the sweep that begins here, however long that
    /// takes.
    pub(crate) fn begins_to_sweep(&self) -> WallMs {
        self.snapshots.gate().now()
    }

    /// The database is copied while records name these. Whoever copied it copies the files next: they
    /// stay for the long grace.
    pub(crate) fn copied(&self, needed: BTreeSet<SnapshotId>) {
        let at = self.snapshots.gate().now();
        self.copied.lock().unwrap_or_else(PoisonError::into_inner).push((at, needed));
    }

    /// What copies of the database name that were made since then; older ones are forgotten.
    fn copied_since(&self, since: WallMs) -> BTreeSet<[u8; 32]> {
        let mut copied = self.copied.lock().unwrap_or_else(PoisonError::into_inner);
        copied.retain(|(at, _)| *at > since);
        copied.iter().flat_map(|(_, needed)| needed).map(|id| id.0).collect()
    }

    fn fetched(&self) -> std::sync::MutexGuard<'_, BTreeSet<[u8; 32]>> {
        self.fetched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
