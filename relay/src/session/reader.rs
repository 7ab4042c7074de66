//! The reading half: what an agent says, checked for size and place, passed on in order.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use futures_util::StreamExt as _;
use futures_util::stream::SplitStream;
use gpunion_protocol::ids::{AttemptRef, SnapshotId};
use gpunion_protocol::job::Blob;
use gpunion_protocol::session::{LOG_PIECE_MAX, ToAgent, ToRelay};
use tokio_util::sync::CancellationToken;

use super::Session;
use super::kept::Kept;
use crate::broker::SessionId;
use crate::driver::Input;

const GREETING: Duration = Duration::from_secs(10);
/// Attempts of which this session knows that their log may come from this device.
const KNOWN_MAX: usize = 256;

/// The first message must be a `Hello`; whether its version is served is the broker's to say.
pub(super) async fn greeting(
    stream: &mut SplitStream<WebSocket>,
    over: &CancellationToken,
) -> Result<ToRelay, String> {
    match next(stream, GREETING, over).await? {
        Some(hello @ ToRelay::Hello { .. }) => Ok(hello),
        Some(_) | None => Err("the first message must be hello".to_owned()),
    }
}

impl Session {
    /// Passes on what comes; returns why it ended.
    pub(super) async fn read(
        &self,
        id: SessionId,
        hello: ToRelay,
        stream: &mut SplitStream<WebSocket>,
        kept: &Kept,
        over: &CancellationToken,
    ) -> String {
        let patience = self.terms.heartbeat.as_std() * 3;
        let mut reading = Reading { session: self, id, kept, known: BTreeSet::new() };
        let mut message = Some(hello);
        loop {
            if let Some(message) = message
                && let Err(why) = reading.pass_on(message).await
            {
                return why;
            }
            message = match next(stream, patience, over).await {
                Ok(message) => message,
                Err(why) => return why,
            };
        }
    }
}

/// The next message; `None` for one that this version does not know.
async fn next(
    stream: &mut SplitStream<WebSocket>,
    patience: Duration,
    over: &CancellationToken,
) -> Result<Option<ToRelay>, String> {
    let received = tokio::select! {
        biased;
        () = over.cancelled() => return Err("it was ended here".to_owned()),
        received = tokio::time::timeout(patience, stream.next()) => received,
    };
    match received {
        Err(_) => Err("nothing came for three heartbeats".to_owned()),
        Ok(None) => Err("it was closed".to_owned()),
        Ok(Some(Err(e))) => Err(e.to_string()),
        Ok(Some(Ok(Message::Text(text)))) => Ok(serde_json::from_str(&text).map_or_else(
            |e| {
                // Where in it, not what: it may hold a member's output.
                tracing::warn!(line = e.line(), column = e.column(), "a message was not understood");
                None
            },
            Some,
        )),
        Ok(Some(Ok(Message::Close(_)))) => Err("the agent closed it".to_owned()),
        Ok(Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Binary(_)))) => Ok(None),
    }
}

/// What one session's reader remembers.
struct Reading<'a> {
    session: &'a Session,
    id: SessionId,
    kept: &'a Kept,
    /// Attempts whose log may come from this device.
    known: BTreeSet<AttemptRef>,
}

impl Reading<'_> {
    async fn pass_on(&mut self, message: ToRelay) -> Result<(), String> {
        match &message {
            ToRelay::Beat => return Ok(()),
            ToRelay::Log { attempt, offset, bytes } => {
                return self.keep_log(attempt, *offset, bytes).await;
            }
            ToRelay::Publish { attempt, checkpoint, .. } => {
                if !self.is_here(&checkpoint.snapshot).await? {
                    return self.refuse(attempt, checkpoint.snapshot).await;
                }
            }
            ToRelay::Ended { attempt, result, .. } => {
                if let Some(result) = result
                    && !self.is_here(result).await?
                {
                    // Said again until it is answered: with the result here, or without one.
                    tracing::warn!(%attempt, "its result is not here; the end is not taken");
                    return self.refuse(attempt, *result).await;
                }
                self.known.remove(attempt);
            }
            ToRelay::Renew { attempts, .. } => {
                // What it does not hold any more is asked about again: its log may be closed.
                self.known.retain(|attempt| attempts.contains(attempt));
                for attempt in attempts.iter().take(KNOWN_MAX) {
                    self.introduce(attempt).await?;
                }
            }
            ToRelay::State { attempt, .. } => drop(self.introduce(attempt).await?),
            ToRelay::Hello { .. }
            | ToRelay::Offer { .. }
            | ToRelay::Leaving { .. }
            | ToRelay::ImageDigest { .. }
            | ToRelay::Wrapped { .. } => {}
        }
        let device = self.session.device.clone();
        let heard = Input::Heard { device, session: self.id, message: Box::new(message) };
        self.session.handle.send(heard).await.map_err(|problem| problem.to_string())
    }

    /// Whether log of this attempt may come from this device. The first time in a session the
    /// agent is told from where on.
    async fn introduce(&mut self, attempt: &AttemptRef) -> Result<bool, String> {
        if self.known.contains(attempt) {
            return Ok(true);
        }
        let (asked, by) = (attempt.clone(), self.session.device.clone());
        let accepts = self.session.handle.ask(move |broker| broker.log_accepts(&by, &asked)).await;
        if !accepts.map_err(|problem| problem.to_string())? {
            return Ok(false);
        }
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(attempt.clone());
        match self.session.logs.kept(attempt.clone()).await {
            Ok(offset) => self.kept.set(attempt.clone(), offset),
            Err(error) => tracing::warn!(%attempt, %error, "its log can't be opened"),
        }
        Ok(true)
    }

    /// A piece that can't be kept is dropped: the log then tells of a gap.
    async fn keep_log(&mut self, attempt: &AttemptRef, offset: u64, bytes: &Blob) -> Result<(), String> {
        if bytes.0.len() > LOG_PIECE_MAX {
            return Err(format!("a piece of log is longer than {LOG_PIECE_MAX} bytes"));
        }
        if !self.introduce(attempt).await? {
            return Ok(());
        }
        let name = self.session.device_name.clone();
        match self.session.logs.append(attempt.clone(), name, offset, bytes.0.clone()).await {
            Ok(offset) => self.kept.set(attempt.clone(), offset),
            Err(error) => tracing::warn!(%attempt, %error, "a piece of its log is lost"),
        }
        Ok(())
    }

    /// A manifest is here only with all its packs, so looking for it is enough; and it stays until its
    /// record names it. A disk that does not say ends the session: what was said is said again.
    async fn is_here(&self, snapshot: &SnapshotId) -> Result<bool, String> {
        let missing = self.session.packs.snapshots.missing(vec![snapshot.0]).await;
        let missing = missing.map_err(|e| format!("the relay could not look for a snapshot: {e}"))?;
        Ok(missing.is_empty())
    }

    async fn refuse(&self, attempt: &AttemptRef, snapshot: SnapshotId) -> Result<(), String> {
        let reason = "its manifest is not at the relay; send its packs and the manifest first".to_owned();
        let attempt = attempt.clone();
        let message = Box::new(ToAgent::PublishRefused { attempt, snapshot, reason });
        let say = Input::Say { device: self.session.device.clone(), message };
        self.session.handle.send(say).await.map_err(|problem| problem.to_string())
    }
}
