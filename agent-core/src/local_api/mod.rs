//! The local API: HTTP and SSE over a unix socket. The only way in which a face, the command line
//! or a window, speaks with the agent.
//!
//! It hands questions on and answers back; no rule lives here but who may ask what. Every error
//! is a problem, and those of the relay pass through unchanged.

mod answer;
pub mod doctor;
mod group;
mod jobs;
mod machine;
mod peer;
pub mod socket;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use gpunion_protocol::local::Snapshot;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::config::{Dirs, Settings};
use crate::consumer::Consumer;
use crate::provider::call::OwnerCall;
use crate::relay_link::LinkStatus;

pub use socket::bind;

/// Open answers get so long to end when the agent stops.
const FAREWELL: Duration = Duration::from_secs(2);

/// Whom the API asks.
#[derive(Clone)]
pub struct Doors {
    pub dirs: Dirs,
    pub settings: Settings,
    /// One whole picture of the machine; replaced on change.
    pub snapshot: watch::Receiver<Arc<Snapshot>>,
    /// The provider half.
    pub owner: mpsc::Sender<OwnerCall>,
    pub consumer: Consumer,
    pub link: watch::Receiver<LinkStatus>,
}

impl fmt::Debug for Doors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doors").field("dirs", &self.dirs).finish_non_exhaustive()
    }
}

#[derive(Clone)]
struct Api {
    doors: Doors,
    shutdown: CancellationToken,
}

/// Serves until `shutdown`.
pub async fn serve(listener: UnixListener, doors: Doors, shutdown: CancellationToken) -> io::Result<()> {
    let api = Api { doors, shutdown: shutdown.clone() };
    // Whoever may open the socket may look and reclaim.
    let everybody = Router::new()
        .route("/v1/snapshot", get(machine::snapshot))
        .route("/v1/events", get(machine::events))
        .route("/v1/history", get(machine::history))
        .route("/v1/rules", get(machine::rules))
        .route("/v1/reclaim", post(machine::reclaim));
    let owner = Router::new()
        .route("/v1/share", post(machine::share))
        .route("/v1/pause", post(machine::pause))
        .route("/v1/wipe", post(machine::wipe))
        .route("/v1/rules", post(machine::set_rules))
        .route("/v1/doctor", get(machine::doctor))
        .route("/v1/join", post(group::join))
        .route("/v1/leave-group", post(group::leave))
        .route("/v1/group/members", get(group::members))
        .route("/v1/group/invites", post(group::invite))
        .route("/v1/preview", post(jobs::preview))
        .route("/v1/jobs", get(jobs::list).post(jobs::submit))
        .route("/v1/jobs/{id}", get(jobs::show))
        .route("/v1/jobs/{id}/cancel", post(jobs::cancel))
        .route("/v1/jobs/{id}/log", get(jobs::log))
        .route("/v1/jobs/{id}/fetch", post(jobs::fetch))
        .layer(axum::middleware::from_fn(peer::owner_only));
    let router = everybody.merge(owner).fallback(answer::not_found).with_state(api);
    let service = router.into_make_service_with_connect_info::<peer::Peer>();
    let serving = axum::serve(listener, service).with_graceful_shutdown(shutdown.clone().cancelled_owned());
    tokio::select! {
        done = serving.into_future() => done,
        () = async { shutdown.cancelled().await; tokio::time::sleep(FAREWELL).await } => Ok(()),
    }
}
