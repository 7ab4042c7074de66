//! Sealed packs and manifests on disk: immutable files, each named by the BLAKE3 of its bytes.
//!
//! The relay can read none of them. It takes a file in only when its bytes have the id they
//! claim, and it shows one only when it is whole: written aside, synced, then given its name.
//! Resuming after a cut needs nothing more: whoever sends asks which ids are missing.

mod parts;
mod receive;
mod shelf;

pub(crate) use parts::{Added, Parts};
pub(crate) use receive::{PutError, Received};
pub(crate) use shelf::Shelf;

use std::path::Path;

use crate::error::Error;

/// A pack is at most 8 MiB; a little more is let in so that the format may grow a header.
pub(crate) const PACK_MAX: u64 = 9 << 20;
/// A manifest of some million files.
pub(crate) const SNAPSHOT_MAX: u64 = 64 << 20;

/// Everything sealed that the relay keeps.
pub(crate) struct Packs {
    pub(crate) packs: Shelf,
    pub(crate) snapshots: Shelf,
    pub(crate) parts: Parts,
}

impl Packs {
    pub(crate) fn open(state_dir: &Path, keep_free: u64) -> Result<Self, Error> {
        let incoming = state_dir.join("incoming");
        shelf::empty_dir(&incoming)?;
        Ok(Self {
            packs: Shelf::open(&state_dir.join("packs"), &incoming, PACK_MAX, keep_free)?,
            snapshots: Shelf::open(&state_dir.join("snapshots"), &incoming, SNAPSHOT_MAX, keep_free)?,
            parts: Parts::default(),
        })
    }
}
