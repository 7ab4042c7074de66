//! Fetches a job's result, or its newest checkpoint, into a folder of the member's.
//!
//! Written beside its place first and moved there whole; nothing is written over unasked. A fetch
//! that was cut leaves what it has there, and the next one goes on with it (F96). `.home` (caches of
//! tools in the guest) stays behind.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::StreamExt as _;
use gpunion_protocol::ids::{JobId, PackId, SnapshotId};
use gpunion_protocol::job::JobView;
use gpunion_protocol::local::{FetchProgress, FetchRequest};
use gpunion_protocol::problem::{Code, Problem};
use gpunion_snapshot::{
    Cancel, Entry, EntryKind, Manifest, PackSource, Progress, RestoreOptions, TreePath, Watch, open_root,
    restore,
};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::Consumer;
use super::keys::key_of;
use super::progress::Pace;
use super::upload::{CancelOnDrop, told};
use crate::relay_link::RelayClient;
use crate::relay_link::transfer::PARALLEL;

const QUEUE: usize = 32;
/// What is being fetched, until it is whole; the snapshot's name follows.
const PART: &str = ".gpunion-part-";
/// Stays behind at the provider.
const HOME: &[u8] = b".home";

impl Consumer {
    /// Progress, ending in `Done` or `Failed`. Dropping the receiver before that gives up.
    pub fn fetch(&self, job: JobId, request: FetchRequest) -> mpsc::Receiver<FetchProgress> {
        let (tell, progress) = mpsc::channel(QUEUE);
        let consumer = self.clone();
        tokio::spawn(async move {
            let last = tokio::select! {
                done = consumer.fetch_now(&job, request, tell.clone()) => {
                    done.unwrap_or_else(|problem| FetchProgress::Failed { problem })
                }
                () = tell.closed() => return,
            };
            let _ = tell.send(last).await;
        });
        progress
    }

    async fn fetch_now(
        &self,
        job: &JobId,
        request: FetchRequest,
        tell: mpsc::Sender<FetchProgress>,
    ) -> Result<FetchProgress, Problem> {
        let member = self.pairing.current()?;
        Place::check(&request, None)?;
        let view = member.client.job(job).await?;
        let snapshot = wanted(&view, request.checkpoint)?;
        let place = Place::check(&request, Some(&snapshot))?;
        let key = key_of(&member, &view)?;
        let sealed = member.client.snapshot(&snapshot).await?;
        let manifest = Manifest::open(&key, &sealed).map_err(|error| told(&error))?;
        let manifest = without_home(manifest);
        let cancel = Cancel::default();
        let _guard = CancelOnDrop(cancel.clone());
        let client = member.client.clone();
        let handle = Handle::current();
        let restoring = tokio::task::spawn_blocking(move || {
            let mut source = Ahead::new(client, handle);
            let done = place.fill(&manifest, &mut source, cancel, tell);
            // What the line said is the cause; the restore only noticed.
            let done = done.map_err(|problem| match source.trouble() {
                Some(cause) => place.kept(cause),
                None => problem,
            });
            done.map(|progress| (place.into, progress))
        });
        let (into, progress) =
            restoring.await.map_err(|error| Problem::new(Code::Internal, error.to_string()))??;
        Ok(FetchProgress::Done { into, files: progress.files, bytes: progress.bytes })
    }
}

fn wanted(view: &JobView, checkpoint: bool) -> Result<SnapshotId, Problem> {
    let newest = view.checkpoints.last().map(|checkpoint| checkpoint.snapshot);
    let found = if checkpoint { newest } else { view.result };
    found.ok_or_else(|| {
        let (what, fix) = match (checkpoint, newest.is_some(), view.state.is_final()) {
            (true, _, _) => ("checkpoint", "wait for the first one; `gpunion show` tells when it was taken"),
            (false, true, _) => ("result", "its newest checkpoint can be had with --checkpoint"),
            (false, false, true) => ("result", "it ended before it kept anything; `gpunion logs` tells more"),
            (false, false, false) => ("result", "it is not over yet; `gpunion show` tells where it is"),
        };
        Problem::new(Code::NotFound, format!("{} has no {what}", view.id)).with_detail(fix)
    })
}

/// The same without `.home`; a hard link into it becomes the file itself.
fn without_home(mut manifest: Manifest) -> Manifest {
    let stays = |path: &TreePath| path.components().next() == Some(HOME);
    let old = std::mem::take(&mut manifest.entries);
    let mut places: BTreeMap<u32, u32> = BTreeMap::new();
    let mut kept: Vec<Entry> = Vec::with_capacity(old.len());
    for (number, entry) in old.iter().enumerate().filter(|(_, entry)| !stays(&entry.path)) {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let at = u32::try_from(kept.len()).unwrap_or(u32::MAX);
        let mut entry = entry.clone();
        if let EntryKind::HardLink { to } = entry.kind {
            entry.kind = match (places.get(&to), old.get(to as usize)) {
                (Some(place), _) => EntryKind::HardLink { to: *place },
                (None, Some(file)) => {
                    places.insert(to, at);
                    file.kind.clone()
                }
                (None, None) => entry.kind,
            };
        } else {
            places.insert(number, at);
        }
        kept.push(entry);
    }
    manifest.entries = kept;
    manifest
}

/// Something besides what a fetch that was cut left there.
fn holds_files(folder: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(folder)? {
        if !entry?.file_name().as_bytes().starts_with(PART.as_bytes()) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Where the files go.
struct Place {
    into: PathBuf,
    part: PathBuf,
    /// How all such parts of this place begin.
    parts: std::ffi::OsString,
    merge: bool,
}

impl Place {
    fn check(request: &FetchRequest, snapshot: Option<&SnapshotId>) -> Result<Self, Problem> {
        let into = request.into.clone();
        let shown = into.display();
        let (Some(name), Some(parent)) = (into.file_name(), into.parent()) else {
            return Err(Problem::new(Code::BadRequest, format!("{shown} is no place for results")));
        };
        if !into.is_absolute() {
            return Err(Problem::new(Code::BadRequest, format!("{shown} is not an absolute path")));
        }
        let (there, full) = match fs::symlink_metadata(&into) {
            Ok(meta) if meta.is_dir() => {
                (true, holds_files(&into).map_err(|error| unwritable(&into, &error))?)
            }
            Ok(_) => return Err(Problem::new(Code::Conflict, format!("{shown} is there and is no folder"))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (false, false),
            Err(error) => return Err(unwritable(&into, &error)),
        };
        if full && !request.overwrite {
            return Err(Problem::new(Code::Conflict, format!("{shown} is there and not empty"))
                .with_detail("name another folder, or write over what is there with --overwrite"));
        }
        // A folder that is there may be a mount of its own: what goes into it is made in it.
        let mut parts = std::ffi::OsString::new();
        if !there {
            parts.push(".");
            parts.push(name);
        }
        parts.push(PART);
        let mut whole = parts.clone();
        whole.push(snapshot.map_or_else(String::new, |id| hex::encode(&id.0[..8])));
        let part = if there { into.join(whole) } else { parent.join(whole) };
        Ok(Self { part, parts, into, merge: there })
    }

    fn fill(
        &self,
        manifest: &Manifest,
        source: &mut Ahead,
        cancel: Cancel,
        tell: mpsc::Sender<FetchProgress>,
    ) -> Result<Progress, Problem> {
        let failed = |error: io::Error| unwritable(&self.into, &error);
        self.forget_others().map_err(failed)?;
        fs::create_dir_all(&self.part).map_err(failed)?;
        // Folders that were done have their last modes.
        open_below(&self.part).map_err(failed)?;
        // Until here nothing is moved: what came stays for the next time.
        let progress = self.restore(manifest, source, cancel, tell).map_err(|problem| self.kept(problem))?;
        if self.merge {
            merge(&self.part, &self.into).map_err(failed)?;
            remove_tree(&self.part).map_err(failed)?;
        } else {
            fs::rename(&self.part, &self.into).map_err(failed)?;
        }
        Ok(progress)
    }

    /// What cut fetches of other snapshots left at this place.
    fn forget_others(&self) -> io::Result<()> {
        let folder = self.part.parent().unwrap_or(Path::new("/"));
        if !folder.is_dir() {
            return Ok(());
        }
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let stale = entry.file_name().as_bytes().starts_with(self.parts.as_bytes());
            if stale && entry.path() != self.part {
                remove_tree(&entry.path())?;
            }
        }
        Ok(())
    }

    fn kept(&self, mut problem: Problem) -> Problem {
        let kept = format!("what came is kept in {}; the same command goes on with it", self.part.display());
        problem.detail =
            Some(problem.detail.map_or_else(|| kept.clone(), |detail| format!("{detail}; {kept}")));
        problem
    }

    fn restore(
        &self,
        manifest: &Manifest,
        source: &mut Ahead,
        cancel: Cancel,
        tell: mpsc::Sender<FetchProgress>,
    ) -> Result<Progress, Problem> {
        let target = open_root(&self.part).map_err(|error| told(&error))?;
        let mut pace = Pace::start();
        let progress = move |now: Progress| {
            if pace.due() {
                let total = now.total_bytes.unwrap_or(now.bytes);
                let (rate, left_ms) = pace.of(now.bytes, total);
                let told =
                    FetchProgress::Fetching { bytes: now.bytes, total, files: now.files, rate, left_ms };
                let _ = tell.try_send(told);
            }
        };
        let mut watch = Watch { cancel, progress: Box::new(progress) };
        let options = RestoreOptions { resume: true, ..RestoreOptions::default() };
        restore(manifest, source, &target, options, &mut watch).map_err(|error| told(&error))
    }
}

/// A folder that was restored may hold folders that even its owner can't write.
fn remove_tree(path: &Path) -> io::Result<()> {
    let Ok(meta) = fs::symlink_metadata(path) else { return Ok(()) };
    if meta.is_dir() {
        open_up(path)?;
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    }
}

fn open_up(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    open_below(folder)
}

fn open_below(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_up(&entry.path())?;
        }
    }
    Ok(())
}

/// Moves everything below `from` over what is below `into`.
fn merge(from: &Path, into: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = into.join(entry.file_name());
        let there = fs::symlink_metadata(&target).ok();
        match (entry.file_type()?.is_dir(), there.map(|meta| meta.is_dir())) {
            (true, Some(true)) => merge(&entry.path(), &target)?,
            (true, Some(false)) => {
                fs::remove_file(&target)?;
                fs::rename(entry.path(), &target)?;
            }
            (false, Some(true)) => {
                return Err(io::Error::other(format!(
                    "{} is a folder, and a file must go there",
                    target.display()
                )));
            }
            (true | false, None) | (false, Some(false)) => fs::rename(entry.path(), &target)?,
        }
    }
    Ok(())
}

fn unwritable(path: &Path, error: &io::Error) -> Problem {
    let code = if error.kind() == io::ErrorKind::StorageFull { Code::DiskFull } else { Code::BadRequest };
    Problem::new(code, format!("{} can't be written", path.display())).with_detail(error.to_string())
}

/// Packs from the relay, a few fetched ahead in the order in which they will be asked for.
struct Ahead {
    client: RelayClient,
    handle: Handle,
    coming: Option<mpsc::Receiver<(PackId, Result<Bytes, Problem>)>>,
    waiting: Option<(PackId, Result<Bytes, Problem>)>,
    trouble: Arc<Mutex<Option<Problem>>>,
}

impl Ahead {
    fn new(client: RelayClient, handle: Handle) -> Self {
        Self { client, handle, coming: None, waiting: None, trouble: Arc::default() }
    }

    fn trouble(&self) -> Option<Problem> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl PackSource for Ahead {
    fn plan(&mut self, order: &[PackId]) {
        let (tell, coming) = mpsc::channel(1);
        let (order, client) = (order.to_vec(), self.client.clone());
        self.handle.spawn(async move {
            let mut packs = futures_util::stream::iter(order)
                .map(|id| {
                    let client = client.clone();
                    async move { (id, client.pack(&id).await) }
                })
                .buffered(PARALLEL);
            while let Some(pack) = packs.next().await {
                if tell.send(pack).await.is_err() {
                    return;
                }
            }
        });
        self.coming = Some(coming);
    }

    fn pack(&mut self, id: &PackId) -> io::Result<Vec<u8>> {
        if self.waiting.is_none() {
            self.waiting = self.coming.as_mut().and_then(mpsc::Receiver::blocking_recv);
        }
        let got = match self.waiting.take() {
            Some((next, got)) if next == *id => got,
            // Asked for once more, out of the order.
            other => {
                self.waiting = other;
                self.handle.block_on(self.client.pack(id))
            }
        };
        got.map(Vec::from).map_err(|problem| {
            let told = io::Error::other(problem.to_string());
            *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
            told
        })
    }
}

#[cfg(test)]
mod tests {
    use gpunion_snapshot::{ChunkIndex, ChunkKey, JobKey, Meta, SealedPack, SystemRandomness, Writer};

    use super::*;

    fn path(text: &str) -> TreePath {
        TreePath::new(text).unwrap()
    }

    #[test]
    fn home_stays_behind_and_links_into_it_become_files() {
        let folder = tempfile::tempdir().unwrap();
        let mut packs = BTreeMap::new();
        let sink = |pack: SealedPack| {
            packs.insert(pack.id, pack.bytes);
            Ok(())
        };
        let index = ChunkIndex::new(ChunkKey::from_bytes([1; 32]));
        let mut writer = Writer::new(index, sink, SystemRandomness, Watch::default()).unwrap();
        let meta = Meta { mode: 0o644, mtime: (1, 0) };
        let dir = Meta { mode: 0o755, mtime: (1, 0) };
        writer.add_dir(path(".home"), dir);
        writer.add_file(path(".home/cache"), meta, &mut &b"cached"[..]).unwrap();
        writer.add_file(path(".homework"), meta, &mut &b"mine"[..]).unwrap();
        writer.add_hard_link(path("a"), meta, path(".home/cache"));
        writer.add_hard_link(path("b"), meta, path(".home/cache"));
        writer.add_hard_link(path("c"), meta, path(".homework"));
        let manifest = writer.finish(&JobKey::from_bytes([2; 32])).unwrap().manifest;
        let manifest = without_home(manifest);
        let target = open_root(folder.path()).unwrap();
        let mut source = |id: &PackId| Ok(packs[id].clone());
        restore(&manifest, &mut source, &target, RestoreOptions::default(), &mut Watch::default()).unwrap();
        let read = |name: &str| fs::read(folder.path().join(name)).unwrap();
        assert_eq!(
            (read("a"), read("b"), read("c")),
            (b"cached".to_vec(), b"cached".to_vec(), b"mine".to_vec())
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
    }

    #[test]
    fn moving_over_what_is_there_keeps_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("new/d")).unwrap();
        fs::create_dir_all(at("old/d")).unwrap();
        fs::write(at("new/d/a"), "new").unwrap();
        fs::write(at("old/d/a"), "old").unwrap();
        fs::write(at("old/d/b"), "kept").unwrap();
        merge(&at("new"), &at("old")).unwrap();
        assert_eq!(fs::read(at("old/d/a")).unwrap(), b"new");
        assert_eq!(fs::read(at("old/d/b")).unwrap(), b"kept");
        fs::write(at("new/x"), "").unwrap();
        fs::create_dir(at("old/x")).unwrap();
        assert!(merge(&at("new"), &at("old")).is_err(), "a folder is never replaced by a file");
    }
}
