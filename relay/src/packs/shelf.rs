//! One folder of immutable files: what is there, how many bytes, how one is read, and how one goes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gpunion_protocol::time::WallMs;

use super::gate::{self, Gate};
use crate::error::Error;
use crate::room::{Place, Room};

/// Cheap to clone; all clones are one shelf.
#[derive(Clone)]
pub(crate) struct Shelf(Arc<Inner>);

struct Inner {
    dir: PathBuf,
    incoming: PathBuf,
    max: u64,
    room: Room,
    gate: Arc<Gate>,
    files: AtomicU64,
    bytes: AtomicU64,
    names: AtomicU64,
}

/// A file of a shelf, as a sweep finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) id: [u8; 32],
    /// When somebody counted on it last.
    pub(super) touched: WallMs,
}

impl Shelf {
    /// Makes the folder with its 256 sub-folders and counts what is there.
    pub(super) fn open(
        dir: &Path,
        incoming: &Path,
        max: u64,
        room: &Room,
        gate: &Arc<Gate>,
    ) -> Result<Self, Error> {
        let (mut files, mut bytes) = (0, 0);
        for first in 0..=255u8 {
            let sub = dir.join(hex::encode([first]));
            std::fs::create_dir_all(&sub).map_err(Error::io("make", &sub))?;
            for entry in std::fs::read_dir(&sub).map_err(Error::io("read", &sub))? {
                let meta = entry.and_then(|e| e.metadata()).map_err(Error::io("read", &sub))?;
                files += 1;
                bytes += meta.len();
            }
        }
        Ok(Self(Arc::new(Inner {
            dir: dir.to_owned(),
            incoming: incoming.to_owned(),
            max,
            room: room.clone(),
            gate: Arc::clone(gate),
            files: AtomicU64::new(files),
            bytes: AtomicU64::new(bytes),
            names: AtomicU64::new(0),
        })))
    }

    pub(crate) fn path(&self, id: &[u8; 32]) -> PathBuf {
        let name = hex::encode(id);
        self.0.dir.join(&name[..2]).join(&name)
    }

    #[cfg(test)]
    pub(crate) fn has(&self, id: &[u8; 32]) -> bool {
        self.path(id).is_file()
    }

    /// Whether it is here; if so, it stays for a whole grace from now on.
    pub(super) fn promise(&self, id: &[u8; 32]) -> io::Result<bool> {
        self.0.gate.keeping(|| self.0.gate.touch(&self.path(id)))
    }

    /// Those of `ids` that are not here, each once, in their order. The others stay for a whole grace.
    pub(crate) async fn missing(&self, ids: Vec<[u8; 32]>) -> io::Result<Vec<[u8; 32]>> {
        let shelf = self.clone();
        let look = move || {
            let mut seen = std::collections::BTreeSet::new();
            let mut missing = Vec::new();
            for id in ids.into_iter().filter(|id| seen.insert(*id)) {
                if !shelf.promise(&id)? {
                    missing.push(id);
                }
            }
            Ok(missing)
        };
        // Fails only when the runtime ends; an empty list would then be a lie.
        tokio::task::spawn_blocking(look).await.map_err(io::Error::other)?
    }

    /// The file and its length; `None` when it is not here.
    pub(crate) async fn read(&self, id: &[u8; 32]) -> io::Result<Option<(tokio::fs::File, u64)>> {
        match tokio::fs::File::open(self.path(id)).await {
            Ok(file) => {
                let len = file.metadata().await?.len();
                Ok(Some((file, len)))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// The most bytes a file here may have.
    pub(crate) fn max(&self) -> u64 {
        self.0.max
    }

    pub(crate) fn files(&self) -> u64 {
        self.0.files.load(Ordering::Relaxed)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// A place for so many bytes; absent when the disk is so full that only the database may still
    /// grow.
    pub(crate) fn place(&self, bytes: u64) -> Option<Place> {
        self.0.room.place(bytes)
    }

    pub(super) fn gate(&self) -> &Gate {
        &self.0.gate
    }

    /// A path for a file on its way in; unique within this process, and others hold no lock.
    pub(super) fn part(&self) -> PathBuf {
        let number = self.0.names.fetch_add(1, Ordering::Relaxed);
        let kind = self.0.dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.0.incoming.join(format!("{kind}-{number}"))
    }

    pub(super) fn count(&self, len: u64) {
        self.0.files.fetch_add(1, Ordering::Relaxed);
        self.0.bytes.fetch_add(len, Ordering::Relaxed);
    }

    /// All that is here. What has no id for a name is somebody else's, and left alone.
    pub(super) fn list(&self) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        for first in 0..=255u8 {
            for entry in std::fs::read_dir(self.sub(first))? {
                let entry = entry?;
                let mut id = [0; 32];
                let name = entry.file_name();
                if hex::decode_to_slice(name.as_encoded_bytes(), &mut id).is_err() || id[0] != first {
                    continue;
                }
                match entry.metadata().and_then(|meta| gate::touched(&meta)) {
                    Ok(touched) => found.push(Found { id, touched }),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(found)
    }

    /// Removes it, unless somebody has counted on it since `before`. How many bytes went; `None`:
    /// it stays.
    pub(super) fn remove(&self, id: &[u8; 32], before: WallMs) -> io::Result<Option<u64>> {
        let path = self.path(id);
        let removed: io::Result<Option<u64>> = self.0.gate.removing(|| {
            let meta = std::fs::metadata(&path)?;
            if gate::touched(&meta)? > before {
                return Ok(None);
            }
            std::fs::remove_file(&path)?;
            Ok(Some(meta.len()))
        });
        match removed {
            Ok(Some(len)) => {
                self.0.files.fetch_sub(1, Ordering::Relaxed);
                self.0.bytes.fetch_sub(len, Ordering::Relaxed);
                Ok(Some(len))
            }
            Ok(None) => Ok(None),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// What was removed from the sub-folders of these ids stays removed, also after a power cut.
    pub(super) fn sync(&self, ids: &[[u8; 32]]) -> io::Result<()> {
        let subs: std::collections::BTreeSet<u8> = ids.iter().map(|id| id[0]).collect();
        subs.into_iter().try_for_each(|first| std::fs::File::open(self.sub(first))?.sync_all())
    }

    fn sub(&self, first: u8) -> PathBuf {
        self.0.dir.join(hex::encode([first]))
    }
}

/// Makes the folder, or removes the files that a crash left in it.
pub(super) fn empty_dir(dir: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(dir).map_err(Error::io("make", dir))?;
    for entry in std::fs::read_dir(dir).map_err(Error::io("read", dir))? {
        let path = entry.map_err(Error::io("read", dir))?.path();
        std::fs::remove_file(&path).map_err(Error::io("remove", path))?;
    }
    Ok(())
}
