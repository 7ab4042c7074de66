//! The group this machine belongs to.

use axum::Json;
use axum::extract::State;
use gpunion_protocol::http::{MadeInvite, MemberView, NewInvite};
use gpunion_protocol::local::{JoinRequest, Left};

use super::Api;
use super::answer::{Answer, Body};
use crate::config::GroupFile;

pub(super) async fn join(State(api): State<Api>, Body(request): Body<JoinRequest>) -> Answer<GroupFile> {
    Ok(Json(api.doors.consumer.pairing().join(request).await?))
}

pub(super) async fn leave(State(api): State<Api>) -> Answer<Left> {
    Ok(Json(Left { trouble: api.doors.consumer.pairing().leave().await? }))
}

pub(super) async fn members(State(api): State<Api>) -> Answer<Vec<MemberView>> {
    Ok(Json(api.doors.consumer.pairing().current()?.client.members().await?))
}

pub(super) async fn invite(State(api): State<Api>, Body(request): Body<NewInvite>) -> Answer<MadeInvite> {
    Ok(Json(api.doors.consumer.pairing().current()?.client.invite(&request).await?))
}
