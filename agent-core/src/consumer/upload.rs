//! Sends one snapshot: packs as they are made, a few at a time, then the manifest.
//!
//! What the relay has is not sent again; each pack that arrived is noted, so that a run that was
//! cut goes on. What the relay swept meanwhile (`missing`) is for the caller to send again: what is
//! there is asked anew then. Memory is bounded: the writer waits for the line, a few packs are under way.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::StreamExt as _;
use gpunion_protocol::ids::{PackId, SnapshotId};
use gpunion_protocol::problem::{Code, Problem};
use gpunion_snapshot::{
    Cancel, ChunkIndex, ChunkKey, Error as SnapshotError, FileCache, Finished, FolderSnapshot, JobKey,
    Manifest, SealedPack, SystemRandomness, WalkOptions, Watch, Writer, open_root,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::memory::Memory;
use super::progress::Meter;
use super::tree::Tree;
use crate::relay_link::RelayClient;
use crate::relay_link::transfer::PARALLEL;

/// What all sends of one submit share.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) client: RelayClient,
    pub(super) chunk_key: ChunkKey,
    pub(super) job_key: JobKey,
    pub(super) meter: Meter,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) snapshot: SnapshotId,
    /// Bytes of its files.
    pub(super) bytes: u64,
    /// Of those, bytes that were at the relay already, or came twice.
    pub(super) reused: u64,
}

pub(super) type Written = Result<(Finished, Option<FileCache>), SnapshotError>;

/// Ends the blocking half when the async half is dropped.
pub(super) struct CancelOnDrop(pub(super) Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Line {
    pub(super) async fn folder(&self, memory: Memory, tree: &Tree) -> Result<Sent, Problem> {
        let tree = tree.clone();
        let job_key = self.job_key.clone();
        self.send(memory, move |writer, parent| {
            let root = open_root(&tree.root)?;
            let leave_out = Box::new(move |path: &[u8], _folder: bool| tree.leaves_out(path));
            let parent = parent.and_then(|(manifest, cache)| Some((manifest, cache?)));
            let walk = FolderSnapshot::new(root, writer, parent, WalkOptions { leave_out, sync: true });
            let taken = walk.pass_two(&job_key)?;
            Ok((taken.finished, Some(taken.cache)))
        })
        .await
    }

    /// A snapshot that was sent whole before, sealed anew for this job; `None` when the relay
    /// lacks a pack of it.
    pub(super) async fn again(&self, manifest: &Manifest) -> Result<Option<Sent>, Problem> {
        let packs: Vec<PackId> = manifest.packs.iter().map(|pack| pack.id).collect();
        if !self.client.missing_packs(&packs).await?.is_empty() {
            return Ok(None);
        }
        let sealed = manifest.seal(&self.job_key, &mut SystemRandomness).map_err(|error| told(&error))?;
        match self.client.put_snapshot(&sealed.id, &Bytes::from(sealed.bytes)).await {
            Err(problem) if problem.code == Code::Missing => return Ok(None),
            put => put?,
        }
        let bytes = manifest.data_bytes();
        Ok(Some(Sent { snapshot: sealed.id, bytes, reused: bytes }))
    }

    /// Runs `write` where blocking is fine, and carries its packs away meanwhile.
    pub(super) async fn send<W>(&self, memory: Memory, write: W) -> Result<Sent, Problem>
    where
        W: FnOnce(Writer<'static>, Option<(Manifest, Option<FileCache>)>) -> Written + Send + 'static,
    {
        let (index, parent) = self.known(&memory).await?;
        let cancel = Cancel::default();
        let guard = CancelOnDrop(cancel.clone());
        let (sink, packs) = mpsc::channel::<SealedPack>(1);
        let meter = self.meter.clone();
        let writing = tokio::task::spawn_blocking(move || {
            let (mut bytes, mut files) = (0, 0);
            let progress = Box::new(move |now: gpunion_snapshot::Progress| {
                meter.read(now.bytes.saturating_sub(bytes), now.files.saturating_sub(files));
                (bytes, files) = (now.bytes, now.files);
            });
            let hand_on = move |pack| {
                sink.blocking_send(pack).map_err(|_| std::io::Error::other("the upload has ended"))
            };
            let writer = Writer::new(index, hand_on, SystemRandomness, Watch { cancel, progress })?;
            write(writer, parent)
        });
        let carried = self.carry(packs, &memory).await;
        let written = writing.await.map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
        drop(guard);
        // A line that broke is the cause; the writer only noticed.
        carried?;
        let (finished, cache) = written.map_err(|error| told(&error))?;
        let id = finished.sealed.id;
        self.client.put_snapshot(&id, &Bytes::from(finished.sealed.bytes)).await?;
        if let Err(error) = memory.keep(&finished.manifest, cache.as_ref()) {
            tracing::warn!(%error, "what was sent can't be remembered; the next time all of it travels again");
        }
        let bytes = finished.manifest.data_bytes();
        Ok(Sent { snapshot: id, bytes, reused: bytes.saturating_sub(finished.written.bytes_new) })
    }

    /// The chunks that the relay has of the last snapshot and of a run that was cut.
    async fn known(
        &self,
        memory: &Memory,
    ) -> Result<(ChunkIndex, Option<(Manifest, Option<FileCache>)>), Problem> {
        let remembered = memory.clone();
        let (parent, mut records) =
            tokio::task::spawn_blocking(move || (remembered.last(), remembered.noted()))
                .await
                .map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
        let mut index = ChunkIndex::new(self.chunk_key.clone());
        let mut packs: Vec<PackId> = records.iter().map(|record| record.id).collect();
        packs.extend(parent.iter().flat_map(|(manifest, _)| manifest.packs.iter().map(|pack| pack.id)));
        packs.sort_unstable();
        packs.dedup();
        let missing = self.client.missing_packs(&packs).await?;
        records.retain(|record| !missing.contains(&record.id));
        for record in &records {
            index.add_record(record);
        }
        let parent = parent.filter(|(manifest, _)| manifest.chunk_key == self.chunk_key);
        if let Some((manifest, _)) = &parent {
            let mut there = manifest.clone();
            there.chunks.retain(|chunk| {
                manifest.packs.get(chunk.pack as usize).is_some_and(|pack| !missing.contains(&pack.id))
            });
            index.add_manifest(&there).map_err(|error| told(&error))?;
        }
        Ok((index, parent))
    }

    /// Uploads packs until the writer is done; the first failure ends it.
    async fn carry(&self, packs: mpsc::Receiver<SealedPack>, memory: &Memory) -> Result<(), Problem> {
        let note = Arc::new(Mutex::new(memory.clone()));
        let mut under_way = ReceiverStream::new(packs)
            .map(|pack| {
                let note = Arc::clone(&note);
                async move {
                    let size = pack.bytes.len() as u64;
                    self.client.put_pack(&pack.id, &Bytes::from(pack.bytes)).await?;
                    self.meter.sent(size);
                    let memory = note.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Err(error) = memory.note(&pack.record) {
                        tracing::warn!(%error, "a pack that was sent can't be noted");
                    }
                    Ok::<(), Problem>(())
                }
            })
            .buffer_unordered(PARALLEL);
        while let Some(done) = under_way.next().await {
            done?;
        }
        Ok(())
    }
}

/// The snapshot's own errors name the file; the member can mend it.
pub(super) fn told(error: &SnapshotError) -> Problem {
    let code = match error {
        SnapshotError::Cancelled => Code::Conflict,
        SnapshotError::Unwritable { source, .. } if source.kind() == std::io::ErrorKind::StorageFull => {
            Code::DiskFull
        }
        SnapshotError::NotOpened { .. } | SnapshotError::BadPack { .. } | SnapshotError::Malformed { .. } => {
            Code::Corrupt
        }
        SnapshotError::System { source, .. } if source.kind() == std::io::ErrorKind::UnexpectedEof => {
            Code::EngineAway
        }
        _ if error.path().is_some() => Code::BadRequest,
        _ => Code::Internal,
    };
    let problem = Problem::new(code, error.to_string());
    if code == Code::BadRequest {
        return problem.with_detail(format!(
            "mend it, or leave it out in {}, and run it again",
            super::tree::IGNORE_FILE
        ));
    }
    problem
}
