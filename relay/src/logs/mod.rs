//! Output of jobs: bounded on disk, by attempt, one continuous stream to each reader.
//!
//! Nobody waits on a slow reader: an agent's piece is appended to a file, a reader reads files
//! at its own pace and is woken when there is more. What was dropped is told as a gap.

mod frame;
mod job_log;

pub(crate) use job_log::Cursor;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use gpunion_protocol::http::LogPiece;
use gpunion_protocol::ids::{AttemptRef, JobId};
use tokio::sync::watch;

use crate::room::Room;
use job_log::JobLog;

/// Logs kept open at a time; others are opened again when they are needed.
const OPEN_MAX: usize = 128;
/// Bytes that a reader takes at once.
const READ_MAX: usize = 256 << 10;

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Logs(Arc<Inner>);

struct Inner {
    dir: PathBuf,
    max: u64,
    room: Room,
    open: Mutex<BTreeMap<JobId, Arc<Slot>>>,
}

struct Slot {
    log: Mutex<JobLog>,
    /// Changes when there is something new to look at.
    news: watch::Sender<()>,
}

impl Logs {
    pub(crate) fn open(state_dir: &Path, max: u64, keep_free: u64) -> io::Result<Self> {
        let dir = state_dir.join("logs");
        std::fs::create_dir_all(&dir)?;
        let room = Room::new(&dir, keep_free);
        Ok(Self(Arc::new(Inner { dir, max, room, open: Mutex::new(BTreeMap::new()) })))
    }

    /// Stores what is new in a piece of an attempt's output; returns how much of it is kept now.
    /// On a disk that is nearly full nothing is: the next piece that is stored tells of a gap.
    pub(crate) async fn append(
        &self,
        attempt: AttemptRef,
        device_name: String,
        offset: u64,
        bytes: Vec<u8>,
    ) -> io::Result<u64> {
        let logs = self.clone();
        blocking(move || {
            let slot = logs.slot(&attempt.job)?;
            let mut log = lock(&slot.log);
            let new = logs.0.room.is_there() && log.append(attempt.token, &device_name, offset, &bytes)?;
            let kept = log.kept(attempt.token);
            drop(log);
            if new {
                slot.news.send_replace(());
            }
            Ok(kept)
        })
        .await
    }

    /// How much of an attempt's output is kept: what it should send next.
    pub(crate) async fn kept(&self, attempt: AttemptRef) -> io::Result<u64> {
        let logs = self.clone();
        blocking(move || {
            let slot = logs.slot(&attempt.job)?;
            let kept = lock(&slot.log).kept(attempt.token);
            Ok(kept)
        })
        .await
    }

    /// Removes the log of a job that is forgotten. Readers come to its end.
    pub(crate) fn forget(&self, job: JobId) {
        let logs = self.clone();
        tokio::task::spawn_blocking(move || {
            let slot = lock(&logs.0.open).remove(&job);
            logs.remove(job.as_str());
            if let Some(slot) = slot {
                slot.news.send_replace(());
            }
        });
    }

    /// Removes all logs but those of jobs that `known` knows: a crash can come between a job's end
    /// and that of its log.
    pub(crate) fn keep_only(&self, known: impl Fn(&JobId) -> bool) -> io::Result<()> {
        for job in self.jobs()? {
            if !known(&job) {
                self.remove(job.as_str());
            }
        }
        Ok(())
    }

    /// The jobs of which there is a log.
    pub(crate) fn jobs(&self) -> io::Result<Vec<JobId>> {
        let mut jobs = Vec::new();
        for entry in std::fs::read_dir(&self.0.dir)? {
            jobs.extend(entry?.file_name().to_str().and_then(|name| name.parse::<JobId>().ok()));
        }
        Ok(jobs)
    }

    fn remove(&self, name: &str) {
        match std::fs::remove_dir_all(self.0.dir.join(name)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // The next start tries again.
            Err(error) => tracing::warn!(job = name, %error, "the log of a forgotten job stays"),
        }
    }

    /// Wakes the readers of a job to look at its state anew.
    pub(crate) fn nudge(&self, job: &JobId) {
        if let Some(slot) = lock(&self.0.open).get(job) {
            slot.news.send_replace(());
        }
    }

    /// A reader from this position on.
    pub(crate) async fn follow(&self, job: JobId, position: u64) -> io::Result<Follower> {
        let logs = self.clone();
        let slot = blocking(move || logs.slot(&job)).await?;
        let news = slot.news.subscribe();
        // A position beyond the end (the log was lost with its disk) starts at the end.
        let position = position.min(lock(&slot.log).end());
        Ok(Follower { cursor: Cursor::at(position), slot, news })
    }

    fn slot(&self, job: &JobId) -> io::Result<Arc<Slot>> {
        let mut open = lock(&self.0.open);
        if let Some(slot) = open.get(job) {
            return Ok(Arc::clone(slot));
        }
        if open.len() >= OPEN_MAX {
            open.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        let log = JobLog::open(&self.0.dir.join(job.as_str()), self.0.max)?;
        let slot = Arc::new(Slot { log: Mutex::new(log), news: watch::Sender::new(()) });
        open.insert(job.clone(), Arc::clone(&slot));
        Ok(slot)
    }
}

/// One reader's place in one log.
pub(crate) struct Follower {
    slot: Arc<Slot>,
    cursor: Cursor,
    news: watch::Receiver<()>,
}

impl Follower {
    /// What there is from here on; empty when the reader has caught up.
    pub(crate) async fn read(&mut self) -> io::Result<Vec<LogPiece>> {
        self.news.mark_unchanged();
        let (slot, mut cursor) = (Arc::clone(&self.slot), self.cursor);
        let (pieces, cursor) = blocking(move || {
            let view = lock(&slot.log).view();
            let pieces = view.read(&mut cursor, READ_MAX)?;
            Ok((pieces, cursor))
        })
        .await?;
        self.cursor = cursor;
        Ok(pieces)
    }

    /// Returns when there may be more than at the last `read`.
    pub(crate) async fn news(&mut self) {
        // The sender lives as long as the slot that this reader holds.
        let _ = self.news.changed().await;
    }

    pub(crate) fn position(&self) -> u64 {
        self.cursor.position
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// A panic elsewhere leaves a log as far as it was written, which is a state like any other.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
