//! Jobs: submit, list, show, cancel.

use axum::Extension;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use gpunion_protocol::http::{IDEMPOTENCY_KEY, Role, Submit, Submitted};
use gpunion_protocol::ids::JobId;
use gpunion_protocol::job::{Image, JobView};
use gpunion_protocol::problem::{Code, Problem};
use serde::Deserialize;

use super::{App, Json, Refused};
use crate::broker::{Caller, Digest, Event, Jobs, Reply};

/// Jobs in one answer, when nothing else is asked for, and at most.
const LIST: usize = 100;
const LIST_MAX: usize = 1_000;

/// `POST /v1/jobs`. Safe to repeat: the same key and body give the same job.
pub(super) async fn submit(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Json(submit): Json<Submit>,
) -> Result<Json<Submitted>, Refused> {
    let key = idempotency_key(&headers)?;
    submit.spec.check().map_err(|e| Refused::new(Code::BadSpec, e.to_string()))?;
    snapshots_are_here(&app, &submit).await?;
    // Of what it says, not of its bytes: another way to write the same JSON is the same request.
    let canonical = serde_json::to_vec(&submit)
        .map_err(|e| Refused::new(Code::BadRequest, format!("the job can't be written down: {e}")))?;
    let body = Digest::of(&canonical);
    let (member, submit) = (caller.member, Box::new(submit));
    let event = |request| Event::Submit { request, member, key, body, submit };
    match app.handle.call(event).await? {
        Reply::Submitted(submitted) => Ok(Json(submitted)),
        Reply::Invited { .. } | Reply::Joined { .. } | Reply::State(_) | Reply::Done => {
            Err(Refused::confused())
        }
    }
}

fn idempotency_key(headers: &HeaderMap) -> Result<String, Refused> {
    let key = headers.get(IDEMPOTENCY_KEY).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if key.is_empty() || key.len() > 128 {
        let problem = Problem::new(Code::BadRequest, "the header idempotency-key is missing or too long");
        return Err(problem.with_detail("send 1 to 128 characters, the same ones when you repeat").into());
    }
    Ok(key.to_owned())
}

/// Input, data and layers must have been sent before.
async fn snapshots_are_here(app: &App, submit: &Submit) -> Result<(), Refused> {
    let layers = match &submit.image {
        Image::Layers { snapshot, .. } => Some(snapshot),
        Image::Registry { .. } => None,
    };
    let data = submit.data.iter().map(|data| &data.snapshot);
    let wanted = submit.input.iter().chain(layers).chain(data).map(|id| id.0).collect();
    let missing = app.packs.snapshots.missing(wanted).await;
    let missing = missing.map_err(|e| Refused::io("look for snapshots", &e))?;
    super::objects::none_missing("snapshots", &missing)
}

#[derive(Deserialize)]
pub(super) struct List {
    /// Operators may ask for everybody's.
    #[serde(default)]
    all: bool,
    limit: Option<usize>,
    state: Option<Which>,
    name: Option<String>,
    /// The last job of the page before this one.
    before: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Which {
    Open,
    Final,
}

/// `GET /v1/jobs?all=true&state=open|final&name=NAME&before=JOB&limit=N`, newest first. Where as
/// many come as were asked for there may be more, `before` the last of them.
pub(super) async fn list(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    query: Result<Query<List>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Vec<JobView>>, Refused> {
    let Query(asked) = query.map_err(|e| Refused::new(Code::BadRequest, e.body_text()))?;
    let List { all, limit, state, name, before } = asked;
    if all && caller.role != Role::Operator {
        return Err(Refused::new(Code::Forbidden, "only an operator may list everybody's jobs"));
    }
    let wanted = Jobs {
        member: (!all).then(|| caller.member.clone()),
        open: state.map(|which| match which {
            Which::Open => true,
            Which::Final => false,
        }),
        name,
        before: before.map(|id| job_id(&id)).transpose()?,
        limit: limit.unwrap_or(LIST).min(LIST_MAX),
    };
    let jobs = move |broker: &crate::broker::Broker| broker.jobs_where(&wanted, &caller.member);
    app.handle.ask(jobs).await?.map(Json).ok_or_else(|| Refused::not_found("job to go on from"))
}

/// `GET /v1/jobs/{id}`
pub(super) async fn show(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<JobView>, Refused> {
    let job = job_id(&id)?;
    let view = move |broker: &crate::broker::Broker| {
        broker.may_see(&caller.member, &job).then(|| broker.job_view(&job, &caller.member)).flatten()
    };
    app.handle.ask(view).await?.map(Json).ok_or_else(|| Refused::not_found("job"))
}

/// `POST /v1/jobs/{id}/cancel`
pub(super) async fn cancel(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<Submitted>, Refused> {
    let job = job_id(&id)?;
    let (by, named) = (caller.member, job.clone());
    match app.handle.call(|request| Event::Cancel { request, by, job: named }).await? {
        Reply::State(state) => Ok(Json(Submitted { job, state })),
        Reply::Invited { .. } | Reply::Joined { .. } | Reply::Submitted(_) | Reply::Done => {
            Err(Refused::confused())
        }
    }
}

pub(super) fn job_id(text: &str) -> Result<JobId, Refused> {
    text.parse().map_err(|_| Refused::not_found("job"))
}
