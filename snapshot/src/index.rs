//! The chunks that a writer may build on: those of earlier snapshots, of a run that was cut, and
//! its own. Only chunks whose pack's key is known are in it.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::ids::{ChunkId, PackId};
use crate::keys::{ChunkKey, PackKey};
use crate::manifest::Manifest;
use crate::pack::{PackRecord, Place};

/// Where a chunk is: the number of its pack in the index, and the place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) pack: u32,
    pub(crate) place: Place,
}

#[derive(Debug, Clone)]
pub struct ChunkIndex {
    chunk_key: ChunkKey,
    packs: Vec<(PackId, PackKey)>,
    pack_numbers: BTreeMap<PackId, u32>,
    chunks: BTreeMap<ChunkId, Location>,
}

impl ChunkIndex {
    #[must_use]
    pub fn new(chunk_key: ChunkKey) -> Self {
        Self { chunk_key, packs: Vec::new(), pack_numbers: BTreeMap::new(), chunks: BTreeMap::new() }
    }

    #[must_use]
    pub fn chunk_key(&self) -> &ChunkKey {
        &self.chunk_key
    }

    /// All chunks of an earlier snapshot of the same member.
    pub fn add_manifest(&mut self, manifest: &Manifest) -> Result<()> {
        if manifest.chunk_key != self.chunk_key {
            return Err(Error::OtherChunkKey);
        }
        let numbers: Vec<u32> =
            manifest.packs.iter().map(|pack| self.pack_number(pack.id, &pack.key)).collect();
        for chunk in &manifest.chunks {
            if let Some(pack) = numbers.get(chunk.pack as usize) {
                let place = chunk.place;
                self.chunks.entry(chunk.id).or_insert(Location { pack: *pack, place });
            }
        }
        Ok(())
    }

    /// The chunks of one pack, kept from a run that was cut.
    pub fn add_record(&mut self, record: &PackRecord) {
        let pack = self.pack_number(record.id, &record.key);
        for (id, place) in &record.chunks {
            let place = *place;
            self.chunks.entry(*id).or_insert(Location { pack, place });
        }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    pub(crate) fn get(&self, id: &ChunkId) -> Option<Location> {
        self.chunks.get(id).copied()
    }

    pub(crate) fn pack(&self, number: u32) -> Option<&(PackId, PackKey)> {
        self.packs.get(number as usize)
    }

    fn pack_number(&mut self, id: PackId, key: &PackKey) -> u32 {
        let next = crate::wire::u32_of(self.packs.len());
        let number = *self.pack_numbers.entry(id).or_insert(next);
        if number == next {
            self.packs.push((id, key.clone()));
        }
        number
    }
}
