//! Packs: some hundred chunks sealed together, 4 to 8 MiB, each pack with a random key of its own.
//!
//! The table of chunk ids in front is plain and authenticated: a relay can answer have-lists and
//! verify, and reads nothing. Lengths are not in the table, since they would tell which files.

use std::fmt;

use chacha20poly1305::ChaCha20Poly1305;
use chacha20poly1305::aead::{AeadInOut, KeyInit};
use gpunion_protocol::tables::{MAX_PACK, MAX_PACK_CHUNKS, PACK_MAGIC, pack_table, table_len};

use crate::chunk::{MAX_CHUNK, name};
use crate::error::{Error, Result};
use crate::ids::{ChunkId, ID_LEN, PackId, pack_id};
use crate::keys::{JobKey, KEY_LEN, PackKey, TAG_LEN, array, derive, open, seal};
use crate::random::Randomness;
use crate::wire::{Fields, u32_of};

/// A pack is closed once it has grown over this, in bytes.
const FULL_PACK: usize = 6 * 1024 * 1024;
const HEADER: usize = PACK_MAGIC.len() + 4;
const RECORD_MAGIC: &[u8; 8] = b"GPUPREC1";
const SEALED_RECORD_MAGIC: &[u8; 8] = b"GPUPRSE1";

/// Where a chunk stands in its pack. Lengths and offsets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub offset: u32,
    pub sealed_len: u32,
    pub raw_len: u32,
}

impl Place {
    pub(crate) const BYTES: usize = 12;

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for field in [self.offset, self.sealed_len, self.raw_len] {
            out.extend_from_slice(&field.to_le_bytes());
        }
    }

    pub(crate) fn decode(from: &mut Fields<'_>) -> Result<Self> {
        let place = Self { offset: from.u32()?, sealed_len: from.u32()?, raw_len: from.u32()? };
        let (start, len) = (place.offset as usize, place.sealed_len as usize);
        if start < HEADER + ID_LEN || len < 1 + TAG_LEN + 1 || start.saturating_add(len) > MAX_PACK {
            return from.bad("a chunk lies outside of its pack");
        }
        if place.raw_len == 0 || place.raw_len as usize > MAX_CHUNK {
            return from.bad("a chunk's length is over its limit");
        }
        Ok(place)
    }
}

/// What the holder of a pack's key knows of it: enough to build on the pack without having it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackRecord {
    pub id: PackId,
    pub key: PackKey,
    pub chunks: Vec<(ChunkId, Place)>,
}

impl PackRecord {
    /// The plain form; holds the pack's key, so keep it in memory or seal it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let each = ID_LEN + Place::BYTES;
        let mut out = Vec::with_capacity(HEADER + ID_LEN + KEY_LEN + each * self.chunks.len());
        out.extend_from_slice(RECORD_MAGIC);
        out.extend_from_slice(&self.id.0);
        out.extend_from_slice(self.key.expose());
        out.extend_from_slice(&u32_of(self.chunks.len()).to_le_bytes());
        for (id, place) in &self.chunks {
            out.extend_from_slice(&id.0);
            place.encode(&mut out);
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Fields::new("pack record", bytes);
        from.magic(RECORD_MAGIC)?;
        let id = PackId(from.array()?);
        let key = PackKey::from_bytes(from.array()?);
        let count = from.count(ID_LEN + Place::BYTES, MAX_PACK_CHUNKS)?;
        let mut chunks = Vec::with_capacity(count);
        for _ in 0..count {
            chunks.push((ChunkId(from.array()?), Place::decode(&mut from)?));
        }
        from.end()?;
        Ok(Self { id, key, chunks })
    }

    /// The form to keep on disk, so that a cut run can be taken up again.
    pub fn seal(&self, job_key: &JobKey, random: &mut dyn Randomness) -> Result<Vec<u8>> {
        let key = record_key(job_key);
        let plain = zeroize::Zeroizing::new(self.encode());
        seal(SEALED_RECORD_MAGIC, &key, "", &plain, random)
    }

    pub fn open(job_key: &JobKey, sealed: &[u8]) -> Result<Self> {
        if sealed.len() > MAX_PACK {
            return Err(Error::Malformed { what: "pack record", reason: "too long" });
        }
        let key = record_key(job_key);
        Self::decode(&open(SEALED_RECORD_MAGIC, "pack record", &key, "", sealed)?)
    }
}

fn record_key(job_key: &JobKey) -> zeroize::Zeroizing<[u8; KEY_LEN]> {
    derive("gpunion 2026 pack record v1", job_key.expose())
}

/// A finished pack on its way out.
#[derive(Clone)]
pub struct SealedPack {
    pub id: PackId,
    pub bytes: Vec<u8>,
    pub record: PackRecord,
}

impl fmt::Debug for SealedPack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedPack({}, {} bytes)", self.id, self.bytes.len())
    }
}

/// Gathers chunks until a pack is full.
#[derive(Default)]
pub(crate) struct PackBuilder {
    ids: Vec<ChunkId>,
    /// (payload length, raw length) of each chunk, in bytes.
    lens: Vec<(u32, u32)>,
    payloads: Vec<u8>,
}

impl PackBuilder {
    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.sealed_len(0, 0) >= FULL_PACK || self.ids.len() == MAX_PACK_CHUNKS
    }

    /// Length in bytes of the sealed pack if `count` more payloads of `bytes` in all came in.
    fn sealed_len(&self, count: usize, bytes: usize) -> usize {
        HEADER + (self.ids.len() + count) * (ID_LEN + TAG_LEN) + self.payloads.len() + bytes
    }

    pub(crate) fn fits(&self, payload: usize) -> bool {
        self.sealed_len(1, payload) <= MAX_PACK
    }

    /// `payload` is what [`payload`] made of the raw chunk.
    pub(crate) fn push(&mut self, id: ChunkId, payload: Payload<'_>, raw_len: usize) {
        self.ids.push(id);
        self.lens.push((u32_of(payload.len()), u32_of(raw_len)));
        self.payloads.push(payload.encoding);
        self.payloads.extend_from_slice(payload.bytes);
    }

    /// Seals what is there and starts anew.
    pub(crate) fn seal(&mut self, key: PackKey) -> Result<SealedPack> {
        let mut bytes = Vec::with_capacity(self.sealed_len(0, 0));
        bytes.extend_from_slice(PACK_MAGIC);
        bytes.extend_from_slice(&u32_of(self.ids.len()).to_le_bytes());
        for id in &self.ids {
            bytes.extend_from_slice(&id.0);
        }
        let table = blake3::hash(&bytes);
        let cipher = ChaCha20Poly1305::new(&(*key.expose()).into());
        let mut chunks = Vec::with_capacity(self.ids.len());
        let mut from = 0;
        for (id, (len, raw_len)) in self.ids.iter().zip(&self.lens) {
            let offset = bytes.len();
            let next = from + *len as usize;
            bytes.extend_from_slice(&self.payloads[from..next]);
            from = next;
            let tag = cipher
                .encrypt_inout_detached(
                    &nonce(u32_of(offset)).into(),
                    table.as_bytes(),
                    (&mut bytes[offset..]).into(),
                )
                .map_err(|_| Error::NotOpened { what: "pack" })?;
            bytes.extend_from_slice(&tag);
            let place =
                Place { offset: u32_of(offset), sealed_len: u32_of(bytes.len() - offset), raw_len: *raw_len };
            chunks.push((*id, place));
        }
        self.ids.clear();
        self.lens.clear();
        self.payloads.clear();
        let id = pack_id(&bytes);
        let record = PackRecord { id, key, chunks };
        Ok(SealedPack { id, bytes, record })
    }
}

impl fmt::Debug for PackBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackBuilder({} chunks)", self.ids.len())
    }
}

/// Each chunk's nonce is its offset: the key is the pack's own, so no nonce comes twice.
fn nonce(offset: u32) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(&offset.to_le_bytes());
    nonce
}

const PLAIN: u8 = 0;
const ZSTD: u8 = 1;

/// A chunk as it goes into a pack.
#[derive(Clone, Copy)]
pub(crate) struct Payload<'a> {
    encoding: u8,
    bytes: &'a [u8],
}

impl Payload<'_> {
    /// In bytes, that of the encoding included.
    pub(crate) fn len(&self) -> usize {
        1 + self.bytes.len()
    }
}

/// Compressed when that is shorter, else as it is. `scratch` is written over, never cleared: most
/// of what is large does not compress, and then all that is done for nothing counts.
pub(crate) fn payload<'a>(
    raw: &'a [u8],
    zstd: &mut zstd::bulk::Compressor<'_>,
    scratch: &'a mut Vec<u8>,
) -> Payload<'a> {
    // The room is one byte short of the raw length: "does not fit" means "not smaller".
    let room = raw.len().saturating_sub(1);
    if scratch.len() < room {
        scratch.resize(room, 0);
    }
    match zstd.compress_to_buffer(raw, &mut scratch[..room]) {
        Ok(len) => Payload { encoding: ZSTD, bytes: &scratch[..len] },
        Err(_) => Payload { encoding: PLAIN, bytes: raw },
    }
}

/// A pack whose bytes were found to be those of its id. Chunks are opened and verified one by one.
pub(crate) struct OpenPack {
    id: PackId,
    bytes: Vec<u8>,
    table: blake3::Hash,
    cipher: ChaCha20Poly1305,
    id_key: zeroize::Zeroizing<[u8; KEY_LEN]>,
}

impl OpenPack {
    pub(crate) fn new(id: PackId, bytes: Vec<u8>, key: &PackKey, id_key: &[u8; KEY_LEN]) -> Result<Self> {
        let bad = |reason| Error::BadPack { pack: id, reason };
        if pack_id(&bytes) != id {
            return Err(bad("its bytes are not those of its id"));
        }
        let count = pack_table(&bytes).map_err(|_| bad("its table can't be read"))?.len();
        Ok(Self {
            table: blake3::hash(&bytes[..table_len(count)]),
            cipher: ChaCha20Poly1305::new(&(*key.expose()).into()),
            id_key: zeroize::Zeroizing::new(*id_key),
            id,
            bytes,
        })
    }

    pub(crate) fn chunk(&self, chunk: ChunkId, place: Place) -> Result<Vec<u8>> {
        let bad = |reason| Error::BadPack { pack: self.id, reason };
        let start = place.offset as usize;
        let sealed = self
            .bytes
            .get(start..start.saturating_add(place.sealed_len as usize))
            .filter(|sealed| sealed.len() > TAG_LEN)
            .ok_or(bad("a chunk lies outside of it"))?;
        let (body, tag) = sealed.split_at(sealed.len() - TAG_LEN);
        let mut plain = body.to_vec();
        self.cipher
            .decrypt_inout_detached(
                &nonce(place.offset).into(),
                self.table.as_bytes(),
                plain.as_mut_slice().into(),
                &array::<TAG_LEN>(tag).into(),
            )
            .map_err(|_| bad("a chunk does not open with the key of the manifest"))?;
        let raw_len = place.raw_len as usize;
        let raw = match plain.split_first() {
            Some((&PLAIN, raw)) => raw.to_vec(),
            Some((&ZSTD, packed)) if raw_len <= MAX_CHUNK => {
                zstd::bulk::decompress(packed, raw_len).map_err(|_| bad("a chunk can't be decompressed"))?
            }
            _ => return Err(bad("a chunk has an unknown encoding")),
        };
        if raw.len() != raw_len || name(&self.id_key, &raw) != chunk {
            return Err(bad("a chunk is not the one that the manifest names"));
        }
        Ok(raw)
    }
}

impl fmt::Debug for OpenPack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenPack({})", self.id)
    }
}
