//! Writes a snapshot into a folder, and nowhere else, whatever the manifest says.
//!
//! Paths can't leave the folder by their type; on top, the kernel resolves each of them beneath
//! the folder's handle and through no link. Links are made last: nothing is ever written through
//! one. Data is written pack by pack, so that each is fetched once.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{self, AtFlags, FileType, Gid, Mode, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use crate::beneath;
use crate::chunk::{id_key, name};
use crate::error::{Error, Result};
use crate::holes::stretches;
use crate::ids::{ChunkId, PackId};
use crate::keys::KEY_LEN;
use crate::manifest::{Entry, EntryKind, Manifest, Meta};
use crate::path::TreePath;
use crate::reader::{PackSource, Reader};
use crate::watch::{Progress, Watch};
use crate::wire::u32_of;

#[derive(Debug, Clone, Copy, Default)]
pub struct RestoreOptions {
    /// Uid and gid that everything gets; none leaves all to whoever restores.
    pub owner: Option<(u32, u32)>,
    /// Most bytes of data, holes not counted; more is refused before anything is written.
    pub max_bytes: Option<u64>,
    /// Goes on with a restore of the same snapshot that was cut: what of its files is there and
    /// right is kept, each chunk by its id, and no pack is asked for that nothing lacks. Only for a
    /// folder that nobody else writes.
    pub resume: bool,
}

/// Restores into `target`, in which files of the snapshot must not exist yet (folders may),
/// unless it resumes.
/// Answers what was written. On failure what was written so far stays, for the caller to remove
/// or to resume.
pub fn restore(
    manifest: &Manifest,
    source: &mut dyn PackSource,
    target: &OwnedFd,
    options: RestoreOptions,
    watch: &mut Watch<'_>,
) -> Result<Progress> {
    let total = manifest.data_bytes();
    if let Some(limit) = options.max_bytes.filter(|limit| total > *limit) {
        return Err(Error::OverLimit { what: "bytes of the snapshot", found: total, limit });
    }
    let mut run = Run {
        manifest,
        target,
        options,
        progress: Progress {
            total_bytes: Some(total),
            total_files: Some(manifest.files()),
            ..Progress::default()
        },
        watch,
    };
    run.make_folders_and_files()?;
    run.write_data(&mut Reader::new(manifest, source))?;
    run.make_links()?;
    run.set_metadata()?;
    Ok(run.progress)
}

struct Run<'a, 'w> {
    manifest: &'a Manifest,
    target: &'a OwnedFd,
    options: RestoreOptions,
    progress: Progress,
    watch: &'a mut Watch<'w>,
}

/// Where a chunk's bytes go. Sorted by pack first, then in the order of the files.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Placement {
    /// Rank of the pack by first use.
    rank: u32,
    chunk: u32,
    entry: u32,
    /// Offset in bytes among the file's data, holes left out.
    data: u64,
}

impl Run<'_, '_> {
    fn make_folders_and_files(&mut self) -> Result<()> {
        for entry in &self.manifest.entries {
            self.watch.cancel.check()?;
            match &entry.kind {
                EntryKind::Dir => self.make_folder(entry)?,
                EntryKind::File(body) => {
                    let bytes = entry.path.as_bytes();
                    if self.options.resume {
                        self.make_way(entry)?;
                    }
                    let file = match beneath::create(self.target, bytes) {
                        Err(Errno::EXIST) if self.options.resume => beneath::open_write(self.target, bytes),
                        made => made,
                    };
                    let file = file.map_err(at(entry))?;
                    fs::ftruncate(&file, body.size).map_err(at(entry))?;
                    if body.chunks.is_empty() {
                        self.progress.files += 1;
                    }
                }
                EntryKind::Symlink { .. } | EntryKind::HardLink { .. } if self.options.resume => {
                    self.make_way(entry)?;
                }
                EntryKind::Symlink { .. } | EntryKind::HardLink { .. } => {}
            }
        }
        (self.watch.progress)(self.progress);
        Ok(())
    }

    /// Of a restore that was cut only plain files stay, and they can be written again; links are
    /// made anew.
    fn make_way(&self, entry: &Entry) -> Result<()> {
        let (parent, name) = entry.path.split();
        let parent = beneath::open_parent(self.target, parent).map_err(at(entry))?;
        let there = match beneath::look(&parent, name) {
            Err(Errno::NOENT) => return Ok(()),
            there => there.map_err(at(entry))?,
        };
        let plain = beneath::kind(&there) == FileType::RegularFile && there.st_nlink == 1;
        if plain && matches!(entry.kind, EntryKind::File(_)) {
            // It may have its last mode already; one that can't even be read is made anew.
            let opened = beneath::open_read(&parent, name);
            if opened.is_ok_and(|file| fs::fchmod(&file, Mode::RUSR | Mode::WUSR).is_ok()) {
                return Ok(());
            }
        }
        fs::unlinkat(&parent, name, AtFlags::empty()).map_err(at(entry))
    }

    fn make_folder(&self, entry: &Entry) -> Result<()> {
        let (parent, name) = entry.path.split();
        let parent = beneath::open_parent(self.target, parent).map_err(at(entry))?;
        match fs::mkdirat(&parent, name, Mode::RWXU) {
            // Whatever is there must itself be a folder, and no link to one.
            Err(Errno::EXIST) => match beneath::open_dir(&parent, name) {
                Ok(dir) if self.options.resume => fs::fchmod(&dir, Mode::RWXU).map_err(at(entry)),
                Ok(_) => Ok(()),
                Err(_) => Err(at(entry)(Errno::EXIST)),
            },
            other => other.map_err(at(entry)),
        }
    }

    fn write_data(&mut self, reader: &mut Reader<'_>) -> Result<()> {
        let (mut placements, mut order) = self.placements();
        let mut left: Vec<u32> = self.manifest.entries.iter().map(chunks_of).collect();
        if self.options.resume {
            placements = self.lacking(placements, &mut left)?;
            let ranks: BTreeSet<u32> = placements.iter().map(|place| place.rank).collect();
            order = (0..).zip(order).filter(|(rank, _)| ranks.contains(rank)).map(|(_, pack)| pack).collect();
        }
        reader.plan(&order);
        let mut chunk: Option<(u32, Vec<u8>)> = None;
        let mut open: Option<OpenFile<'_>> = None;
        for place in &placements {
            self.watch.cancel.check()?;
            let bytes = match chunk.take() {
                Some((number, bytes)) if number == place.chunk => bytes,
                _ => reader.chunk(place.chunk)?,
            };
            let file = match open.take() {
                Some(file) if file.number == place.entry => file,
                _ => OpenFile::open(self.target, self.manifest, place.entry, beneath::open_write)?,
            };
            file.write(place.data, &bytes)?;
            self.progress.bytes += bytes.len() as u64;
            if let Some(left) = left.get_mut(place.entry as usize) {
                *left -= 1;
                self.progress.files += u64::from(*left == 0);
            }
            (self.watch.progress)(self.progress);
            chunk = Some((place.chunk, bytes));
            open = Some(file);
        }
        Ok(())
    }

    /// What is not there yet, in the same order. What is there counts as written.
    fn lacking(&mut self, mut placements: Vec<Placement>, left: &mut [u32]) -> Result<Vec<Placement>> {
        let key = id_key(&self.manifest.chunk_key);
        placements.sort_unstable_by_key(|place| (place.entry, place.data));
        let mut lacking = Vec::new();
        let mut open: Option<OpenFile<'_>> = None;
        for place in placements {
            self.watch.cancel.check()?;
            let file = match open.take() {
                Some(file) if file.number == place.entry => file,
                _ => OpenFile::open(self.target, self.manifest, place.entry, beneath::open_read)?,
            };
            let chunk = self.manifest.chunks.get(place.chunk as usize);
            match chunk {
                Some(chunk) if file.holds(place.data, chunk.place.raw_len, &key, chunk.id) => {
                    self.progress.bytes += u64::from(chunk.place.raw_len);
                    if let Some(left) = left.get_mut(place.entry as usize) {
                        *left -= 1;
                        self.progress.files += u64::from(*left == 0);
                    }
                    (self.watch.progress)(self.progress);
                }
                Some(_) | None => lacking.push(place),
            }
            open = Some(file);
        }
        lacking.sort_unstable();
        Ok(lacking)
    }

    fn placements(&self) -> (Vec<Placement>, Vec<PackId>) {
        let mut ranks = vec![u32::MAX; self.manifest.packs.len()];
        let mut order = Vec::new();
        let mut placements = Vec::new();
        for (number, entry) in self.manifest.entries.iter().enumerate() {
            let EntryKind::File(body) = &entry.kind else {
                continue;
            };
            let mut data = 0;
            for chunk in &body.chunks {
                let Some(found) = self.manifest.chunks.get(*chunk as usize) else {
                    continue;
                };
                let Some(rank) = ranks.get_mut(found.pack as usize) else {
                    continue;
                };
                if *rank == u32::MAX {
                    *rank = u32_of(order.len());
                    order.extend(self.manifest.packs.get(found.pack as usize).map(|p| p.id));
                }
                placements.push(Placement { rank: *rank, chunk: *chunk, entry: u32_of(number), data });
                data += u64::from(found.place.raw_len);
            }
        }
        placements.sort_unstable();
        (placements, order)
    }

    fn make_links(&self) -> Result<()> {
        let parent_of = |entry: &Entry, path: &TreePath| {
            beneath::open_parent(self.target, path.split().0).map_err(at(entry))
        };
        for entry in &self.manifest.entries {
            let EntryKind::HardLink { to } = &entry.kind else {
                continue;
            };
            let Some(file) = self.manifest.entries.get(*to as usize) else {
                continue;
            };
            let from = parent_of(entry, &file.path)?;
            let into = parent_of(entry, &entry.path)?;
            let (old, new) = (file.path.split().1, entry.path.split().1);
            fs::linkat(&from, old, &into, new, AtFlags::empty()).map_err(at(entry))?;
        }
        for entry in &self.manifest.entries {
            if let EntryKind::Symlink { target } = &entry.kind {
                let into = parent_of(entry, &entry.path)?;
                let name = entry.path.split().1;
                fs::symlinkat(target.as_slice(), &into, name).map_err(at(entry))?;
            }
        }
        Ok(())
    }

    /// Backwards, so that a folder is done after all that is in it.
    fn set_metadata(&self) -> Result<()> {
        for entry in self.manifest.entries.iter().rev() {
            let bytes = entry.path.as_bytes();
            match &entry.kind {
                EntryKind::Dir => {
                    let dir = beneath::open_dir(self.target, bytes).map_err(at(entry))?;
                    self.set_open(entry, &dir)?;
                }
                EntryKind::File(_) => {
                    let file = beneath::open_write(self.target, bytes).map_err(at(entry))?;
                    self.set_open(entry, &file)?;
                }
                EntryKind::Symlink { .. } => self.set_link(entry)?,
                EntryKind::HardLink { .. } => {}
            }
        }
        Ok(())
    }

    fn set_open(&self, entry: &Entry, fd: impl AsFd) -> Result<()> {
        if let Some((uid, gid)) = self.options.owner {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            fs::fchown(&fd, Some(uid), Some(gid)).map_err(at(entry))?;
        }
        let mode = Mode::from_raw_mode(u32::from(entry.meta.mode));
        fs::fchmod(&fd, mode).map_err(at(entry))?;
        fs::futimens(&fd, &times(entry.meta)).map_err(at(entry))
    }

    fn set_link(&self, entry: &Entry) -> Result<()> {
        let (parent, name) = entry.path.split();
        let parent = beneath::open_parent(self.target, parent).map_err(at(entry))?;
        if let Some((uid, gid)) = self.options.owner {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            fs::chownat(&parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).map_err(at(entry))?;
        }
        let times = times(entry.meta);
        fs::utimensat(&parent, name, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(at(entry))
    }
}

/// The file that is being written, with where its data lies.
struct OpenFile<'a> {
    number: u32,
    entry: &'a Entry,
    file: File,
    /// (offset among the data, offset in the file, length), in bytes.
    stretches: Vec<(u64, u64, u64)>,
}

impl<'a> OpenFile<'a> {
    fn open(
        target: &'a OwnedFd,
        manifest: &'a Manifest,
        number: u32,
        how: fn(&'a OwnedFd, &[u8]) -> std::result::Result<File, Errno>,
    ) -> Result<Self> {
        let missing = Error::Malformed { what: "manifest", reason: "an entry is missing" };
        let entry = manifest.entries.get(number as usize).ok_or(missing)?;
        let file = how(target, entry.path.as_bytes()).map_err(at(entry))?;
        let mut data = 0;
        let mut mapped = Vec::new();
        if let EntryKind::File(body) = &entry.kind {
            for (offset, len) in stretches(body.size, &body.holes) {
                mapped.push((data, offset, len));
                data += len;
            }
        }
        Ok(Self { number, entry, file, stretches: mapped })
    }

    fn write(&self, data: u64, mut bytes: &[u8]) -> Result<()> {
        for (offset, len) in self.pieces(data, bytes.len()) {
            let (part, rest) = bytes.split_at(bytes.len().min(len));
            self.file.write_all_at(part, offset).map_err(|source| unwritable(self.entry, source))?;
            bytes = rest;
        }
        Ok(())
    }

    /// Whether the file has this chunk there. What can't be read is not there.
    fn holds(&self, data: u64, len: u32, key: &[u8; KEY_LEN], id: ChunkId) -> bool {
        let mut bytes = vec![0; len as usize];
        let mut rest = bytes.as_mut_slice();
        for (offset, len) in self.pieces(data, len as usize) {
            let (part, next) = rest.split_at_mut(len);
            if self.file.read_exact_at(part, offset).is_err() {
                return false;
            }
            rest = next;
        }
        rest.is_empty() && name(key, &bytes) == id
    }

    /// Where so many bytes of data lie in the file, as (offset, length) in bytes.
    fn pieces(&self, mut data: u64, mut length: usize) -> Vec<(u64, usize)> {
        let mut pieces = Vec::with_capacity(1);
        let first = self.stretches.partition_point(|(start, _, len)| start + len <= data);
        for (start, offset, len) in self.stretches.iter().skip(first) {
            if length == 0 {
                break;
            }
            let within = data - start;
            let part = length.min(usize::try_from(len - within).unwrap_or(usize::MAX));
            pieces.push((offset + within, part));
            data += part as u64;
            length -= part;
        }
        pieces
    }
}

fn chunks_of(entry: &Entry) -> u32 {
    match &entry.kind {
        EntryKind::File(body) => u32_of(body.chunks.len()),
        EntryKind::Dir | EntryKind::Symlink { .. } | EntryKind::HardLink { .. } => 0,
    }
}

fn times(meta: Meta) -> Timestamps {
    let (tv_sec, nanos) = meta.mtime;
    let time = Timespec { tv_sec, tv_nsec: nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

fn at(entry: &Entry) -> impl Fn(Errno) -> Error {
    let path = entry.path.clone();
    move |error| match error {
        Errno::EXIST => Error::AlreadyThere { path: path.clone() },
        other => Error::Unwritable { path: path.clone(), source: other.into() },
    }
}

fn unwritable(entry: &Entry, source: io::Error) -> Error {
    Error::Unwritable { path: entry.path.clone(), source }
}
