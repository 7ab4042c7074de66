//! What was sent of a folder or an image, so that the next time only changes travel, and a run
//! that was cut goes on where it stopped.
//!
//! Holds keys of packs, so everything is sealed with a key made from the device's identity. Losing
//! it costs bandwidth and nothing else: whatever makes no sense is as good as not there.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use gpunion_snapshot::{ChunkKey, FileCache, JobKey, Manifest, PackRecord, SystemRandomness};

use crate::config::{Dirs, dirs, files};

/// A record is a few KiB; more in one piece is damage.
const RECORD_MAX: usize = 8 << 20;

#[derive(Debug, Clone)]
pub(super) struct Memory {
    last: PathBuf,
    cut: PathBuf,
    key: JobKey,
}

impl Memory {
    /// `what` names a folder or an image on this device.
    pub(super) fn open(place: &Dirs, chunk_key: &ChunkKey, what: &[u8]) -> io::Result<Self> {
        dirs::private_folder(&place.sent(), 0o700).map_err(io::Error::other)?;
        let key = JobKey::from_bytes(blake3::derive_key("gpunion 2026 what was sent v1", chunk_key.expose()));
        let name = hex::encode(&blake3::hash(what).as_bytes()[..16]);
        let at = |ending: &str| place.sent().join(format!("{name}.{ending}"));
        Ok(Self { last: at("last"), cut: at("cut"), key })
    }

    /// The last snapshot that was sent whole, and what its files looked like.
    pub(super) fn last(&self) -> Option<(Manifest, Option<FileCache>)> {
        let bytes = files::read_whole(&self.last).ok().flatten()?;
        let (length, rest) = bytes.split_at_checked(8)?;
        let length = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
        let (sealed, cache) = rest.split_at_checked(length)?;
        let manifest = Manifest::open(&self.key, sealed).ok()?;
        Some((manifest, FileCache::decode(cache).ok()))
    }

    pub(super) fn keep(&self, manifest: &Manifest, cache: Option<&FileCache>) -> io::Result<()> {
        let sealed = manifest.seal(&self.key, &mut SystemRandomness).map_err(io::Error::other)?;
        let mut bytes = (sealed.bytes.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(&sealed.bytes);
        bytes.extend(cache.map(FileCache::encode).unwrap_or_default());
        files::write_whole(&self.last, &bytes)?;
        files::remove(&self.cut)
    }

    /// One pack of a run that is not over is at the relay.
    pub(super) fn note(&self, record: &PackRecord) -> io::Result<()> {
        let sealed = record.seal(&self.key, &mut SystemRandomness).map_err(io::Error::other)?;
        let mut bytes = (sealed.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(&sealed);
        OpenOptions::new().append(true).create(true).mode(0o600).open(&self.cut)?.write_all(&bytes)
    }

    /// Packs of a run that was cut; a torn end is left alone.
    pub(super) fn noted(&self) -> Vec<PackRecord> {
        let bytes = files::read_whole(&self.cut).ok().flatten().unwrap_or_default();
        let mut rest = bytes.as_slice();
        let mut records = Vec::new();
        while let Some((length, after)) = rest.split_first_chunk::<8>() {
            let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
            if length > RECORD_MAX || length > after.len() {
                break;
            }
            let (sealed, after) = after.split_at(length);
            records.extend(PackRecord::open(&self.key, sealed).ok());
            rest = after;
        }
        records
    }
}
