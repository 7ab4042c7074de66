//! One guest while the agent lives: its control channel, the watch on its init, its output.
//!
//! Turns what is heard into events of the machine and carries words to init. Everything here goes
//! on while the container engine stands still.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use gpunion_protocol::guest::{FromInit, ToInit};
use gpunion_protocol::ids::AttemptRef;
use gpunion_protocol::job::Blob;
use gpunion_protocol::session::{LOG_PIECE_MAX, ToRelay};
use gpunion_protocol::time::BootMs;
use serde::Serialize;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use crate::channel::{Channel, ControlDir, Heard, Peer, Ring, RingReader, Watched, What};
use crate::config::files;
use crate::container::cgroup::Cgroup;
use crate::egress::Egress;
use crate::gpu::verify::{BeforeGuest, ProcessId};
use crate::provider::event::Event;
use crate::provider::record::AttemptRecord;

/// How often new output is looked for; more often at first, since somebody may be waiting for the
/// first line.
const LOG_EVERY: Duration = Duration::from_millis(200);
const LOG_AT_FIRST: Duration = Duration::from_millis(10);
/// What of a guest's folder is where.
pub const CONTROL: &str = "ctl";
pub const RING: &str = "ring";
pub const FACTS: &str = "guest.json";

/// What `gpunion reclaim` must know when no agent answers.
#[derive(Debug, Serialize)]
struct Facts<'a> {
    attempt: &'a AttemptRef,
    name: &'a str,
    member: &'a str,
    container: &'a str,
    pid: u32,
    start_time: u64,
    gpus: &'a [gpunion_protocol::ids::GpuUuid],
    before: &'a [BeforeGuest],
}

#[derive(Debug)]
pub struct Guest {
    folder: PathBuf,
    container: String,
    /// Its end will be told.
    watched: Arc<AtomicBool>,
    control: ControlDir,
    channel: Channel,
    /// The guest's init has connected at least once.
    pub hello: Arc<Notify>,
    pub log: Arc<LogTail>,
    /// Its way out; absent for a guest without egress.
    egress: Option<Arc<Egress>>,
    /// We said that it must end: how it ended is no question then.
    ending: Arc<AtomicBool>,
    stop: CancellationToken,
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Guest {
    /// Listens for the guest's init and follows its output. Before the guest starts, or when the
    /// agent is back after a restart.
    pub fn open(
        folder: &Path,
        attempt: &AttemptRef,
        container: &str,
        events: mpsc::Sender<Event>,
        logs: mpsc::Sender<ToRelay>,
        kept: Arc<AtomicU64>,
        egress: Option<Arc<Egress>>,
    ) -> std::io::Result<Self> {
        let control = ControlDir::at(folder.join(CONTROL))?;
        let ring = Ring::create(&folder.join(RING))?;
        let log = Arc::new(LogTail::new(attempt.clone(), ring.reader()?, logs, kept));
        let (channel, heard) = Channel::listen(&control, Peer::Container(container.to_owned()), ring)?;
        let (hello, stop) = (Arc::new(Notify::new()), CancellationToken::new());
        let listening = listen(heard, Arc::clone(&log), channel.clone(), events, Arc::clone(&hello));
        tokio::spawn(stop.clone().run_until_cancelled_owned(listening));
        let following = Arc::clone(&log).follow();
        tokio::spawn(stop.clone().run_until_cancelled_owned(following));
        let ending = Arc::default();
        let container = container.to_owned();
        let watched = Arc::default();
        Ok(Self {
            folder: folder.to_owned(),
            container,
            watched,
            control,
            channel,
            hello,
            log,
            egress,
            ending,
            stop,
        })
    }

    pub fn is_of(&self, container: &str) -> bool {
        self.container == container
    }

    pub fn control(&self) -> &Path {
        self.control.path()
    }

    pub fn is_connected(&self) -> bool {
        self.channel.is_connected()
    }

    pub fn init(&self) -> Option<ProcessId> {
        self.channel.init()
    }

    /// Until when a guest with egress may run, as it was told last.
    pub fn deadline(&self) -> Option<BootMs> {
        self.egress.as_ref().map(|egress| egress.until())
    }

    pub fn say(&self, word: &ToInit) {
        if let Some(egress) = &self.egress {
            match word {
                ToInit::Deadline { at } => egress.open_until(*at),
                ToInit::End { .. } | ToInit::ExitSeen => egress.shut(),
                // A stop for a checkpoint is short: its connections go on afterwards.
                ToInit::Stop { .. }
                | ToInit::GoOn { .. }
                | ToInit::Begin(_)
                | ToInit::Adopt { .. }
                | ToInit::Signal { .. }
                | ToInit::Leave { .. }
                | ToInit::Ping { .. } => {}
            }
        }
        if matches!(word, ToInit::End { .. } | ToInit::ExitSeen) {
            self.ending.store(true, Ordering::Relaxed);
        }
        if let Err(error) = self.channel.send(word) {
            tracing::debug!("{word:?}: {error}");
        }
    }

    pub fn write_end_file(&self) -> std::io::Result<()> {
        self.control.write_end_file()
    }

    /// Tells the machine when no process of the guest is left. False: that is watched for already.
    pub fn watch(&self, attempt: &AttemptRef, process: ProcessId, events: mpsc::Sender<Event>) -> bool {
        if self.watched.swap(true, Ordering::Relaxed) {
            return false;
        }
        let attempt = attempt.clone();
        let (ending, egress) = (Arc::clone(&self.ending), self.egress.clone());
        let is_watched = Arc::clone(&self.watched);
        let watching = async move {
            // Its cgroup can be found only while it lives, and read only for a moment after.
            let cgroup = Cgroup::of(process.pid).ok();
            if let Ok(Some(watched)) = Watched::open(process)
                && let Err(error) = watched.ended().await
            {
                tracing::warn!(%attempt, "its init can't be watched: {error}");
                // Whoever asks next tries again.
                is_watched.store(false, Ordering::Relaxed);
                return;
            }
            // Init reports an exit; that it ended without one may be the memory limit's doing. What
            // can't be read is not the member's doing. A reclaim asks nobody.
            let at_limit = || cgroup.and_then(|cgroup| cgroup.killed_at_its_limit().ok()).unwrap_or(false);
            let memory_limit = !ending.load(Ordering::Relaxed) && at_limit();
            if let Some(egress) = egress {
                egress.shut();
                if let Some(contacts) = egress.news() {
                    let _ = events.send(Event::Contacts { attempt: attempt.clone(), contacts }).await;
                }
            }
            let _ = events.send(Event::GuestGone { attempt, memory_limit }).await;
        };
        tokio::spawn(self.stop.clone().run_until_cancelled_owned(watching));
        true
    }

    /// Written when the guest's init is known, for whoever must end it without the agent.
    pub fn write_facts(
        &self,
        record: &AttemptRecord,
        container: &str,
        process: ProcessId,
    ) -> std::io::Result<()> {
        let facts = Facts {
            attempt: &record.assignment.attempt,
            name: &record.assignment.spec.name,
            member: &record.assignment.member_name,
            container,
            pid: process.pid,
            start_time: process.start_time,
            gpus: &record.assignment.gpus,
            before: &record.before,
        };
        files::write_json(&self.folder.join(FACTS), &facts)
    }
}

async fn listen(
    mut heard: mpsc::Receiver<Heard>,
    log: Arc<LogTail>,
    channel: Channel,
    events: mpsc::Sender<Event>,
    hello: Arc<Notify>,
) {
    while let Some(Heard { what, .. }) = heard.recv().await {
        let word = match what {
            What::Said(word) => word,
            What::Connected { .. } | What::Gone => continue,
        };
        if matches!(word, FromInit::Hello { .. }) {
            hello.notify_one();
        }
        if matches!(word, FromInit::Started { .. }) {
            log.begun.notify_one();
        }
        // Asked while the cgroup is still there: init holds its report until it is seen.
        let memory_limit = matches!(word, FromInit::Exited(_))
            && channel.init().is_some_and(|init| {
                Cgroup::of(init.pid).and_then(|cgroup| cgroup.killed_at_its_limit()).unwrap_or(false)
            });
        let event = Event::Init { attempt: log.attempt.clone(), word, memory_limit };
        if events.send(event).await.is_err() {
            return;
        }
    }
}

/// Sends a guest's output to the relay as it comes, from where the relay has it.
pub struct LogTail {
    attempt: AttemptRef,
    reader: RingReader,
    logs: mpsc::Sender<ToRelay>,
    /// The next byte to send in this session, and what the relay said that it keeps.
    next: AtomicU64,
    kept: Arc<AtomicU64>,
    turn: tokio::sync::Mutex<()>,
    /// The program runs: its first line may come at any moment.
    begun: Notify,
}

impl std::fmt::Debug for LogTail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogTail").field("attempt", &self.attempt).finish_non_exhaustive()
    }
}

impl LogTail {
    fn new(
        attempt: AttemptRef,
        reader: RingReader,
        logs: mpsc::Sender<ToRelay>,
        kept: Arc<AtomicU64>,
    ) -> Self {
        let next = AtomicU64::new(kept.load(Ordering::Relaxed));
        Self { attempt, reader, logs, next, kept, turn: tokio::sync::Mutex::new(()), begun: Notify::new() }
    }

    async fn follow(self: Arc<Self>) {
        let mut pause = LOG_EVERY;
        loop {
            let begun = tokio::time::timeout(pause, self.begun.notified()).await.is_ok();
            pause = if begun { LOG_AT_FIRST } else { (pause * 2).min(LOG_EVERY) };
            self.drain().await;
        }
    }

    /// A new session: what the last one lost is sent again.
    pub fn rewind(&self) {
        self.next.store(self.kept.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Sends all that is there now.
    pub async fn drain(&self) {
        let _turn = self.turn.lock().await;
        loop {
            let from = self.next.load(Ordering::Relaxed);
            let read = match self.reader.read(from, LOG_PIECE_MAX) {
                Ok(read) => read,
                Err(error) => {
                    tracing::warn!(attempt = %self.attempt, "its output can't be read: {error}");
                    return;
                }
            };
            if read.bytes.is_empty() {
                return;
            }
            let end = read.from + read.bytes.len() as u64;
            let message =
                ToRelay::Log { attempt: self.attempt.clone(), offset: read.from, bytes: Blob(read.bytes) };
            if self.logs.send(message).await.is_err() {
                return;
            }
            // A rewind in between wins.
            let _ = self.next.compare_exchange(from, end, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}
