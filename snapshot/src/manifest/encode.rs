//! From a manifest to its sealed bytes. The encoding has one form only: the same manifest and the
//! same nonce give the same bytes.

use chacha20poly1305::XChaCha20Poly1305;
use chacha20poly1305::aead::{AeadInOut, KeyInit};
use gpunion_protocol::tables::{MANIFEST_MAGIC, MAX_MANIFEST, MAX_SNAPSHOT_PACKS};
use zeroize::Zeroizing;

use super::order::Folders;
use super::{Entry, EntryKind, MAX_BODY, MAX_CHUNKS, MAX_ENTRIES, Manifest, SealedManifest};
use crate::error::{Error, Result};
use crate::ids::snapshot_id;
use crate::keys::{KEY_LEN, NONCE_LEN};
use crate::path::MAX_PATH;
use crate::random::Randomness;
use crate::wire::u32_of;

pub(super) const DIR: u8 = 0;
pub(super) const FILE: u8 = 1;
pub(super) const SYMLINK: u8 = 2;
pub(super) const HARD_LINK: u8 = 3;

const LEVEL: i32 = 3;

pub(super) fn seal(
    manifest: &Manifest,
    key: &[u8; KEY_LEN],
    random: &mut dyn Randomness,
) -> Result<SealedManifest> {
    within("packs of a snapshot", manifest.packs.len(), MAX_SNAPSHOT_PACKS)?;
    within("chunks of a snapshot", manifest.chunks.len(), MAX_CHUNKS)?;
    within("entries of a snapshot", manifest.entries.len(), MAX_ENTRIES)?;
    check(manifest)?;
    let body = Zeroizing::new(body(manifest));
    within("bytes of a manifest", body.len(), MAX_BODY)?;
    let mut bytes = Vec::new();
    bytes.extend_from_slice(MANIFEST_MAGIC);
    bytes.extend_from_slice(&u32_of(manifest.packs.len()).to_le_bytes());
    for pack in &manifest.packs {
        bytes.extend_from_slice(&pack.id.0);
    }
    let table = bytes.len();
    let mut nonce = [0; NONCE_LEN];
    random.fill(&mut nonce)?;
    bytes.extend_from_slice(&nonce);
    let start = bytes.len();
    bytes.extend_from_slice(&u32_of(body.len()).to_le_bytes());
    let packed = zstd::bulk::compress(&body, LEVEL)
        .map_err(|source| Error::System { what: "the manifest can't be compressed", source })?;
    bytes.extend_from_slice(&packed);
    let (head, sealed) = bytes.split_at_mut(start);
    let tag = XChaCha20Poly1305::new(&(*key).into())
        .encrypt_inout_detached(&nonce.into(), &head[..table], sealed.into())
        .map_err(|_| Error::NotOpened { what: "manifest" })?;
    bytes.extend_from_slice(&tag);
    within("bytes of a sealed manifest", bytes.len(), MAX_MANIFEST)?;
    let id = snapshot_id(&bytes);
    Ok(SealedManifest { id, bytes })
}

fn within(what: &'static str, found: usize, limit: usize) -> Result<()> {
    if found <= limit {
        return Ok(());
    }
    Err(Error::OverLimit { what, found: found as u64, limit: limit as u64 })
}

/// A caller that adds entries by itself may get their order or their folders wrong.
fn check(manifest: &Manifest) -> Result<()> {
    let mut folders = Folders::default();
    for (at, entry) in manifest.entries.iter().enumerate() {
        let before = &manifest.entries[..at];
        let problem = match &entry.kind {
            kind if !folders.admit(before, &entry.path, *kind == EntryKind::Dir) => {
                "it comes twice, or its folder is missing"
            }
            EntryKind::Symlink { target } if target.is_empty() || target.len() > MAX_PATH => {
                "it is a link whose target is empty or over 4095 bytes"
            }
            EntryKind::HardLink { to } if !is_file(before, *to) => "it is a hard link to no file before it",
            EntryKind::Dir | EntryKind::File(_) | EntryKind::Symlink { .. } | EntryKind::HardLink { .. } => {
                continue;
            }
        };
        return Err(Error::BadPath { shown: entry.path.to_string(), reason: problem });
    }
    Ok(())
}

fn is_file(before: &[Entry], at: u32) -> bool {
    let entry = before.get(at as usize);
    matches!(entry.map(|entry| &entry.kind), Some(EntryKind::File(_)))
}

fn body(manifest: &Manifest) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(manifest.chunk_key.expose());
    for pack in &manifest.packs {
        out.extend_from_slice(pack.key.expose());
    }
    put_u32(&mut out, u32_of(manifest.chunks.len()));
    for chunk in &manifest.chunks {
        out.extend_from_slice(&chunk.id.0);
        put_u32(&mut out, chunk.pack);
        chunk.place.encode(&mut out);
    }
    put_u32(&mut out, u32_of(manifest.entries.len()));
    for entry in &manifest.entries {
        put_entry(&mut out, entry);
    }
    out
}

fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    out.push(match entry.kind {
        EntryKind::Dir => DIR,
        EntryKind::File(_) => FILE,
        EntryKind::Symlink { .. } => SYMLINK,
        EntryKind::HardLink { .. } => HARD_LINK,
    });
    put_short(out, entry.path.as_bytes());
    out.extend_from_slice(&entry.meta.mode.to_le_bytes());
    out.extend_from_slice(&entry.meta.mtime.0.to_le_bytes());
    put_u32(out, entry.meta.mtime.1);
    match &entry.kind {
        EntryKind::Dir => {}
        EntryKind::File(body) => {
            out.extend_from_slice(&body.size.to_le_bytes());
            put_u32(out, u32_of(body.holes.len()));
            for hole in &body.holes {
                out.extend_from_slice(&hole.offset.to_le_bytes());
                out.extend_from_slice(&hole.len.to_le_bytes());
            }
            put_u32(out, u32_of(body.chunks.len()));
            for chunk in &body.chunks {
                put_u32(out, *chunk);
            }
        }
        EntryKind::Symlink { target } => put_short(out, target),
        EntryKind::HardLink { to } => put_u32(out, *to),
    }
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// At most 4095 bytes: paths and link targets are.
fn put_short(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(bytes);
}
