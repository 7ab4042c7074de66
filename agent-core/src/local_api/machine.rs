//! This machine: its picture, its owner's wishes, its history.

use std::convert::Infallible;

use axum::Json;
use axum::body::{Body as HttpBody, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use gpunion_protocol::local::{
    Finding, PauseRequest, ReclaimRequest, ShareRequest, ShareStatus, Snapshot, Wiped,
};
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::receipt::{HistoryEntry, Receipt};
use gpunion_protocol::rules::{RulesRequest, RulesStatus};
use jiff::tz::TimeZone;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio_stream::wrappers::WatchStream;

use super::Api;
use super::answer::{Answer, Body, Refusal, events as stream_of};
use super::doctor::{self, Patient};
use crate::provider::call::{OwnerCall, ReclaimAnswers};
use crate::provider::event::Zones;

/// Who waits for a receipt hears so often that the agent is there.
const BEAT: std::time::Duration = std::time::Duration::from_millis(200);

pub(super) async fn snapshot(State(api): State<Api>) -> Json<Arc<Snapshot>> {
    Json(Arc::clone(&api.doors.snapshot.borrow()))
}

pub(super) async fn events(State(api): State<Api>) -> impl IntoResponse {
    stream_of(WatchStream::new(api.doors.snapshot.clone()), api.shutdown)
}

pub(super) async fn share(State(api): State<Api>, Body(request): Body<ShareRequest>) -> Answer<ShareStatus> {
    let (tell, answer) = oneshot::channel();
    ask(&api, OwnerCall::Share(request, tell)).await?;
    Ok(Json(answer.await.map_err(|_| gone())??))
}

pub(super) async fn pause(State(api): State<Api>, Body(request): Body<PauseRequest>) -> Answer<ShareStatus> {
    let (tell, answer) = oneshot::channel();
    ask(&api, OwnerCall::Pause(request, tell)).await?;
    Ok(Json(answer.await.map_err(|_| gone())??))
}

pub(super) async fn wipe(State(api): State<Api>) -> Answer<Wiped> {
    let (tell, answer) = oneshot::channel();
    ask(&api, OwnerCall::Wipe(tell)).await?;
    Ok(Json(answer.await.map_err(|_| gone())??))
}

pub(super) async fn rules(State(api): State<Api>) -> Answer<RulesStatus> {
    set_rules(State(api), Body(RulesRequest::default())).await
}

/// The machine decides without a look at any table: the zones are looked up here.
pub(super) async fn set_rules(
    State(api): State<Api>,
    Body(request): Body<RulesRequest>,
) -> Answer<RulesStatus> {
    let named = request.set.get("zone").and_then(|name| TimeZone::get(name.trim()).ok());
    let zones = Zones { named, here: TimeZone::try_system().ok() };
    let (tell, answer) = oneshot::channel();
    ask(&api, OwnerCall::Rules(request, zones, tell)).await?;
    Ok(Json(answer.await.map_err(|_| gone())??))
}

/// The answer begins as soon as the call is taken, so that whoever asked knows that somebody acts;
/// the receipt follows. (White space before JSON means nothing.)
pub(super) async fn reclaim(
    State(api): State<Api>,
    Body(request): Body<ReclaimRequest>,
) -> Result<Response, Refusal> {
    let (taken, is_taken) = oneshot::channel();
    let (receipt, answer) = oneshot::channel();
    let call = OwnerCall::Reclaim(request, ReclaimAnswers { taken, receipt });
    // Never queued behind others for long: whoever gets no answer reclaims without the agent.
    api.doors
        .owner
        .try_send(call)
        .map_err(|_| Problem::new(Code::Busy, "the provider half does not answer"))?;
    if is_taken.await.is_err() {
        return Err(answer.await.ok().and_then(Result::err).unwrap_or_else(gone).into());
    }
    let body = HttpBody::from_stream(until_receipt(answer));
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// A beat at once and again until the receipt is there: who hears none acts without this agent.
fn until_receipt(
    answer: oneshot::Receiver<Result<Receipt, Problem>>,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let beat = tokio::time::interval(BEAT);
    futures_util::stream::unfold(Some((answer, beat)), |state| async move {
        let (mut answer, mut beat) = state?;
        tokio::select! {
            biased;
            receipt = &mut answer => {
                let receipt = receipt.ok().and_then(Result::ok).and_then(|receipt| serde_json::to_vec(&receipt).ok());
                // Nothing but white space: the agent broke off, and who asked must act alone.
                Some((Ok(Bytes::from(receipt.unwrap_or_default())), None))
            }
            _ = beat.tick() => Some((Ok(Bytes::from_static(b"\n")), Some((answer, beat)))),
        }
    })
}

pub(super) async fn history(State(api): State<Api>) -> Answer<Vec<HistoryEntry>> {
    let (tell, answer) = oneshot::channel();
    ask(&api, OwnerCall::History(tell)).await?;
    Ok(Json(answer.await.map_err(|_| gone())?))
}

pub(super) async fn doctor(State(api): State<Api>) -> Json<Vec<Finding>> {
    let doors = &api.doors;
    let snapshot = Arc::clone(&doors.snapshot.borrow());
    let patient = Patient {
        dirs: doors.dirs.clone(),
        settings: doors.settings.clone(),
        membership: doors.consumer.pairing().current().ok(),
        locked: doors.consumer.pairing().locked().borrow().clone(),
        agent: doctor::Agent::Runs(doors.link.borrow().clone()),
        gpus: match &snapshot.gpus_absent {
            Some(sentence) => Err(sentence.clone()),
            None => Ok(snapshot.gpus.iter().map(|gpu| gpu.sample.clone()).collect()),
        },
    };
    Json(doctor::examine(&patient).await)
}

async fn ask(api: &Api, call: OwnerCall) -> Result<(), Problem> {
    api.doors.owner.send(call).await.map_err(|_| gone())
}

fn gone() -> Problem {
    Problem::new(Code::Internal, "the provider half of the agent has stopped")
        .with_detail("restart the agent; its log says why it stopped")
}
