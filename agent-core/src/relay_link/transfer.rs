//! Packs, snapshots, logs and events: what is large, or goes on for long.
//!
//! A pack is verified against its id as it comes; what the relay has is never sent again.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use gpunion_protocol::http::{Event, HAVE_MAX, HavePacks, LogPiece, MissingPacks};
use gpunion_protocol::ids::{JobId, PackId, SnapshotId};
use gpunion_protocol::problem::{Code, Problem};
use reqwest::Method;

use super::backoff::{Backoff, jitter};
use super::client::{RelayClient, piece_stream, read_body};
use super::sse::{self, SseEvent};

/// So many packs are on their way at a time.
pub const PARALLEL: usize = 4;
/// A stream says at least "still here" more often than this.
const STREAM_PATIENCE: Duration = Duration::from_secs(90);

impl RelayClient {
    /// Which of these packs the relay lacks.
    pub async fn missing_packs(&self, packs: &[PackId]) -> Result<Vec<PackId>, Problem> {
        let mut missing = Vec::new();
        for part in packs.chunks(HAVE_MAX) {
            let ask = HavePacks { packs: part.to_vec() };
            let answer: MissingPacks =
                self.repeat(|| self.json(Method::POST, "/v1/packs/have", &[], Some(&ask))).await?;
            missing.extend(answer.missing);
        }
        Ok(missing)
    }

    /// Safe to repeat: a pack is named by its bytes.
    pub async fn put_pack(&self, id: &PackId, bytes: &Bytes) -> Result<(), Problem> {
        self.put(&format!("/v1/packs/{id}"), bytes).await
    }

    /// Verified: what comes out has the id that was asked for.
    pub async fn pack(&self, id: &PackId) -> Result<Bytes, Problem> {
        let bytes = self.fetch(&format!("/v1/packs/{id}"), gpunion_protocol::tables::MAX_PACK).await?;
        verified(bytes, &id.0, "pack")
    }

    /// The manifest; its packs must be at the relay.
    pub async fn put_snapshot(&self, id: &SnapshotId, sealed: &Bytes) -> Result<(), Problem> {
        self.put(&format!("/v1/snapshots/{id}"), sealed).await
    }

    pub async fn snapshot(&self, id: &SnapshotId) -> Result<Bytes, Problem> {
        let bytes =
            self.fetch(&format!("/v1/snapshots/{id}"), gpunion_protocol::tables::MAX_MANIFEST).await?;
        verified(bytes, &id.0, "snapshot")
    }

    async fn fetch(&self, path: &str, limit: usize) -> Result<Bytes, Problem> {
        self.repeat(|| async { read_body(self.send(Method::GET, path, &[], None).await?, limit).await }).await
    }

    /// A job's output from byte `from` on. Goes on over breaks; ends with `End`, at the end of what
    /// is there when it does not follow, or with the relay's refusal.
    pub async fn log(
        &self,
        job: &JobId,
        from: u64,
        follow: bool,
    ) -> Result<impl Stream<Item = Result<LogPiece, Problem>> + Send + Unpin + use<>, Problem> {
        let first = self.open_log(job, from, follow).await?;
        let state =
            LogReader { client: self.clone(), job: job.clone(), next: from, follow, stream: Some(first) };
        Ok(Box::pin(futures_util::stream::unfold(Some(state), |state| async move {
            let mut state = state?;
            match state.piece().await? {
                Ok(piece) => {
                    let over = matches!(piece, LogPiece::End { .. });
                    Some((Ok(piece), (!over).then_some(state)))
                }
                Err(problem) => Some((Err(problem), None)),
            }
        })))
    }

    async fn open_log(&self, job: &JobId, from: u64, follow: bool) -> Result<Events, Problem> {
        let follow = u8::from(follow);
        self.open_events(&format!("/v1/jobs/{job}/log?from={from}&follow={follow}"), None).await
    }

    async fn open_events(&self, path: &str, last: Option<&str>) -> Result<Events, Problem> {
        let mut headers = vec![(reqwest::header::ACCEPT.as_str(), "text/event-stream".to_owned())];
        if let Some(last) = last {
            headers.push(("last-event-id", last.to_owned()));
        }
        let response = self.send(Method::GET, path, &headers, None).await?;
        Ok(sse::events(piece_stream(response, STREAM_PATIENCE)).boxed())
    }

    /// The group's events as they happen, over breaks; ends only with the relay's refusal.
    pub fn events(&self) -> impl Stream<Item = Result<Event, Problem>> + Send + Unpin + use<> {
        let state = EventReader { client: self.clone(), last: None, stream: None };
        Box::pin(futures_util::stream::unfold(Some(state), |state| async move {
            let mut state = state?;
            match state.event().await {
                Ok(event) => Some((Ok(event), Some(state))),
                Err(problem) => Some((Err(problem), None)),
            }
        }))
    }
}

type Events = futures_util::stream::BoxStream<'static, Result<SseEvent, sse::BadStream>>;

struct LogReader {
    client: RelayClient,
    job: JobId,
    next: u64,
    follow: bool,
    stream: Option<Events>,
}

impl LogReader {
    async fn piece(&mut self) -> Option<Result<LogPiece, Problem>> {
        let mut backoff = Backoff::default();
        loop {
            let Some(stream) = &mut self.stream else {
                match self.client.open_log(&self.job, self.next, self.follow).await {
                    Ok(stream) => self.stream = Some(stream),
                    Err(problem) if passes(&problem) => {
                        tokio::time::sleep(backoff.after_failure(jitter())).await;
                    }
                    Err(problem) => return Some(Err(problem)),
                }
                continue;
            };
            match stream.next().await {
                Some(Ok(event)) => match serde_json::from_str::<LogPiece>(&event.data) {
                    Ok(piece) => {
                        self.next = next_of(&piece);
                        return Some(Ok(piece));
                    }
                    // A kind of piece of a newer relay.
                    Err(_) => continue,
                },
                None if !self.follow => return None,
                // It broke, or the relay restarts.
                Some(Err(_)) | None => {
                    self.stream = None;
                    tokio::time::sleep(backoff.after_failure(jitter())).await;
                }
            }
        }
    }
}

/// What a relay is for a while: away, busy, full. A stream is taken up again after it.
fn passes(problem: &Problem) -> bool {
    matches!(problem.code, Code::RelayAway | Code::Busy | Code::DiskFull)
}

pub fn next_of(piece: &LogPiece) -> u64 {
    match piece {
        LogPiece::Bytes { next, .. }
        | LogPiece::Attempt { next, .. }
        | LogPiece::Gap { next, .. }
        | LogPiece::End { next } => *next,
    }
}

struct EventReader {
    client: RelayClient,
    last: Option<String>,
    stream: Option<Events>,
}

impl EventReader {
    async fn event(&mut self) -> Result<Event, Problem> {
        let mut backoff = Backoff::default();
        loop {
            let Some(stream) = &mut self.stream else {
                match self.client.open_events("/v1/events", self.last.as_deref()).await {
                    Ok(stream) => self.stream = Some(stream),
                    Err(problem) if passes(&problem) => {
                        tokio::time::sleep(backoff.after_failure(jitter())).await;
                    }
                    Err(problem) => return Err(problem),
                }
                continue;
            };
            match stream.next().await {
                Some(Ok(event)) => {
                    if event.id.is_some() {
                        self.last = event.id;
                    }
                    if let Ok(event) = serde_json::from_str(&event.data) {
                        return Ok(event);
                    }
                }
                Some(Err(_)) | None => {
                    self.stream = None;
                    tokio::time::sleep(backoff.after_failure(jitter())).await;
                }
            }
        }
    }
}

fn verified(bytes: Bytes, id: &[u8; 32], what: &str) -> Result<Bytes, Problem> {
    if blake3::hash(&bytes).as_bytes() == id {
        return Ok(bytes);
    }
    Err(Problem::new(Code::Corrupt, format!("the relay sent a damaged {what}")).with_detail(format!(
        "{} does not have these bytes; the relay's disk may be failing",
        hex::encode(id)
    )))
}
