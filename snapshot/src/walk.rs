//! A snapshot of a folder, in two passes.
//!
//! Pass one reads while the program computes and tolerates every change; pass two runs while it
//! is stopped, reads only what changed since, and fails by name where anything still moves.
//!
//! What "changed since" rests on: a file is taken as read only if its change time is older than
//! the start of pass one by more than a clock tick. Pass one begins by writing the file system's
//! dirty pages back, which makes the kernel notice the next write through a shared mapping too;
//! without that, a program that keeps writing into a mapped file would move no time stamp.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::beneath::{kind, look, names, open_dir, open_read};
use crate::cache::{FileCache, Stamp, Time};
use crate::error::{Error, Result};
use crate::holes::{DataReader, holes};
use crate::keys::JobKey;
use crate::manifest::{EntryKind, MAX_MODE, Manifest, Meta};
use crate::path::{MAX_DEPTH, TreePath};
use crate::writer::{Content, Finished, NewKind, Writer, Written};

/// Two time stamps closer than this, in nanoseconds, may be of one clock tick.
const TICK: u32 = 20_000_000;
/// Most left-out files that a report names.
const MAX_NAMED: usize = 1000;

/// Says whether a path (bytes, relative) and, for a folder, all below it stays out. The second
/// argument says whether it is a folder.
pub type LeaveOut<'a> = Box<dyn Fn(&[u8], bool) -> bool + 'a>;

pub struct WalkOptions<'a> {
    pub leave_out: LeaveOut<'a>,
    /// Write dirty pages back before pass one. Needed wherever a program may write to mapped
    /// files while the walk reads; slow where the machine writes a lot for others.
    pub sync: bool,
}

impl Default for WalkOptions<'_> {
    fn default() -> Self {
        Self { leave_out: Box::new(|_, _| false), sync: true }
    }
}

impl fmt::Debug for WalkOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WalkOptions").field("sync", &self.sync).finish_non_exhaustive()
    }
}

/// What a pass saw. Lengths in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    pub entries: u64,
    pub files: u64,
    /// Sum of the files' lengths, each hard link counted once.
    pub bytes: u64,
    /// Newest change time of anything in the tree, in nanoseconds since 1970.
    pub newest_ctime_ns: Option<i64>,
    /// Fifos and sockets, which are never opened and never kept; at most 1000 are named.
    pub skipped: Vec<String>,
    pub skipped_count: u64,
    /// Files whose data was read in this pass, the others being known.
    pub files_read: u64,
    pub written: Written,
}

/// A finished snapshot of a folder, and what makes the next one cheap.
#[derive(Debug)]
pub struct Taken {
    pub finished: Finished,
    pub cache: FileCache,
    pub report: Report,
}

pub struct FolderSnapshot<'a> {
    root: OwnedFd,
    writer: Writer<'a>,
    options: WalkOptions<'a>,
    parent: Option<Parent>,
    /// Read in an earlier pass, by inode.
    contents: BTreeMap<(u64, u64), (Stamp, Content)>,
    /// Files older than this had rested when the first pass began.
    began: Option<Time>,
    walk: Walk,
}

struct Parent {
    manifest: Manifest,
    files: BTreeMap<(u64, u64), (Stamp, u32)>,
}

/// State of one pass.
#[derive(Default)]
struct Walk {
    last: bool,
    report: Report,
    /// First path of each file with several links.
    linked: BTreeMap<(u64, u64), (Stamp, TreePath)>,
    cached: Vec<(Stamp, u32)>,
}

impl<'a> FolderSnapshot<'a> {
    /// `writer` must have no entries yet. `parent` is the manifest of the last snapshot of this
    /// same folder with the cache that came with it; its chunks must be in the writer's index.
    #[must_use]
    pub fn new(
        root: OwnedFd,
        writer: Writer<'a>,
        parent: Option<(Manifest, FileCache)>,
        options: WalkOptions<'a>,
    ) -> Self {
        Self {
            root,
            writer,
            options,
            parent: parent.map(|(manifest, cache)| Parent { manifest, files: cache.by_inode() }),
            contents: BTreeMap::new(),
            began: None,
            walk: Walk::default(),
        }
    }

    /// Reads what is new while the program goes on. May be called more than once.
    pub fn pass_one(&mut self) -> Result<Report> {
        self.run(false)?;
        // Packs that wait for company would have to leave during the stop.
        self.writer.flush()?;
        let mut report = std::mem::take(&mut self.walk).report;
        report.written = self.writer.written();
        Ok(report)
    }

    /// The pass that counts: nothing may change while it runs.
    pub fn pass_two(mut self, job_key: &JobKey) -> Result<Taken> {
        self.run(true)?;
        let Walk { mut report, cached, .. } = self.walk;
        let finished = self.writer.finish(job_key)?;
        report.written = finished.written;
        let cache = FileCache::new(finished.sealed.id, cached);
        Ok(Taken { finished, cache, report })
    }

    fn run(&mut self, last: bool) -> Result<()> {
        self.walk = Walk { last, ..Walk::default() };
        self.writer.restart_progress();
        if self.began.is_none() || !last {
            let now = clock_gettime(ClockId::RealtimeCoarse);
            let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
            self.began = Some(earlier((now.tv_sec, nanos), TICK));
            if self.options.sync {
                rustix::fs::syncfs(&self.root).map_err(|error| Error::System {
                    what: "dirty pages can't be written back",
                    source: error.into(),
                })?;
            }
        }
        let root = open_dir(&self.root, b".").map_err(|error| unreadable(b"", error))?;
        self.folder(&root, &mut Vec::new(), 0)
    }

    fn folder(&mut self, dir: &OwnedFd, path: &mut Vec<u8>, depth: usize) -> Result<()> {
        let before = fstat(dir, path)?;
        for name in names(dir).map_err(|error| unreadable(path, error))? {
            let len = path.len();
            if len > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
            let done = self.entry(dir, &name, path, depth);
            path.truncate(len);
            match done {
                Err(error) if !self.walk.last && error.path().is_some() => {}
                other => other?,
            }
        }
        // A name that came or went meanwhile moved the folder's own times.
        if self.walk.last && Stamp::of(&fstat(dir, path)?) != Stamp::of(&before) {
            return Err(changed(path));
        }
        Ok(())
    }

    fn entry(&mut self, dir: &OwnedFd, name: &[u8], path: &mut Vec<u8>, depth: usize) -> Result<()> {
        self.writer.check_cancel()?;
        let stat = look(dir, name).map_err(|error| unreadable(path, error))?;
        let kind = kind(&stat);
        if (self.options.leave_out)(path, kind == FileType::Directory) {
            return Ok(());
        }
        self.walk.see(&stat);
        match kind {
            FileType::Directory => {
                if depth + 1 >= MAX_DEPTH {
                    return Err(Error::TooDeep { path: TreePath::unchecked(path), limit: MAX_DEPTH });
                }
                let inner = open_dir(dir, name).map_err(|error| unreadable(path, error))?;
                let stat = fstat(&inner, path)?;
                self.keep(TreePath::new(path.clone())?, &stat, NewKind::Dir);
                self.folder(&inner, path, depth + 1)
            }
            FileType::RegularFile => self.file(dir, name, TreePath::new(path.clone())?, &stat),
            FileType::Symlink => {
                let target =
                    rustix::fs::readlinkat(dir, name, Vec::new()).map_err(|error| unreadable(path, error))?;
                let kind = NewKind::Symlink(target.into_bytes());
                self.keep(TreePath::new(path.clone())?, &stat, kind);
                Ok(())
            }
            FileType::Fifo | FileType::Socket => {
                self.walk.skip(path);
                Ok(())
            }
            FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => {
                Err(Error::Device { path: TreePath::unchecked(path) })
            }
        }
    }

    fn file(&mut self, dir: &OwnedFd, name: &[u8], path: TreePath, stat: &Stat) -> Result<()> {
        let stamp = Stamp::of(stat);
        if let Some((seen, first)) = self.walk.linked.get(&stamp.inode()) {
            if *seen != stamp {
                return Err(Error::Changed { path });
            }
            let kind = NewKind::HardLink(first.clone());
            self.keep(path, stat, kind);
            return Ok(());
        }
        let rested = self.began.is_some_and(|began| stamp.ctime < began);
        let content = match self.known(&stamp, rested) {
            Some(content) => content,
            None => {
                let content = self.read(dir, name, &path, &stamp)?;
                self.walk.report.files_read += 1;
                content
            }
        };
        self.walk.report.files += 1;
        self.walk.report.bytes += stamp.size;
        self.writer.count_file();
        if stat.st_nlink > 1 {
            let first = (stamp, path.clone());
            self.walk.linked.insert(stamp.inode(), first);
        }
        if rested && self.walk.last {
            self.walk.cached.push((stamp, self.writer.next_entry()));
        } else if rested {
            // What had not rested may go on changing under the same stamp: the next pass reads it.
            self.contents.insert(stamp.inode(), (stamp, content.clone()));
        }
        self.keep(path, stat, NewKind::File(content));
        Ok(())
    }

    /// The content of a file that has not changed since it was read.
    fn known(&mut self, stamp: &Stamp, rested: bool) -> Option<Content> {
        if !rested {
            return None;
        }
        if let Some((seen, content)) = self.contents.get(&stamp.inode())
            && seen == stamp
        {
            return Some(content.clone());
        }
        let parent = self.parent.as_ref()?;
        let (seen, entry) = parent.files.get(&stamp.inode())?;
        let entry = parent.manifest.entries.get(*entry as usize)?;
        let EntryKind::File(body) = &entry.kind else {
            return None;
        };
        if seen != stamp || body.size != stamp.size {
            return None;
        }
        let mut content = Content {
            size: body.size,
            holes: body.holes.clone(),
            chunks: Vec::with_capacity(body.chunks.len()),
        };
        for number in &body.chunks {
            let chunk = parent.manifest.chunks.get(*number as usize)?;
            if !self.writer.knows(&chunk.id) {
                return None;
            }
            content.chunks.push(chunk.id);
        }
        Some(content)
    }

    fn read(&mut self, dir: &OwnedFd, name: &[u8], path: &TreePath, stamp: &Stamp) -> Result<Content> {
        let changed = || Error::Changed { path: path.clone() };
        let file = open_read(dir, name).map_err(|error| unreadable(path.as_bytes(), error))?;
        let stat = fstat(&file, path.as_bytes())?;
        if kind(&stat) != FileType::RegularFile || Stamp::of(&stat) != *stamp {
            return Err(changed());
        }
        let sparse = u64::try_from(stat.st_blocks).unwrap_or(0) * 512 < stamp.size;
        let holes = match sparse {
            true => holes(&file, stamp.size).map_err(|error| unreadable(path.as_bytes(), error))?,
            false => Vec::new(),
        };
        let mut data = DataReader::new(&file, stamp.size, &holes);
        let mut content = self.writer.read(&mut data, path)?;
        let whole = data.is_at_end();
        if !whole || Stamp::of(&fstat(&file, path.as_bytes())?) != *stamp {
            return Err(changed());
        }
        content.size = stamp.size;
        content.holes = holes;
        Ok(content)
    }

    fn keep(&mut self, path: TreePath, stat: &Stat, kind: NewKind) {
        self.walk.report.entries += 1;
        if self.walk.last {
            let stamp = Stamp::of(stat);
            let meta = Meta {
                mode: u16::try_from(stat.st_mode & u32::from(MAX_MODE)).unwrap_or(0),
                mtime: stamp.mtime,
            };
            self.writer.add(path, meta, kind);
        }
    }
}

impl fmt::Debug for FolderSnapshot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FolderSnapshot")
            .field("writer", &self.writer)
            .field("report", &self.walk.report)
            .finish_non_exhaustive()
    }
}

impl Walk {
    fn see(&mut self, stat: &Stat) {
        let (seconds, nanos) = Stamp::of(stat).ctime;
        let ctime = seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(nanos));
        self.report.newest_ctime_ns = self.report.newest_ctime_ns.max(Some(ctime));
    }

    fn skip(&mut self, path: &[u8]) {
        self.report.skipped_count += 1;
        if self.report.skipped.len() < MAX_NAMED {
            let path = TreePath::unchecked(path);
            self.report.skipped.push(path.to_string());
        }
    }
}

fn earlier((seconds, nanos): Time, by: u32) -> Time {
    match nanos.checked_sub(by) {
        Some(nanos) => (seconds, nanos),
        None => (seconds - 1, nanos + 1_000_000_000 - by),
    }
}

fn fstat(fd: impl std::os::fd::AsFd, path: &[u8]) -> Result<Stat> {
    rustix::fs::fstat(fd).map_err(|error| unreadable(path, error))
}

fn changed(path: &[u8]) -> Error {
    Error::Changed { path: TreePath::unchecked(path) }
}

/// What an error means when a name was there a moment ago.
fn unreadable(path: &[u8], error: Errno) -> Error {
    let shown = TreePath::unchecked(path);
    match error {
        Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::NXIO | Errno::INVAL => {
            Error::Changed { path: shown }
        }
        Errno::XDEV => Error::OtherFilesystem { path: shown },
        other => Error::Unreadable { path: shown, source: other.into() },
    }
}
