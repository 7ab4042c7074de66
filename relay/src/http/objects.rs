//! Packs and snapshots by id: which are missing, put, get.
//!
//! Any device of the group may read any of them: they are sealed, and an id is only learnt from
//! whoever may know it. Putting one says nothing about who owns it. What is not missing, was put or
//! is fetched stays for a while, whoever names it (`packs::sweep`).

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::header::{ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use gpunion_protocol::http::{HAVE_MAX, HavePacks, MissingPacks, UPLOAD_OFFSET};
use gpunion_protocol::ids::PackId;
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::tables::{MAX_SNAPSHOT_PACKS, manifest_table, table_len};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use tokio_util::io::ReaderStream;

use super::range::{self, Wanted, wanted};
use super::{App, Json, Refused};
use crate::broker::Caller;
use crate::packs::{Added, Kept, PutError, Received, Shelf};

/// Ids named in the words of a problem; a have-list tells them all.
const NAMED: usize = 20;
/// Shorter than any proxy waits for an answer.
const UPLOAD_WAIT: std::time::Duration = std::time::Duration::from_secs(8);

/// `POST /v1/packs/have`
pub(super) async fn have_packs(
    State(app): State<App>,
    Json(have): Json<HavePacks>,
) -> Result<Json<MissingPacks>, Refused> {
    missing(&app.packs.packs, have).await
}

/// `POST /v1/snapshots/have`; the ids of snapshots stand in `packs`.
pub(super) async fn have_snapshots(
    State(app): State<App>,
    Json(have): Json<HavePacks>,
) -> Result<Json<MissingPacks>, Refused> {
    missing(&app.packs.snapshots, have).await
}

async fn missing(shelf: &Shelf, have: HavePacks) -> Result<Json<MissingPacks>, Refused> {
    if have.packs.len() > HAVE_MAX {
        return Err(Refused::new(Code::TooLarge, format!("a have-list has at most {HAVE_MAX} ids")));
    }
    let missing = shelf.missing(have.packs.into_iter().map(|id| id.0).collect()).await;
    let missing = missing.map_err(|e| Refused::io("look for packs", &e))?;
    Ok(Json(MissingPacks { missing: missing.into_iter().map(PackId).collect() }))
}

/// `PUT /v1/packs/{id}`: 201, or 200 when it was here. With `Content-Range: bytes A-B/TOTAL` it is a
/// part: 202 until all have come.
pub(super) async fn put_pack(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Refused> {
    match receive(&app, &app.packs.packs, &caller, &id, request).await? {
        Added::Whole(received) => keep(received).await.map(IntoResponse::into_response),
        Added::Until(offset) => Ok(so_far(offset)),
    }
}

/// `PUT /v1/snapshots/{id}`: taken in only when all packs of its table are here.
pub(super) async fn put_snapshot(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, Refused> {
    let received = match receive(&app, &app.packs.snapshots, &caller, &id, request).await? {
        Added::Whole(received) => received,
        Added::Until(offset) => return Ok(so_far(offset)),
    };
    let packs = table(&received).await?.into_iter().map(|id| id.0).collect();
    let status = match received.keep_with(&app.packs.packs, packs).await.map_err(refused)? {
        Kept::New => StatusCode::CREATED,
        Kept::Known => StatusCode::OK,
        Kept::Without(missing) => return Err(lacks("packs", &missing)),
    };
    Ok(status.into_response())
}

/// 202: so many bytes are here, go on from there.
fn so_far(offset: u64) -> Response {
    (StatusCode::ACCEPTED, [(UPLOAD_OFFSET, offset.to_string())]).into_response()
}

/// Reads no more of the manifest than its plain table.
async fn table(received: &Received) -> Result<Vec<PackId>, Refused> {
    let failed = |e: std::io::Error| Refused::io("read the manifest", &e);
    let head = received.beginning(table_len(0)).await.map_err(failed)?;
    let count = head.last_chunk().map_or(0, |count| u32::from_le_bytes(*count) as usize);
    let count = count.min(MAX_SNAPSHOT_PACKS);
    let sealed = received.beginning(table_len(count)).await.map_err(failed)?;
    manifest_table(&sealed).map_err(|error| {
        let problem = Problem::new(Code::Corrupt, "this is no sealed manifest that the relay can check");
        problem.with_detail(error.to_string()).into()
    })
}

async fn receive(
    app: &App,
    shelf: &Shelf,
    caller: &Caller,
    id: &str,
    request: Request,
) -> Result<Added, Refused> {
    let id: PackId = id.parse().map_err(|_| Refused::not_found("id (64 hex digits)"))?;
    let told = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if told.is_some_and(|len| len > shelf.max()) {
        return Err(refused(PutError::TooLarge(shelf.max())));
    }
    let busy = || Refused::new(Code::Busy, "too many uploads are under way; try again in a moment");
    let _turn = tokio::time::timeout(UPLOAD_WAIT, app.uploads.acquire())
        .await
        .map_err(|_| busy())?
        .map_err(|_| busy())?;
    // Without its length told it may be as long as any.
    let Some(_place) = shelf.place(told.unwrap_or(shelf.max())) else {
        app.packs.full.notify_one();
        let problem = Problem::new(Code::DiskFull, "the relay's disk is nearly full");
        return Err(problem.with_detail("ask its operator to make room, then try again").into());
    };
    let part = request.headers().get(CONTENT_RANGE).map(|value| {
        let part = value.to_str().ok().and_then(range::part);
        part.ok_or_else(|| Refused::new(Code::BadRequest, "Content-Range is not bytes FROM-TO/TOTAL"))
    });
    let part = part.transpose()?;
    let stream = request.into_body().into_data_stream();
    let added = match part {
        Some(part) => app.packs.parts.add(&caller.device, (shelf, id.0), part, stream).await,
        None => Received::read(shelf, id.0, stream).await.map(Added::Whole),
    };
    added.map_err(refused)
}

async fn keep(received: Received) -> Result<StatusCode, Refused> {
    let new = received.keep().await.map_err(refused)?;
    Ok(if new { StatusCode::CREATED } else { StatusCode::OK })
}

fn refused(error: PutError) -> Refused {
    let code = match &error {
        PutError::TooLarge(_) => Code::TooLarge,
        PutError::Corrupt => Code::Corrupt,
        PutError::Cut(_) => Code::BadRequest,
        PutError::Io(e) => return Refused::io("store it", e),
    };
    Problem::new(code, "it was not taken in").with_detail(error.to_string()).into()
}

pub(super) fn none_missing(what: &str, ids: &[[u8; 32]]) -> Result<(), Refused> {
    if ids.is_empty() { Ok(()) } else { Err(lacks(what, ids)) }
}

/// A problem that names some of what is missing.
fn lacks(what: &str, ids: &[[u8; 32]]) -> Refused {
    let named: Vec<String> = ids.iter().take(NAMED).map(hex::encode).collect();
    let more = if ids.len() > NAMED { " and more" } else { "" };
    let problem = Problem::new(Code::Missing, format!("{} {what} must be sent first", ids.len()));
    problem.with_detail(format!("{}{more}", named.join(" "))).into()
}

/// `GET` and `HEAD` of `/v1/packs/{id}`, with one range.
pub(super) async fn get_pack(
    State(app): State<App>,
    Path(id): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    send(&app.packs.packs, "pack", &id, &method, &headers).await
}

/// `GET` and `HEAD` of `/v1/snapshots/{id}`, with one range.
pub(super) async fn get_snapshot(
    State(app): State<App>,
    Path(id): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, Refused> {
    if method == Method::GET
        && let Ok(id) = id.parse()
    {
        app.packs.fetches(id).await;
    }
    send(&app.packs.snapshots, "snapshot", &id, &method, &headers).await
}

async fn send(
    shelf: &Shelf,
    what: &str,
    id: &str,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Response, Refused> {
    let id: PackId = id.parse().map_err(|_| Refused::not_found(what))?;
    let failed = |e: std::io::Error| Refused::io("read it", &e);
    let found = shelf.read(&id.0).await.map_err(failed)?;
    let (mut file, len) = found.ok_or_else(|| Refused::not_found(what))?;
    let range = headers.get(RANGE).and_then(|value| value.to_str().ok());
    let (status, part) = match wanted(range, len) {
        Wanted::Whole => (StatusCode::OK, 0..len),
        Wanted::Part(part) => (StatusCode::PARTIAL_CONTENT, part),
        Wanted::Impossible => {
            let title = format!("it has {len} bytes; the range begins after them");
            return Err(Problem { status: 416, ..Problem::new(Code::BadRequest, title) }.into());
        }
    };
    let mut response = Response::builder()
        .status(status)
        .header(CONTENT_TYPE, "application/octet-stream")
        .header(ACCEPT_RANGES, "bytes")
        // The bytes of an id never change.
        .header(CACHE_CONTROL, "private, max-age=31536000, immutable")
        .header(CONTENT_LENGTH, part.end - part.start);
    if status == StatusCode::PARTIAL_CONTENT {
        let range = format!("bytes {}-{}/{len}", part.start, part.end.saturating_sub(1));
        response = response.header(CONTENT_RANGE, range);
    }
    let body = if *method == Method::HEAD {
        Body::empty()
    } else {
        file.seek(std::io::SeekFrom::Start(part.start)).await.map_err(failed)?;
        Body::from_stream(ReaderStream::with_capacity(file.take(part.end - part.start), 128 << 10))
    };
    let response = response.body(body).map_err(|e| failed(std::io::Error::other(e)))?;
    Ok(response.into_response())
}
