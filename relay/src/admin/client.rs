//! The other side of the operator's door, for `gpunion relay invite | members | backup`.

use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HOST};
use axum::http::{Method, Request};
use gpunion_protocol::http::{MadeInvite, MemberView, NewInvite};
use gpunion_protocol::problem::{Code, Problem};
use http_body_util::{BodyExt as _, Limited};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::{BackedUp, Backup, SOCKET};

/// A backup of a large database takes a while.
const PATIENCE: Duration = Duration::from_secs(600);
const ANSWER_MAX: usize = 16 << 20;

pub async fn invite(state_dir: &Path, wanted: &NewInvite) -> Result<MadeInvite, Problem> {
    ask(state_dir, Method::POST, "/invites", Some(wanted)).await
}

pub async fn members(state_dir: &Path) -> Result<Vec<MemberView>, Problem> {
    ask(state_dir, Method::GET, "/members", None::<&()>).await
}

/// Their jobs are cancelled, their devices revoked.
pub async fn remove_member(state_dir: &Path, member: &str) -> Result<(), Problem> {
    ask(state_dir, Method::DELETE, &format!("/members/{member}"), None::<&()>).await
}

/// Its token is refused from then on, and its session ends.
pub async fn revoke_device(state_dir: &Path, device: &str) -> Result<(), Problem> {
    ask(state_dir, Method::DELETE, &format!("/devices/{device}"), None::<&()>).await
}

pub async fn backup(state_dir: &Path, wanted: &Backup) -> Result<BackedUp, Problem> {
    ask(state_dir, Method::POST, "/backup", Some(wanted)).await
}

async fn ask<T: DeserializeOwned>(
    state_dir: &Path,
    method: Method,
    path: &str,
    body: Option<&impl Serialize>,
) -> Result<T, Problem> {
    let body = body.map(serde_json::to_vec).transpose().map_err(|e| broken(&e))?.unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "relay")
        .header(CONTENT_TYPE, "application/json")
        .body(Body::from(body))
        .map_err(|e| broken(&e))?;
    let (ok, bytes) =
        tokio::time::timeout(PATIENCE, send(state_dir, request)).await.map_err(|e| broken(&e))??;
    if ok {
        return serde_json::from_slice(&bytes).map_err(|e| broken(&e));
    }
    Err(serde_json::from_slice(&bytes).unwrap_or_else(|e| broken(&e)))
}

async fn send(state_dir: &Path, request: Request<Body>) -> Result<(bool, Vec<u8>), Problem> {
    let path = state_dir.join(SOCKET);
    let stream = UnixStream::connect(&path).await.map_err(|e| away(&path, &e))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| broken(&e))?;
    let driving = tokio::spawn(connection);
    let answer = async {
        let response = sender.send_request(request).await.map_err(|e| broken(&e))?;
        let ok = response.status().is_success();
        let body = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
        let bytes = body.map_err(|e| Problem::new(Code::Internal, e.to_string()))?.to_bytes();
        Ok((ok, bytes.to_vec()))
    };
    let answer = answer.await;
    driving.abort();
    answer
}

fn away(path: &Path, error: &std::io::Error) -> Problem {
    let title = format!("no relay answers at {}", path.display());
    let detail = match error.kind() {
        std::io::ErrorKind::PermissionDenied => "run this as the user who runs the relay".to_owned(),
        std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
            "start it with `gpunion relay serve`, or name its folder with --state".to_owned()
        }
        _ => error.to_string(),
    };
    Problem::new(Code::RelayAway, title).with_detail(detail)
}

fn broken(error: &impl std::fmt::Display) -> Problem {
    Problem::new(Code::Internal, "talking to the relay failed").with_detail(error.to_string())
}
