//! The relay's HTTP interface. Every route stands in `ROUTES` with who may call it; docs/protocol.md
//! describes bodies and codes.
//!
//! Nothing but `/healthz` and `/v1/join` answers without a token, not even "not found". Every
//! error is an RFC 9457 problem.

mod auth;
mod events;
mod group;
mod health;
mod jobs;
mod log;
mod objects;
mod problem;
mod range;
mod rates;
mod stream;

pub(crate) use auth::Peer;
pub(crate) use problem::{Json, Refused};
pub(crate) use rates::Rates;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodRouter, delete, get, post, put};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::driver::{Counts, Handle};
use crate::feed::Feed;
use crate::invites::Link;
use crate::logs::Logs;
use crate::packs::Packs;

/// A JSON body is at most so many bytes; a submit with its wrapped keys is the largest.
const JSON_MAX: usize = 4 << 20;

/// What the routes work with. Cheap to clone.
#[derive(Clone)]
pub(crate) struct App(Arc<Parts>);

pub(crate) struct Parts {
    pub(crate) handle: Handle,
    pub(crate) feed: Feed,
    pub(crate) logs: Logs,
    pub(crate) packs: Arc<Packs>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) link: Link,
    pub(crate) config: Config,
    pub(crate) uploads: Semaphore,
    pub(crate) joins: Rates,
    /// The relay is stopping: streams end.
    pub(crate) stopping: CancellationToken,
}

impl App {
    pub(crate) fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }
}

impl std::ops::Deref for App {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.0
    }
}

/// One route: its path, its methods (for whoever lists them), and what answers.
struct Route {
    path: &'static str,
    methods: &'static [&'static str],
    handler: fn() -> MethodRouter<App>,
}

const fn route(
    path: &'static str,
    methods: &'static [&'static str],
    handler: fn() -> MethodRouter<App>,
) -> Route {
    Route { path, methods, handler }
}

/// These answer without a token.
const OPEN: &[Route] = &[
    route("/healthz", &["GET"], || get(health::healthz)),
    route("/v1/join", &["POST"], || post(group::join)),
];

/// These need one.
const CLOSED: &[Route] = &[
    route("/metrics", &["GET"], || get(health::metrics)),
    route("/v1/me", &["GET"], || get(group::me)),
    route("/v1/invites", &["POST"], || post(group::invite)),
    route("/v1/members", &["GET"], || get(group::members)),
    route("/v1/members/{id}", &["DELETE"], || delete(group::remove_member)),
    route("/v1/devices", &["GET"], || get(group::devices)),
    route("/v1/devices/{id}", &["DELETE"], || delete(group::revoke_device)),
    route("/v1/jobs", &["GET", "POST"], || get(jobs::list).post(jobs::submit)),
    route("/v1/jobs/{id}", &["GET"], || get(jobs::show)),
    route("/v1/jobs/{id}/cancel", &["POST"], || post(jobs::cancel)),
    route("/v1/jobs/{id}/log", &["GET"], || get(log::follow)),
    route("/v1/events", &["GET"], || get(events::follow)),
    route("/v1/session", &["GET"], || get(auth::session)),
    route("/v1/packs/have", &["POST"], || post(objects::have_packs)),
    route("/v1/packs/{id}", &["GET", "HEAD", "PUT"], || {
        get(objects::get_pack).merge(put(objects::put_pack).layer(DefaultBodyLimit::disable()))
    }),
    route("/v1/snapshots/have", &["POST"], || post(objects::have_snapshots)),
    route("/v1/snapshots/{id}", &["GET", "HEAD", "PUT"], || {
        get(objects::get_snapshot).merge(put(objects::put_snapshot).layer(DefaultBodyLimit::disable()))
    }),
];

/// Method, path and whether it answers without a token, of every route there is.
pub fn routes() -> impl Iterator<Item = (&'static str, &'static str, bool)> {
    let list = |routes: &'static [Route], open: bool| {
        routes.iter().flat_map(move |r| r.methods.iter().map(move |m| (*m, r.path, open)))
    };
    list(OPEN, true).chain(list(CLOSED, false))
}

pub(crate) fn router(app: App) -> Router {
    let mut open = Router::new();
    for route in OPEN {
        open = open.route(route.path, (route.handler)());
    }
    let mut closed = Router::new();
    for route in CLOSED {
        closed = closed.route(route.path, (route.handler)());
    }
    let open = open.method_not_allowed_fallback(problem::wrong_method);
    let closed = closed
        .fallback(problem::no_route)
        .method_not_allowed_fallback(problem::wrong_method)
        .layer(from_fn_with_state(app.clone(), auth::check));
    closed.merge(open).layer(DefaultBodyLimit::max(JSON_MAX)).with_state(app)
}
