//! Who asks: the bearer token, looked up by its hash, for every route that is not open.

use std::net::IpAddr;

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Extension, extract};
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::session::MESSAGE_MAX;
use tokio::sync::watch;

use super::{App, Refused};
use crate::broker::{Caller, Digest};
use crate::session::Session;
use crate::strangers::Stranger;

/// Bytes that each session reads into, for as long as it lives. Most messages have some hundred; the
/// usual 128 KiB would all be in memory, a thousand times. A longer message makes room for itself.
const READ_BUFFER: usize = 4 << 10;

/// The address a connection came from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// A stream's right to go on: its token, looked at again whenever somebody was shut out.
#[derive(Clone)]
pub(super) struct Pass {
    app: App,
    token: Digest,
    doors: watch::Receiver<()>,
}

impl Pass {
    /// Returns once the token is no longer valid, or the relay stops.
    pub(super) async fn ended(mut self) {
        loop {
            tokio::select! {
                () = self.app.stopping.cancelled() => return,
                changed = self.doors.changed() => if changed.is_err() { return },
            }
            let token = self.token;
            match self.app.handle.ask(move |broker| broker.caller(&token).is_some()).await {
                Ok(true) => {}
                Ok(false) | Err(_) => return,
            }
        }
    }
}

/// Lets only a known token through; adds its `Caller` and a `Pass` for streams.
pub(super) async fn check(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let Some(token) = bearer(request.headers()) else { return unauthorized() };
    // Before the question: whoever is shut out in between is then seen by the pass.
    let doors = app.feed.doors();
    match app.handle.ask(move |broker| broker.caller(&token)).await {
        Ok(Some(caller)) => {
            if let Some(stranger) = request.extensions().get::<Stranger>() {
                stranger.is_known_now();
            }
            request.extensions_mut().insert(caller);
            request.extensions_mut().insert(Pass { app, token, doors });
            next.run(request).await
        }
        Ok(None) => unauthorized(),
        Err(problem) => Refused(problem).into_response(),
    }
}

/// The token's hash; the token itself goes no further.
fn bearer(headers: &HeaderMap) -> Option<Digest> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    (scheme.eq_ignore_ascii_case("bearer") && token.len() == 64).then(|| Digest::of(token.as_bytes()))
}

fn unauthorized() -> Response {
    let problem = Problem::new(Code::Unauthorized, "this needs the token of a device of the group")
        .with_detail("join with an invite link; if this device had joined, its token was revoked");
    let mut response = Refused(problem).into_response();
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

/// `GET /v1/session`
pub(super) async fn session(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refused> {
    let upgrade: extract::WebSocketUpgrade = upgrade.map_err(|e| {
        Refused(Problem::new(Code::BadRequest, "this is a WebSocket").with_detail(e.body_text()))
    })?;
    let device = caller.device.clone();
    let name = app.handle.ask(move |broker| broker.device_name(&device).map(str::to_owned)).await?;
    let session = Session {
        device: caller.device,
        device_name: name.unwrap_or_default(),
        handle: app.handle.clone(),
        logs: app.logs.clone(),
        packs: app.packs.clone(),
        terms: app.config.terms,
        stopping: app.stopping.clone(),
    };
    let upgrade = upgrade.max_message_size(MESSAGE_MAX).max_frame_size(MESSAGE_MAX);
    let upgrade = upgrade.read_buffer_size(READ_BUFFER);
    Ok(upgrade.on_upgrade(|socket| session.run(socket)))
}
