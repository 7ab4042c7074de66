//! What the tests of snapshots share: a store in memory, a tree to fill and to compare.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use gpunion_snapshot::*;

/// Packs by id, and every pack in the order in which it came.
#[derive(Default, Debug)]
pub(crate) struct Store {
    pub(crate) packs: BTreeMap<PackId, Vec<u8>>,
    pub(crate) records: Vec<PackRecord>,
    pub(crate) fetched: Vec<PackId>,
}

impl Store {
    pub(crate) fn put(&mut self, pack: SealedPack) -> io::Result<()> {
        assert!(!self.packs.contains_key(&pack.id), "a pack comes twice");
        assert!(pack.bytes.len() <= 8 << 20);
        self.records.push(pack.record);
        self.packs.insert(pack.id, pack.bytes);
        Ok(())
    }
}

impl PackSource for Store {
    fn pack(&mut self, id: &PackId) -> io::Result<Vec<u8>> {
        self.fetched.push(*id);
        self.packs.get(id).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

pub(crate) fn chunk_key() -> ChunkKey {
    ChunkKey::from_bytes([7; 32])
}

pub(crate) fn job_key() -> JobKey {
    JobKey::from_bytes([9; 32])
}

pub(crate) fn index() -> ChunkIndex {
    ChunkIndex::new(chunk_key())
}

/// One snapshot in a single pass, on top of `parent`.
pub(crate) fn take(dir: &Path, store: &mut Store, parent: Option<&Taken>) -> Result<Taken> {
    let mut index = index();
    let parent = match parent {
        Some(taken) => {
            index.add_manifest(&taken.finished.manifest)?;
            Some((taken.finished.manifest.clone(), taken.cache.clone()))
        }
        None => None,
    };
    let root = open_root(dir)?;
    let sink = |pack| store.put(pack);
    let writer = Writer::new(index, sink, SystemRandomness, Watch::default())?;
    FolderSnapshot::new(root, writer, parent, WalkOptions::default()).pass_two(&job_key())
}

pub(crate) fn put_back(manifest: &Manifest, store: &mut Store, dir: &Path) -> Result<Progress> {
    let root = open_root(dir)?;
    let options = RestoreOptions::default();
    restore(manifest, store, &root, options, &mut Watch::default())
}

/// All that a snapshot keeps of a tree, in a form that can be compared.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) kind: &'static str,
    pub(crate) mode: u32,
    pub(crate) mtime: (i64, i64),
    pub(crate) data: Vec<u8>,
    pub(crate) same_as: Option<Vec<u8>>,
}

pub(crate) fn look(dir: &Path) -> BTreeMap<Vec<u8>, Seen> {
    let mut seen = BTreeMap::new();
    look_into(dir, dir, &mut seen, &mut BTreeMap::new());
    seen
}

fn look_into(
    root: &Path,
    dir: &Path,
    seen: &mut BTreeMap<Vec<u8>, Seen>,
    inodes: &mut BTreeMap<u64, Vec<u8>>,
) {
    let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    for path in names {
        let meta = path.symlink_metadata().unwrap();
        let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes();
        let mut same_as = None;
        let (kind, data) = if meta.is_dir() {
            ("folder", Vec::new())
        } else if meta.is_symlink() {
            let target = std::fs::read_link(&path).unwrap();
            ("link", target.as_os_str().as_bytes().to_vec())
        } else if meta.is_file() {
            same_as = inodes.insert(meta.ino(), name.to_vec());
            ("file", std::fs::read(&path).unwrap())
        } else {
            continue;
        };
        let entry = Seen {
            kind,
            mode: if meta.is_symlink() { 0 } else { meta.mode() & 0o1777 },
            mtime: (meta.mtime(), meta.mtime_nsec()),
            data,
            same_as,
        };
        seen.insert(name.to_vec(), entry);
        if meta.is_dir() {
            look_into(root, &path, seen, inodes);
        }
    }
}

/// Bytes that do not compress and are always the same.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    SeededRandomness::new(&seed.to_le_bytes()).fill(&mut bytes).unwrap();
    bytes
}
