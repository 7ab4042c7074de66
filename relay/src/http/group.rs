//! Joining, inviting, members and devices.

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use gpunion_protocol::http::{DeviceView, Join, Joined, MadeInvite, Me, MemberView, NewInvite};
use gpunion_protocol::ids::{DeviceId, MemberId};
use gpunion_protocol::problem::{Code, Problem};

use super::{App, Json, Peer, Refused};
use crate::broker::{By, Caller, Digest, Event, Reply};
use crate::{clock, invites, random};

/// `POST /v1/join`. Ids and token are made here; the broker decides whether they count.
pub(super) async fn join(
    State(app): State<App>,
    Extension(Peer(address)): Extension<Peer>,
    Json(join): Json<Join>,
) -> Result<Json<Joined>, Refused> {
    let now = clock::now();
    if !app.joins.take(address, now.boot) {
        let problem = Problem::new(Code::Busy, "too many tries to join from this address");
        return Err(problem.with_detail("wait a few seconds").into());
    }
    let wall = now.wall.0.unsigned_abs();
    let token = hex::encode(random::bytes::<32>()?);
    let (member, device) = (MemberId::new(wall, random::bytes()?), DeviceId::new(wall, random::bytes()?));
    let redeem = |request| Event::Redeem {
        request,
        code: Digest::of(join.code.trim().to_ascii_lowercase().as_bytes()),
        member_name: join.member_name,
        device_name: join.device_name,
        public_key: join.public_key,
        member,
        device,
        token: Digest::of(token.as_bytes()),
    };
    match app.handle.call(redeem).await? {
        Reply::Joined { member, member_name, role, device } => {
            tracing::info!(%member, %device, "a device joined");
            let group = app.config.group.clone();
            Ok(Json(Joined { group, member, member_name, role, device, token }))
        }
        Reply::Invited { .. } | Reply::Submitted(_) | Reply::State(_) | Reply::Done => {
            Err(Refused::confused())
        }
    }
}

/// `GET /v1/me`
pub(super) async fn me(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Me>, Refused> {
    let me = app.handle.ask(move |broker| broker.me(&caller.device)).await?;
    me.map(Json).ok_or_else(|| Refused::not_found("device"))
}

/// `POST /v1/invites`. Whether the caller may is the broker's to say.
pub(super) async fn invite(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Json(wanted): Json<NewInvite>,
) -> Result<Json<MadeInvite>, Refused> {
    let by = By::Member(caller.member);
    Ok(Json(invites::make(&app.handle, &app.link, by, wanted).await?))
}

/// `GET /v1/members`
pub(super) async fn members(State(app): State<App>) -> Result<Json<Vec<MemberView>>, Refused> {
    Ok(Json(app.handle.ask(|broker| broker.members()).await?))
}

/// `GET /v1/devices`
pub(super) async fn devices(State(app): State<App>) -> Result<Json<Vec<DeviceView>>, Refused> {
    Ok(Json(app.handle.ask(|broker| broker.devices()).await?))
}

/// `DELETE /v1/members/{id}`
pub(super) async fn remove_member(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<StatusCode, Refused> {
    let member: MemberId = id.parse().map_err(|_| Refused::not_found("member"))?;
    tracing::info!(%member, by = %caller.member, "removing a member");
    let by = By::Member(caller.member);
    app.handle.call(|request| Event::RemoveMember { request, by, member }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `DELETE /v1/devices/{id}`: its token is refused from here on, and its session ends.
pub(super) async fn revoke_device(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<StatusCode, Refused> {
    let device: DeviceId = id.parse().map_err(|_| Refused::not_found("device"))?;
    tracing::info!(%device, by = %caller.member, "revoking a device");
    let by = By::Member(caller.member);
    app.handle.call(|request| Event::RevokeDevice { request, by, device }).await?;
    Ok(StatusCode::NO_CONTENT)
}
