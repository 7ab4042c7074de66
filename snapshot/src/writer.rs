//! Turns files into chunks, packs and a manifest. Knows no file system: the walk feeds it, and so
//! may anything that can be read (an image's layers).
//!
//! Bounded in memory: one read-ahead buffer, one pack being filled, one being sealed; the rest is
//! the index. A pack leaves as soon as it is full, through a sink that may block.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};

use crate::chunk::Chunker;
use crate::error::{Error, Result};
use crate::ids::{ChunkId, PackId};
use crate::index::{ChunkIndex, Location};
use crate::keys::{JobKey, PackKey};
use crate::manifest::{
    ChunkRef, Entry, EntryKind, FileBody, Hole, MAX_FILE, Manifest, Meta, PackRef, SealedManifest,
};
use crate::pack::{PackBuilder, SealedPack, payload};
use crate::path::TreePath;
use crate::random::Randomness;
use crate::watch::{Progress, Watch};
use crate::wire::u32_of;

const LEVEL: i32 = 1;

/// Takes each pack as it is finished. May block; an error ends the run.
pub trait PackSink {
    fn pack(&mut self, pack: SealedPack) -> io::Result<()>;
}

impl<F: FnMut(SealedPack) -> io::Result<()>> PackSink for F {
    fn pack(&mut self, pack: SealedPack) -> io::Result<()> {
        self(pack)
    }
}

/// What a run wrote, and what it could build on. Lengths in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    pub chunks_new: u64,
    pub chunks_reused: u64,
    /// Raw bytes of the new chunks.
    pub bytes_new: u64,
    pub packs: u64,
    /// Sealed bytes of the packs that were handed on.
    pub packed_bytes: u64,
    /// Bytes that were read and chunked.
    pub bytes_read: u64,
}

/// A file's data as chunks of this writer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) size: u64,
    pub(crate) holes: Vec<Hole>,
    pub(crate) chunks: Vec<ChunkId>,
}

pub struct Writer<'a> {
    index: ChunkIndex,
    chunker: Chunker,
    out: Output<'a>,
    entries: Vec<(TreePath, Meta, NewKind)>,
    progress: Progress,
    watch: Watch<'a>,
}

/// What is on its way out of the writer.
struct Output<'a> {
    zstd: zstd::bulk::Compressor<'static>,
    scratch: Vec<u8>,
    builder: PackBuilder,
    /// Chunks in `builder`, which have no place yet.
    pending: BTreeSet<ChunkId>,
    sink: Box<dyn PackSink + 'a>,
    random: Box<dyn Randomness + 'a>,
    written: Written,
}

pub(crate) enum NewKind {
    Dir,
    File(Content),
    Symlink(Vec<u8>),
    HardLink(TreePath),
}

impl<'a> Writer<'a> {
    pub fn new(
        index: ChunkIndex,
        sink: impl PackSink + 'a,
        random: impl Randomness + 'a,
        watch: Watch<'a>,
    ) -> Result<Self> {
        let zstd = zstd::bulk::Compressor::new(LEVEL)
            .map_err(|source| Error::System { what: "the compressor can't start", source })?;
        Ok(Self {
            chunker: Chunker::new(index.chunk_key()),
            index,
            out: Output {
                zstd,
                scratch: Vec::new(),
                builder: PackBuilder::default(),
                pending: BTreeSet::new(),
                sink: Box::new(sink),
                random: Box::new(random),
                written: Written::default(),
            },
            entries: Vec::new(),
            progress: Progress::default(),
            watch,
        })
    }

    pub fn add_dir(&mut self, path: TreePath, meta: Meta) {
        self.entries.push((path, meta, NewKind::Dir));
    }

    pub fn add_symlink(&mut self, path: TreePath, meta: Meta, target: Vec<u8>) {
        self.entries.push((path, meta, NewKind::Symlink(target)));
    }

    /// `to` must be a file that is added too and comes first in the order of paths.
    pub fn add_hard_link(&mut self, path: TreePath, meta: Meta, to: TreePath) {
        self.entries.push((path, meta, NewKind::HardLink(to)));
    }

    /// Reads `from` to its end; answers the file's length in bytes.
    pub fn add_file(&mut self, path: TreePath, meta: Meta, from: &mut dyn Read) -> Result<u64> {
        let content = self.read(from, &path)?;
        let size = content.size;
        self.progress.files += 1;
        (self.watch.progress)(self.progress);
        self.entries.push((path, meta, NewKind::File(content)));
        Ok(size)
    }

    #[must_use]
    pub fn written(&self) -> Written {
        self.out.written
    }

    /// Writes out the last pack and seals the manifest.
    pub fn finish(mut self, job_key: &JobKey) -> Result<Finished> {
        self.out.flush(&mut self.index)?;
        let manifest = assemble(&self.index, self.entries)?;
        let sealed = manifest.seal(job_key, self.out.random.as_mut())?;
        Ok(Finished { sealed, manifest, written: self.out.written })
    }

    /// Chunks a stream without making an entry of it.
    pub(crate) fn read(&mut self, from: &mut dyn Read, path: &TreePath) -> Result<Content> {
        let mut content = Content::default();
        let Self { index, chunker, out, progress, watch, .. } = self;
        chunker.run(
            from,
            |source| Error::Unreadable { path: path.clone(), source },
            |id, bytes| {
                watch.cancel.check()?;
                content.size += bytes.len() as u64;
                content.chunks.push(id);
                out.chunk(index, id, bytes)?;
                progress.bytes += bytes.len() as u64;
                (watch.progress)(*progress);
                Ok(())
            },
        )?;
        if content.size > MAX_FILE {
            return Err(Error::OverLimit { what: "bytes of a file", found: content.size, limit: MAX_FILE });
        }
        Ok(content)
    }

    pub(crate) fn add(&mut self, path: TreePath, meta: Meta, kind: NewKind) {
        self.entries.push((path, meta, kind));
    }

    pub(crate) fn knows(&self, id: &ChunkId) -> bool {
        self.index.get(id).is_some() || self.out.pending.contains(id)
    }

    /// Number that the next entry has in the manifest, while entries come in order.
    pub(crate) fn next_entry(&self) -> u32 {
        u32_of(self.entries.len())
    }

    pub(crate) fn count_file(&mut self) {
        self.progress.files += 1;
        (self.watch.progress)(self.progress);
    }

    pub(crate) fn restart_progress(&mut self) {
        self.progress = Progress::default();
    }

    pub(crate) fn check_cancel(&self) -> Result<()> {
        self.watch.cancel.check()
    }

    /// Hands on the pack that is being filled, so that a pause leaves nothing behind.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.out.flush(&mut self.index)
    }
}

impl fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("entries", &self.entries.len())
            .field("written", &self.out.written)
            .finish_non_exhaustive()
    }
}

impl Output<'_> {
    fn chunk(&mut self, index: &mut ChunkIndex, id: ChunkId, bytes: &[u8]) -> Result<()> {
        self.written.bytes_read += bytes.len() as u64;
        if index.get(&id).is_some() || self.pending.contains(&id) {
            self.written.chunks_reused += 1;
            return Ok(());
        }
        // Out of `self` while it is borrowed: a full pack is sealed before this chunk goes in.
        let mut scratch = std::mem::take(&mut self.scratch);
        let payload = payload(bytes, &mut self.zstd, &mut scratch);
        if !self.builder.fits(payload.len()) {
            self.flush(index)?;
        }
        self.builder.push(id, payload, bytes.len());
        self.scratch = scratch;
        self.pending.insert(id);
        self.written.chunks_new += 1;
        self.written.bytes_new += bytes.len() as u64;
        if self.builder.is_full() {
            self.flush(index)?;
        }
        Ok(())
    }

    fn flush(&mut self, index: &mut ChunkIndex) -> Result<()> {
        if self.builder.is_empty() {
            return Ok(());
        }
        let key = PackKey::generate(self.random.as_mut())?;
        let pack = self.builder.seal(key)?;
        self.written.packs += 1;
        self.written.packed_bytes += pack.bytes.len() as u64;
        index.add_record(&pack.record);
        self.pending.clear();
        self.sink.pack(pack).map_err(Error::PackSink)
    }
}

/// A snapshot that is whole: all its packs went through the sink before this existed.
#[derive(Debug)]
pub struct Finished {
    pub sealed: SealedManifest,
    pub manifest: Manifest,
    pub written: Written,
}

/// Sorts the entries and numbers the chunks and packs that they use, each by its first use.
fn assemble(index: &ChunkIndex, mut new: Vec<(TreePath, Meta, NewKind)>) -> Result<Manifest> {
    new.sort_by(|a, b| a.0.cmp(&b.0));
    let mut chunks: Vec<(ChunkId, Location)> = Vec::new();
    let mut numbers: BTreeMap<ChunkId, u32> = BTreeMap::new();
    let mut entries: Vec<Entry> = Vec::with_capacity(new.len());
    let missing =
        Error::Malformed { what: "snapshot", reason: "it needs a chunk or a file that was never added" };
    let places: BTreeMap<TreePath, u32> = hard_link_targets(&new);
    for (path, meta, kind) in new {
        let kind = match kind {
            NewKind::Dir => EntryKind::Dir,
            NewKind::Symlink(target) => EntryKind::Symlink { target },
            NewKind::HardLink(to) => match places.get(&to) {
                Some(to) => EntryKind::HardLink { to: *to },
                None => return Err(missing),
            },
            NewKind::File(content) => {
                let mut of_file = Vec::with_capacity(content.chunks.len());
                for id in &content.chunks {
                    let next = u32_of(chunks.len());
                    let number = *numbers.entry(*id).or_insert(next);
                    if number == next {
                        let Some(at) = index.get(id) else {
                            return Err(missing);
                        };
                        chunks.push((*id, at));
                    }
                    of_file.push(number);
                }
                EntryKind::File(FileBody { size: content.size, holes: content.holes, chunks: of_file })
            }
        };
        entries.push(Entry { path, meta, kind });
    }
    let (packs, chunks) = number_packs(index, &chunks);
    Ok(Manifest { chunk_key: index.chunk_key().clone(), packs, chunks, entries })
}

fn hard_link_targets(sorted: &[(TreePath, Meta, NewKind)]) -> BTreeMap<TreePath, u32> {
    let wanted: BTreeSet<&TreePath> = sorted
        .iter()
        .filter_map(|(_, _, kind)| match kind {
            NewKind::HardLink(to) => Some(to),
            NewKind::Dir | NewKind::File(_) | NewKind::Symlink(_) => None,
        })
        .collect();
    let named = sorted.iter().enumerate();
    named
        .filter(|(_, (path, _, _))| wanted.contains(path))
        .map(|(at, (path, _, _))| (path.clone(), u32_of(at)))
        .collect()
}

fn number_packs(index: &ChunkIndex, chunks: &[(ChunkId, Location)]) -> (Vec<PackRef>, Vec<ChunkRef>) {
    let used: BTreeMap<PackId, PackKey> =
        chunks.iter().filter_map(|(_, at)| index.pack(at.pack).cloned()).collect();
    let number: BTreeMap<PackId, u32> = used.keys().enumerate().map(|(at, id)| (*id, u32_of(at))).collect();
    let refs = chunks
        .iter()
        .filter_map(|(id, at)| {
            let (pack, _) = index.pack(at.pack)?;
            Some(ChunkRef { id: *id, pack: *number.get(pack)?, place: at.place })
        })
        .collect();
    let packs = used.into_iter().map(|(id, key)| PackRef { id, key }).collect();
    (packs, refs)
}
