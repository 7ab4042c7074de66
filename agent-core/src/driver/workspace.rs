//! Talks with the helper that alone touches a workspace: fill it, snapshot it.
//!
//! Packs that leave are spooled beside the guest's folder and go to the relay from there; packs
//! that enter come from the relay one by one, verified. Bounded: one frame at a time is held.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use gpunion_protocol::ids::{AttemptRef, SnapshotId};
use gpunion_protocol::problem::{Code, Problem};
use gpunion_snapshot::helper_wire::{
    Answer, Decoder, Done, Failure, FailureKind, Frame, Order, Part, Pieces, pieces,
};
use gpunion_snapshot::{ChunkKey, JobKey, PackRecord, Progress, manifest_table};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::spool::Spool;
use super::trouble::{of_engine, of_problem};
use super::upload_pace::UploadPace;
use crate::container::{Aside, Engine, HelperImage, HelperSession};
use crate::provider::event::{Taken, Trouble};
use crate::relay_link::RelayClient;

/// A helper that is half through a restore waits so long for a relay that is away; what is there
/// already need not be fetched again.
const PATIENCE: Duration = Duration::from_secs(900);
const ASK_AGAIN: Duration = Duration::from_secs(3);

/// What is kept of the newest snapshot of an attempt, so that the next one reads and sends only
/// what changed.
#[derive(Debug, Clone, Default)]
pub(super) struct Parent {
    pub(super) manifest: Option<Vec<u8>>,
    pub(super) cache: Option<Vec<u8>>,
}

/// Where a workspace lies and who looks into it.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) engine: Engine,
    pub(super) helper: HelperImage,
    pub(super) volume: String,
}

struct Talk {
    session: HelperSession,
    decoder: Decoder,
}

fn away(why: impl std::fmt::Display) -> Trouble {
    Trouble::Away { why: format!("the workspace helper broke off: {why}") }
}

/// Only what is about the job's own files can't be cured by trying again.
fn failed(failure: Failure) -> Trouble {
    let reason = match &failure.path {
        Some(path) => format!("{path}: {}", failure.reason),
        None => failure.reason.clone(),
    };
    match failure.kind {
        FailureKind::Changed
        | FailureKind::Cancelled
        | FailureKind::Conversation
        | FailureKind::Machine
        | FailureKind::NoSpace => Trouble::Away { why: reason },
        FailureKind::File | FailureKind::Damaged | FailureKind::OverLimit | FailureKind::Workspace => {
            Trouble::Refused { reason }
        }
    }
}

impl Talk {
    async fn open(place: &Place, verb: &str, read_only: bool) -> Result<Self, Trouble> {
        let session =
            place.engine.helper(&place.helper, &place.volume, read_only, verb).await.map_err(of_engine)?;
        Ok(Self { session, decoder: Decoder::default() })
    }

    async fn say(&mut self, frame: &Frame) -> Result<(), Trouble> {
        let (head, tail) = frame.encode().map_err(away)?;
        let sent = async {
            self.session.input.write_all(&head).await?;
            self.session.input.write_all(tail).await?;
            self.session.input.flush().await
        };
        sent.await.map_err(away)
    }

    async fn hear(&mut self) -> Result<Frame, Trouble> {
        let mut buffer = vec![0; 256 << 10];
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(away)? {
                return Ok(frame);
            }
            match self.session.output.read(&mut buffer).await.map_err(away)? {
                0 => return Err(away(self.session.complaints())),
                n => self.decoder.feed(&buffer[..n]),
            }
        }
    }

    async fn say_long(&mut self, of: Part, bytes: &[u8]) -> Result<(), Trouble> {
        for piece in pieces(of, bytes) {
            self.say(&piece).await?;
        }
        Ok(())
    }

    /// An order that is answered once and needs nothing.
    async fn simple(&mut self, order: Order) -> Result<(), Trouble> {
        self.say(&Frame::Order(order)).await?;
        loop {
            match self.hear().await? {
                Frame::Answer(Answer::Done(_)) => return Ok(()),
                Frame::Answer(Answer::Failed(failure)) => return Err(failed(failure)),
                Frame::Answer(Answer::Progress(_) | Answer::PassOneDone { .. } | Answer::Need { .. })
                | Frame::Order(_)
                | Frame::Keys { .. }
                | Frame::Pack { .. }
                | Frame::Piece { .. } => {}
            }
        }
    }
}

/// Fills a workspace and gives it to the guest's uid. `update`: an older snapshot of the job lies
/// there whole, and nothing has run on it.
pub(super) async fn fill(
    place: &Place,
    manifest: Option<(&[u8], &JobKey)>,
    uid: u32,
    (max_bytes, update): (Option<u64>, bool),
    client: &RelayClient,
    tell: &mut (dyn FnMut(Progress) + Send),
) -> Result<Aside, Trouble> {
    // One container for all of it: starting one takes longer than most of what it then does.
    let mut talk = Talk::open(place, "fill", false).await?;
    let update = update && manifest.is_some();
    if !update {
        // A run that was cut may have left half of it.
        talk.simple(Order::Clear).await?;
    }
    if let Some((sealed, key)) = manifest {
        talk.say(&Frame::Order(Order::Restore { uid, gid: uid, max_bytes, update })).await?;
        talk.say(&Frame::Keys { job: key.clone(), chunk: None }).await?;
        talk.say_long(Part::Manifest, sealed).await?;
        talk.say(&Frame::Order(Order::Go)).await?;
        loop {
            match talk.hear().await? {
                Frame::Answer(Answer::Need { pack }) => {
                    let bytes = patiently(|| client.pack(&pack)).await.map_err(of_problem)?;
                    let bytes = bytes.to_vec();
                    talk.say(&Frame::Pack { id: pack, record: None, bytes }).await?;
                }
                Frame::Answer(Answer::Done(_)) => break,
                Frame::Answer(Answer::Failed(failure)) => return Err(failed(failure)),
                Frame::Answer(Answer::Progress(progress)) => tell(progress),
                Frame::Answer(Answer::PassOneDone { .. })
                | Frame::Order(_)
                | Frame::Keys { .. }
                | Frame::Pack { .. }
                | Frame::Piece { .. } => {}
            }
        }
    }
    talk.simple(Order::Prepare { uid, gid: uid }).await?;
    Ok(talk.session.put_aside())
}

/// Asks again while the relay is away, busy or full; what it says no to stays no.
async fn patiently<T, F>(ask: impl Fn() -> F) -> Result<T, Problem>
where
    F: Future<Output = Result<T, Problem>>,
{
    let asking = async {
        loop {
            match ask().await {
                Err(problem) if matches!(problem.code, Code::RelayAway | Code::Busy | Code::DiskFull) => {
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                answer => return answer,
            }
        }
    };
    match tokio::time::timeout(PATIENCE, asking).await {
        Ok(answer) => answer,
        Err(_) => Err(Problem::new(Code::RelayAway, "the relay was away for too long")),
    }
}

/// A snapshot between its passes.
pub(super) struct Snapshotting {
    talk: Talk,
    spool: Spool,
    key: JobKey,
}

impl std::fmt::Debug for Snapshotting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshotting({:?})", self.spool)
    }
}

impl Snapshotting {
    /// `sync`: dirty pages of a guest that runs are written back first. `most`: bytes of packs that
    /// earlier runs may have left.
    pub(super) async fn begin(
        place: &Place,
        key: &JobKey,
        chunk: &ChunkKey,
        parent: &Parent,
        (spool, most): (Spool, u64),
        sync: bool,
    ) -> Result<Self, Trouble> {
        let (opened, secret) = (spool.clone(), key.clone());
        let records =
            tokio::task::spawn_blocking(move || opened.open(&secret, most)).await.map_err(away)??;
        let mut talk = Talk::open(place, "snapshot", true).await?;
        talk.say(&Frame::Order(Order::Snapshot { leave_out: Vec::new(), sync })).await?;
        let chunk = parent.manifest.is_none().then(|| chunk.clone());
        talk.say(&Frame::Keys { job: key.clone(), chunk }).await?;
        if let Some(manifest) = &parent.manifest {
            talk.say_long(Part::Manifest, manifest).await?;
            if let Some(cache) = &parent.cache {
                talk.say_long(Part::Cache, cache).await?;
            }
        }
        for record in records {
            talk.say_long(Part::Record, &record.encode()).await?;
        }
        Ok(Self { talk, spool, key: key.clone() })
    }

    pub(super) async fn pass_one(&mut self) -> Result<(), Trouble> {
        self.talk.say(&Frame::Order(Order::PassOne)).await?;
        loop {
            match self.talk.hear().await? {
                Frame::Pack { record, bytes, .. } => self.take(record, bytes).await?,
                Frame::Answer(Answer::PassOneDone { .. }) => return Ok(()),
                Frame::Answer(Answer::Failed(failure)) => return Err(failed(failure)),
                Frame::Answer(Answer::Progress(_) | Answer::Need { .. } | Answer::Done(_))
                | Frame::Order(_)
                | Frame::Keys { .. }
                | Frame::Piece { .. } => {}
            }
        }
    }

    /// The pass that counts. Answers what was taken, and the parent of the next one.
    pub(super) async fn pass_two(mut self) -> Result<(Taken, Parent), Trouble> {
        self.talk.say(&Frame::Order(Order::PassTwo)).await?;
        let (mut manifest, mut cache) = (Pieces::default(), Pieces::default());
        let mut parent = Parent::default();
        loop {
            match self.talk.hear().await? {
                Frame::Pack { record, bytes, .. } => self.take(record, bytes).await?,
                Frame::Piece { of: Part::Manifest, last, bytes } => {
                    parent.manifest = manifest.add(Part::Manifest, last, &bytes).map_err(away)?;
                }
                Frame::Piece { of: Part::Cache, last, bytes } => {
                    parent.cache = cache.add(Part::Cache, last, &bytes).map_err(away)?;
                }
                Frame::Answer(Answer::Done(Done::Snapshot { id, report })) => {
                    let sealed = parent.manifest.as_deref().unwrap_or_default();
                    let taken = Taken {
                        snapshot: id,
                        bytes: report.bytes,
                        new_bytes: self.prune(sealed)?,
                        newest_change_ns: report.newest_ctime_ns.unwrap_or(0),
                    };
                    return Ok((taken, parent));
                }
                Frame::Answer(Answer::Failed(failure)) => return Err(failed(failure)),
                Frame::Answer(
                    Answer::Progress(_) | Answer::Need { .. } | Answer::PassOneDone { .. } | Answer::Done(_),
                )
                | Frame::Piece { of: Part::Record, .. }
                | Frame::Order(_)
                | Frame::Keys { .. } => {}
            }
        }
    }

    async fn take(&mut self, record: Option<PackRecord>, bytes: Vec<u8>) -> Result<(), Trouble> {
        let record = record.ok_or_else(|| away("a pack came without its record"))?;
        let (spool, key) = (self.spool.clone(), self.key.clone());
        let taken = tokio::task::spawn_blocking(move || spool.take(&record, &bytes, &key));
        taken.await.map_err(away)??;
        self.talk.say(&Frame::Order(Order::PackTaken)).await
    }

    /// What this snapshot does not name is of one that was given up. Answers the bytes of what it
    /// does name and no relay has yet.
    fn prune(&self, manifest: &[u8]) -> Result<u64, Trouble> {
        let named = manifest_table(manifest).map_err(away)?.into_iter().collect();
        self.spool.keep_only(&named).map_err(away)
    }
}

/// So often what is missing is asked for: the relay may have swept what was not named for long.
const ROUNDS: u32 = 3;

/// Brings a snapshot to the relay: the packs that it lacks, a few at a time, then the manifest.
pub(super) async fn upload(
    snapshot: SnapshotId,
    manifest: &[u8],
    spool: &Spool,
    client: &RelayClient,
    pace: &UploadPace,
) -> Result<(), Trouble> {
    use futures_util::TryStreamExt as _;
    let table = manifest_table(manifest).map_err(|e| Trouble::Refused { reason: e.to_string() })?;
    let sealed = Bytes::copy_from_slice(manifest);
    let mut round = 1;
    loop {
        let missing = client.missing_packs(&table).await.map_err(of_problem)?;
        futures_util::stream::iter(missing.into_iter().map(Ok::<_, Trouble>))
            .try_for_each_concurrent(crate::relay_link::transfer::PARALLEL, |id| async move {
                let spool = spool.clone();
                let bytes = tokio::task::spawn_blocking(move || spool.read(&id)).await.map_err(away)??;
                pace.wait_for(bytes.len()).await;
                client.put_pack(&id, &Bytes::from(bytes)).await.map_err(of_problem)
            })
            .await?;
        match client.put_snapshot(&snapshot, &sealed).await {
            Err(problem) if problem.code == Code::Missing && round < ROUNDS => round += 1,
            put => break put.map_err(of_problem)?,
        }
    }
    // All of it is at the relay: what is spooled has no use any more.
    spool.empty().map_err(away)
}

/// The folder of a guest beside its control folder; nothing in it is the guest's.
pub(super) fn folder(guests: &Path, attempt: &AttemptRef) -> PathBuf {
    guests.join(crate::provider::record::attempt_key(attempt))
}
