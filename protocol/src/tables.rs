//! The plain tables in front of sealed packs and manifests: all that a relay can read of them.
//!
//! By them it answers have-lists, checks that a snapshot is whole, and sweeps. They need no key; a
//! table is as true as the id of the bytes it stands in, so verify that first. The whole format is
//! in docs/protocol.md.

use crate::ids::{ChunkId, PackId};

/// First bytes of a pack; the last digit is the version.
pub const PACK_MAGIC: &[u8; 8] = b"GPUPACK1";
/// Largest pack in bytes, table included.
pub const MAX_PACK: usize = 8 * 1024 * 1024;
/// Most chunks in one pack.
pub const MAX_PACK_CHUNKS: usize = 16_384;
/// First bytes of a sealed manifest; the last digit is the version.
pub const MANIFEST_MAGIC: &[u8; 8] = b"GPUMANI1";
/// Largest sealed manifest in bytes.
pub const MAX_MANIFEST: usize = 64 * 1024 * 1024;
/// Most packs that one snapshot may need.
pub const MAX_SNAPSHOT_PACKS: usize = 1 << 20;

/// Magic and count.
const HEAD: usize = 8 + 4;
const ID: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadTable {
    #[error("it does not begin like a {0} of this version")]
    Magic(&'static str),
    #[error("it ends before its table does")]
    Short,
    #[error("it or its table is over the limit")]
    OverLimit,
    #[error("its table is empty")]
    Empty,
    #[error("its table is not in order")]
    Order,
}

/// The chunks of a pack, in their order in it.
pub fn pack_table(pack: &[u8]) -> Result<Vec<ChunkId>, BadTable> {
    if pack.len() > MAX_PACK {
        return Err(BadTable::OverLimit);
    }
    let ids = table(pack, PACK_MAGIC, "pack", MAX_PACK_CHUNKS)?;
    if ids.is_empty() {
        return Err(BadTable::Empty);
    }
    Ok(ids.into_iter().map(ChunkId).collect())
}

/// The packs that a snapshot needs: sorted, none twice. The beginning of the bytes is enough.
pub fn manifest_table(sealed: &[u8]) -> Result<Vec<PackId>, BadTable> {
    if sealed.len() > MAX_MANIFEST {
        return Err(BadTable::OverLimit);
    }
    let ids = table(sealed, MANIFEST_MAGIC, "manifest", MAX_SNAPSHOT_PACKS)?;
    if !ids.is_sorted_by(|a, b| a < b) {
        return Err(BadTable::Order);
    }
    Ok(ids.into_iter().map(PackId).collect())
}

/// Length in bytes of a table of `count` ids with all that stands before it.
#[must_use]
pub fn table_len(count: usize) -> usize {
    HEAD + count * ID
}

fn table(bytes: &[u8], magic: &[u8; 8], kind: &'static str, limit: usize) -> Result<Vec<[u8; ID]>, BadTable> {
    let rest = bytes.strip_prefix(magic).ok_or(BadTable::Magic(kind))?;
    let (count, rest) = rest.split_first_chunk().ok_or(BadTable::Short)?;
    let count = u32::from_le_bytes(*count) as usize;
    if count > limit {
        return Err(BadTable::OverLimit);
    }
    let ids = rest.get(..count * ID).ok_or(BadTable::Short)?;
    let (ids, _) = ids.as_chunks::<ID>();
    Ok(ids.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(magic: &[u8; 8], count: u32, ids: &[u8]) -> Vec<u8> {
        let mut out = magic.to_vec();
        out.extend_from_slice(&count.to_le_bytes());
        out.extend(ids.iter().flat_map(|id| [*id; ID]));
        out
    }

    #[test]
    fn a_table_is_read_only_where_it_is_whole() {
        let pack = bytes(PACK_MAGIC, 2, &[9, 3]);
        assert_eq!(pack_table(&pack), Ok(vec![ChunkId([9; 32]), ChunkId([3; 32])]));
        assert_eq!(pack_table(&pack[..pack.len() - 1]), Err(BadTable::Short));
        assert_eq!(pack_table(&bytes(PACK_MAGIC, 0, &[])), Err(BadTable::Empty));
        assert_eq!(pack_table(&bytes(PACK_MAGIC, u32::MAX, &[1])), Err(BadTable::OverLimit));
        assert_eq!(pack_table(b"GPUPACK2"), Err(BadTable::Magic("pack")));
        assert_eq!(pack_table(b"GPUPACK1"), Err(BadTable::Short));
    }

    #[test]
    fn the_packs_of_a_manifest_are_in_order() {
        let ordered = bytes(MANIFEST_MAGIC, 2, &[1, 2]);
        assert_eq!(manifest_table(&ordered), Ok(vec![PackId([1; 32]), PackId([2; 32])]));
        assert_eq!(manifest_table(&bytes(MANIFEST_MAGIC, 2, &[2, 1])), Err(BadTable::Order));
        assert_eq!(manifest_table(&bytes(MANIFEST_MAGIC, 2, &[1, 1])), Err(BadTable::Order));
        assert_eq!(manifest_table(&bytes(MANIFEST_MAGIC, 0, &[])), Ok(vec![]));
    }
}
