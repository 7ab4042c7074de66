//! `GET /v1/jobs/{id}/log?from=N&follow=1`: a job's output as one stream.

use std::convert::Infallible;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event as Sse;
use futures_util::{StreamExt as _, stream};
use gpunion_protocol::http::LogPiece;
use gpunion_protocol::ids::JobId;
use gpunion_protocol::problem::Code;
use serde::Deserialize;

use super::auth::Pass;
use super::{App, Refused, jobs, stream as sse};
use crate::broker::{Broker, Caller};
use crate::logs::Follower;

/// A reader that was not woken looks again after so long: the end of an attempt of a cancelled
/// job changes no state that anybody is told about.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
pub(super) struct From {
    #[serde(default)]
    from: u64,
    #[serde(default)]
    follow: u8,
}

pub(super) async fn follow(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Extension(pass): Extension<Pass>,
    Path(id): Path<String>,
    query: Result<Query<From>, axum::extract::rejection::QueryRejection>,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    let Query(From { from, follow }) = query.map_err(|e| Refused::new(Code::BadRequest, e.body_text()))?;
    let job = jobs::job_id(&id)?;
    let (member, asked) = (caller.member.clone(), job.clone());
    if !app.handle.ask(move |broker| broker.may_see(&member, &asked)).await? {
        return Err(Refused::not_found("job"));
    }
    let resumed = headers.get("last-event-id").and_then(|v| v.to_str().ok()?.parse().ok());
    let follower = app.logs.follow(job.clone(), resumed.unwrap_or(from)).await;
    let follower = follower.map_err(|e| Refused::io("open the log", &e))?;
    let reading = Reading { app, job, follower, follow: follow != 0 };
    let pieces = stream::unfold(Some(reading), step).flat_map(stream::iter);
    let pieces = pieces.map(Ok::<_, Infallible>);
    let pieces = pieces.take_until(pass.ended());
    Ok(sse::answer(pieces))
}

struct Reading {
    app: App,
    job: JobId,
    follower: Follower,
    follow: bool,
}

/// The next pieces, and how to go on.
async fn step(reading: Option<Reading>) -> Option<(Vec<Sse>, Option<Reading>)> {
    let mut reading = reading?;
    loop {
        // Asked before the read: what was said before the end is then in the read.
        let over = reading.is_over().await?;
        let pieces = match reading.follower.read().await {
            Ok(pieces) => pieces,
            Err(error) => {
                tracing::error!(job = %reading.job, %error, "its log can't be read");
                return None;
            }
        };
        if !pieces.is_empty() {
            return Some((pieces.iter().filter_map(event).collect(), Some(reading)));
        }
        if over {
            let end = LogPiece::End { next: reading.follower.position() };
            return Some((event(&end).into_iter().collect(), None));
        }
        if !reading.follow {
            return None;
        }
        // Either way it looks again.
        let _ = tokio::time::timeout(LOOK_AGAIN, reading.follower.news()).await;
    }
}

impl Reading {
    /// The job is final and nobody speaks for it any more; `None` when the relay stops.
    async fn is_over(&self) -> Option<bool> {
        let job = self.job.clone();
        self.app.handle.ask(move |broker: &Broker| broker.is_over(&job)).await.ok()
    }
}

fn event(piece: &LogPiece) -> Option<Sse> {
    let (LogPiece::Bytes { next, .. }
    | LogPiece::Attempt { next, .. }
    | LogPiece::Gap { next, .. }
    | LogPiece::End { next }) = piece;
    // A piece is plain data; it always has a JSON form.
    Sse::default().id(next.to_string()).json_data(piece).ok()
}
