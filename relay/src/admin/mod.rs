//! The operator's door: a unix socket in the state folder for whoever can read that folder.
//!
//! It needs no token: who can open the socket can read the database. It does what must work
//! before anybody has joined (an invite) and what concerns the files (a backup).

pub mod client;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path as Named, State};
use axum::routing::{delete, get, post};
use gpunion_protocol::http::{MadeInvite, MemberView, NewInvite};
use gpunion_protocol::ids::{DeviceId, MemberId};
use gpunion_protocol::problem::{Code, Problem};
use serde::{Deserialize, Serialize};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use crate::broker::{By, Event};
use crate::driver::Handle;
use crate::error::Error;
use crate::http::{Json, Refused};
use crate::invites::{self, Link};
use crate::packs::Packs;
use crate::store::Writer;

/// The socket's name in the state folder.
pub const SOCKET: &str = "relay.sock";

/// `POST /backup`
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Backup {
    /// A file that does not exist yet, on the relay's machine; an absolute path.
    pub path: PathBuf,
}

/// What a backup of the database still needs beside it, in this order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BackedUp {
    pub path: PathBuf,
    /// Copy these after the database, within the grace of a sweep: until then all that it names stays.
    pub copy_too: Vec<PathBuf>,
}

#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) handle: Handle,
    pub(crate) link: Link,
    pub(crate) writer: Writer,
    pub(crate) packs: Arc<Packs>,
    pub(crate) state_dir: PathBuf,
}

/// Binds the socket; the lock on the folder is held, so one that is there is nobody's.
pub(crate) fn bind(state_dir: &Path) -> Result<UnixListener, Error> {
    let path = state_dir.join(SOCKET);
    match std::fs::remove_file(&path) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(Error::io("remove the old socket", path)(e)),
    }
    let listener = UnixListener::bind(&path).map_err(Error::io("listen on", &path))?;
    let private = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, private).map_err(Error::io("protect", &path))?;
    Ok(listener)
}

pub(crate) async fn run(listener: UnixListener, door: Door, stopping: CancellationToken) {
    let routes = Router::new()
        .route("/invites", post(invite))
        .route("/members", get(members))
        .route("/members/{id}", delete(remove_member))
        .route("/devices/{id}", delete(revoke_device))
        .route("/backup", post(backup))
        .fallback(|| async { Refused::new(Code::NotFound, "the operator's door has no such route") })
        .with_state(door);
    let serve = axum::serve(listener, routes).with_graceful_shutdown(stopping.cancelled_owned());
    if let Err(error) = serve.await {
        tracing::error!(%error, "the operator's door is closed");
    }
}

async fn invite(
    State(door): State<Door>,
    Json(wanted): Json<NewInvite>,
) -> Result<Json<MadeInvite>, Refused> {
    Ok(Json(invites::make(&door.handle, &door.link, By::Relay, wanted).await?))
}

async fn members(State(door): State<Door>) -> Result<Json<Vec<MemberView>>, Refused> {
    Ok(Json(door.handle.ask(|broker| broker.members()).await?))
}

async fn remove_member(State(door): State<Door>, Named(id): Named<String>) -> Result<Json<()>, Refused> {
    let member: MemberId = id.parse().map_err(|_| Refused::not_found("member"))?;
    tracing::info!(%member, "removing a member, by this machine's operator");
    door.handle.call(|request| Event::RemoveMember { request, by: By::Relay, member }).await?;
    Ok(Json(()))
}

async fn revoke_device(State(door): State<Door>, Named(id): Named<String>) -> Result<Json<()>, Refused> {
    let device: DeviceId = id.parse().map_err(|_| Refused::not_found("device"))?;
    tracing::info!(%device, "revoking a device, by this machine's operator");
    door.handle.call(|request| Event::RevokeDevice { request, by: By::Relay, device }).await?;
    Ok(Json(()))
}

async fn backup(State(door): State<Door>, Json(wanted): Json<Backup>) -> Result<Json<BackedUp>, Refused> {
    if !wanted.path.is_absolute() {
        return Err(Refused::new(Code::BadRequest, "the path of a backup must be absolute"));
    }
    // Before and after: the copy is of an instant in between.
    keep_for_copy(&door).await?;
    let backed_up = door.writer.backup(wanted.path.clone()).await;
    keep_for_copy(&door).await?;
    if let Err(error) = backed_up {
        let code = if error.is_disk_full() { Code::DiskFull } else { Code::Conflict };
        let problem = Problem::new(code, "the backup was not made");
        return Err(problem.with_detail(error.to_string()).into());
    }
    let names = ["key.pem", crate::config::FILE_NAME, "snapshots", "packs", "logs"];
    // Of these only the settings may be wanting.
    let copy_too = names.iter().map(|name| door.state_dir.join(name)).filter(|path| path.exists()).collect();
    Ok(Json(BackedUp { path: wanted.path, copy_too }))
}

async fn keep_for_copy(door: &Door) -> Result<(), Refused> {
    door.packs.copied(door.handle.ask(|broker| broker.roots().needed).await?);
    Ok(())
}
