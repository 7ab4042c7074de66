//! From sealed bytes to a manifest. Whoever holds the job's key may have made these bytes, so
//! they are hostile even when they open: every count is bounded by what is there, and every
//! promise of the types is checked here, so that nothing behind needs to.

use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::{AeadInOut, KeyInit};
use gpunion_protocol::tables::{manifest_table, table_len};
use zeroize::Zeroizing;

use super::encode::{DIR, FILE, HARD_LINK, SYMLINK};
use super::order::Folders;
use super::{
    ChunkRef, Entry, EntryKind, FileBody, Hole, MAX_BODY, MAX_CHUNKS, MAX_ENTRIES, MAX_FILE, MAX_HOLES,
    MAX_MODE, Manifest, Meta, PackRef,
};
use crate::error::{Error, Result};
use crate::ids::{ChunkId, ID_LEN, PackId};
use crate::keys::{ChunkKey, KEY_LEN, NONCE_LEN, PackKey, TAG_LEN};
use crate::pack::Place;
use crate::path::{MAX_PATH, TreePath};
use crate::wire::Fields;

/// Kind, length of the path, one byte of path, mode, time: what an entry takes at least.
const LEAST_ENTRY: usize = 1 + 2 + 1 + 2 + 8 + 4;

pub(super) fn open(key: &[u8; KEY_LEN], sealed: &[u8]) -> Result<Manifest> {
    let mut from = Fields::new("manifest", sealed);
    let packs = manifest_table(sealed).or_else(|_| from.bad("its table can't be read"))?;
    let head = from.take(table_len(packs.len()))?;
    let nonce: [u8; NONCE_LEN] = from.array()?;
    let Some((body, tag)) = from.rest().split_last_chunk::<TAG_LEN>() else {
        return from.bad("it ends too early");
    };
    let mut plain = Zeroizing::new(body.to_vec());
    XChaCha20Poly1305::new(&(*key).into())
        .decrypt_inout_detached(&nonce.into(), head, plain.as_mut_slice().into(), &(*tag).into())
        .map_err(|_| Error::NotOpened { what: "manifest" })?;
    let Some((len, packed)) = plain.split_first_chunk::<4>() else {
        return from.bad("it ends too early");
    };
    let len = u32::from_le_bytes(*len) as usize;
    if len > MAX_BODY {
        return from.bad("it is over 256 MiB when unpacked");
    }
    let body = Zeroizing::new(
        zstd::bulk::decompress(packed, len).or_else(|_| from.bad("it can't be decompressed"))?,
    );
    if body.len() != len {
        return from.bad("it is shorter than it says");
    }
    read_body(packs, &body)
}

fn read_body(ids: Vec<PackId>, body: &[u8]) -> Result<Manifest> {
    let mut from = Fields::new("manifest", body);
    let chunk_key = ChunkKey::from_bytes(from.array()?);
    let mut packs = Vec::with_capacity(ids.len());
    for id in ids {
        let key = PackKey::from_bytes(from.array()?);
        packs.push(PackRef { id, key });
    }
    let chunks = read_chunks(&mut from, packs.len())?;
    let count = from.count(LEAST_ENTRY, MAX_ENTRIES)?;
    let mut entries = Vec::with_capacity(count.min(1 << 16));
    let mut folders = Folders::default();
    for _ in 0..count {
        let entry = read_entry(&mut from, &entries, &chunks)?;
        if !folders.admit(&entries, &entry.path, entry.kind == EntryKind::Dir) {
            return from.bad("its entries are not in order, or a folder is missing");
        }
        entries.push(entry);
    }
    from.end()?;
    Ok(Manifest { chunk_key, packs, chunks, entries })
}

fn read_chunks(from: &mut Fields<'_>, packs: usize) -> Result<Vec<ChunkRef>> {
    let count = from.count(ID_LEN + 4 + Place::BYTES, MAX_CHUNKS)?;
    let mut chunks = Vec::with_capacity(count);
    for _ in 0..count {
        let id = ChunkId(from.array()?);
        let pack = from.u32()?;
        if pack as usize >= packs {
            return from.bad("a chunk names a pack that is not there");
        }
        let place = Place::decode(from)?;
        chunks.push(ChunkRef { id, pack, place });
    }
    Ok(chunks)
}

fn read_entry(from: &mut Fields<'_>, before: &[Entry], chunks: &[ChunkRef]) -> Result<Entry> {
    let kind = from.u8()?;
    let path = read_short(from)?.to_vec();
    let Ok(path) = TreePath::new(path) else {
        return from.bad("a path would leave the folder, or is no path");
    };
    let mode = from.u16()?;
    let mtime = (from.i64()?, from.u32()?);
    if mode > MAX_MODE || mtime.1 >= 1_000_000_000 {
        return from.bad("a mode or a time is out of range");
    }
    let kind = match kind {
        DIR => EntryKind::Dir,
        FILE => EntryKind::File(read_file(from, chunks)?),
        SYMLINK => {
            let target = read_short(from)?.to_vec();
            if target.is_empty() || target.contains(&0) {
                return from.bad("a link points to no path");
            }
            EntryKind::Symlink { target }
        }
        HARD_LINK => {
            let to = from.u32()?;
            let file = before.get(to as usize).map(|entry| &entry.kind);
            if !matches!(file, Some(EntryKind::File(_))) {
                return from.bad("a hard link names no file before it");
            }
            EntryKind::HardLink { to }
        }
        _ => return from.bad("an entry is of no known kind"),
    };
    let meta = Meta { mode, mtime };
    Ok(Entry { path, meta, kind })
}

fn read_file(from: &mut Fields<'_>, chunks: &[ChunkRef]) -> Result<FileBody> {
    let size = from.u64()?;
    if size > MAX_FILE {
        return from.bad("a file is over its limit");
    }
    let count = from.count(16, MAX_HOLES)?;
    let mut holes = Vec::with_capacity(count);
    let (mut end, mut empty) = (0_u64, 0_u64);
    for number in 0..count {
        let (offset, len) = (from.u64()?, from.u64()?);
        let touches = if number == 0 { offset < end } else { offset <= end };
        if touches || len == 0 || len > size || offset > size - len {
            return from.bad("the holes of a file are not in order");
        }
        end = offset + len;
        empty += len;
        holes.push(Hole { offset, len });
    }
    let count = from.count(4, MAX_CHUNKS)?;
    let mut numbers = Vec::with_capacity(count);
    let mut data = 0_u64;
    for _ in 0..count {
        let number = from.u32()?;
        let Some(chunk) = chunks.get(number as usize) else {
            return from.bad("a file names a chunk that is not there");
        };
        data += u64::from(chunk.place.raw_len);
        numbers.push(number);
    }
    if data != size - empty {
        return from.bad("the chunks of a file are not its size");
    }
    Ok(FileBody { size, holes, chunks: numbers })
}

fn read_short<'a>(from: &mut Fields<'a>) -> Result<&'a [u8]> {
    let len = from.u16()? as usize;
    if len > MAX_PATH {
        return from.bad("a path is over 4095 bytes");
    }
    from.take(len)
}
