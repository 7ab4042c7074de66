//! One folder of immutable files: what is there, how many bytes, and how one is read.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;
use crate::room::Room;

/// Cheap to clone; all clones are one shelf.
#[derive(Clone)]
pub(crate) struct Shelf(Arc<Inner>);

struct Inner {
    dir: PathBuf,
    incoming: PathBuf,
    max: u64,
    room: Room,
    files: AtomicU64,
    bytes: AtomicU64,
    names: AtomicU64,
}

impl Shelf {
    /// Makes the folder with its 256 sub-folders and counts what is there.
    pub(crate) fn open(dir: &Path, incoming: &Path, max: u64, keep_free: u64) -> Result<Self, Error> {
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
            room: Room::new(incoming, keep_free),
            files: AtomicU64::new(files),
            bytes: AtomicU64::new(bytes),
            names: AtomicU64::new(0),
        })))
    }

    pub(crate) fn path(&self, id: &[u8; 32]) -> PathBuf {
        let name = hex::encode(id);
        self.0.dir.join(&name[..2]).join(&name)
    }

    pub(crate) fn has(&self, id: &[u8; 32]) -> bool {
        self.path(id).is_file()
    }

    /// Those of `ids` that are not here, each once, in their order.
    pub(crate) async fn missing(&self, ids: Vec<[u8; 32]>) -> io::Result<Vec<[u8; 32]>> {
        let shelf = self.clone();
        let look = move || {
            let mut seen = std::collections::BTreeSet::new();
            ids.into_iter().filter(|id| seen.insert(*id) && !shelf.has(id)).collect()
        };
        // Fails only when the runtime ends; an empty list would then be a lie.
        tokio::task::spawn_blocking(look).await.map_err(io::Error::other)
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

    /// False when the disk is so full that only the database may still grow.
    pub(crate) fn has_room(&self) -> bool {
        self.0.room.is_there()
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
