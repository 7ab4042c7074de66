//! The member's jobs.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::response::IntoResponse;
use futures_util::StreamExt as _;
use gpunion_protocol::ids::JobId;
use gpunion_protocol::job::JobView;
use gpunion_protocol::local::{FetchRequest, LogEvent, Preview, PreviewRequest, SubmitRequest};
use gpunion_protocol::problem::{Code, Problem};
use serde::Deserialize;
use tokio_stream::wrappers::ReceiverStream;

use super::Api;
use super::answer::{Answer, Body, Refusal, events};
use crate::relay_link::jobs::JobFilter;

pub(super) async fn preview(State(api): State<Api>, Body(request): Body<PreviewRequest>) -> Answer<Preview> {
    Ok(Json(api.doors.consumer.preview(&request).await?))
}

pub(super) async fn submit(State(api): State<Api>, Body(request): Body<SubmitRequest>) -> impl IntoResponse {
    events(ReceiverStream::new(api.doors.consumer.submit(request)), api.shutdown)
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct ListQuery {
    /// `open`: those that are not over.
    state: Option<String>,
    name: Option<String>,
}

pub(super) async fn list(State(api): State<Api>, Query(query): Query<ListQuery>) -> Answer<Vec<JobView>> {
    let open = match query.state.as_deref() {
        None => false,
        Some("open") => true,
        Some(other) => {
            return Err(Problem::new(Code::BadRequest, format!("there is no state {other:?} to list")).into());
        }
    };
    let filter = JobFilter { open, name: query.name };
    Ok(Json(api.doors.consumer.pairing().current()?.client.jobs(&filter).await?))
}

pub(super) async fn show(State(api): State<Api>, Path(id): Path<String>) -> Answer<JobView> {
    let job = job(&id)?;
    Ok(Json(api.doors.consumer.pairing().current()?.client.job(&job).await?))
}

pub(super) async fn cancel(State(api): State<Api>, Path(id): Path<String>) -> Answer<JobView> {
    let job = job(&id)?;
    let member = api.doors.consumer.pairing().current()?;
    member.client.cancel(&job).await?;
    Ok(Json(member.client.job(&job).await?))
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct LogQuery {
    /// Byte of the whole stream to begin with.
    #[serde(default)]
    from: u64,
    /// 1: goes on until the job is final.
    #[serde(default)]
    follow: u8,
}

pub(super) async fn log(
    State(api): State<Api>,
    Path(id): Path<String>,
    Query(query): Query<LogQuery>,
) -> Result<impl IntoResponse, Refusal> {
    let job = job(&id)?;
    let member = api.doors.consumer.pairing().current()?;
    let pieces = member.client.log(&job, query.from, query.follow != 0).await?;
    let pieces = pieces.map(|piece| match piece {
        Ok(piece) => LogEvent::Piece(piece),
        Err(problem) => LogEvent::Problem { problem },
    });
    Ok(events(pieces, api.shutdown))
}

pub(super) async fn fetch(
    State(api): State<Api>,
    Path(id): Path<String>,
    Body(request): Body<FetchRequest>,
) -> Result<impl IntoResponse, Refusal> {
    let job = job(&id)?;
    Ok(events(ReceiverStream::new(api.doors.consumer.fetch(job, request)), api.shutdown))
}

fn job(text: &str) -> Result<JobId, Problem> {
    text.parse()
        .map_err(|error: gpunion_protocol::ids::BadId| Problem::new(Code::BadRequest, error.to_string()))
}
