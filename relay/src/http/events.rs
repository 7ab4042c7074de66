//! `GET /v1/events`: what happens, as it happens; `Last-Event-ID` resumes.

use std::convert::Infallible;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event as Sse;
use futures_util::{StreamExt as _, stream};

use super::auth::Pass;
use super::{App, stream as sse};
use crate::broker::Caller;
use crate::feed::Reader;

pub(super) async fn follow(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Extension(pass): Extension<Pass>,
    headers: HeaderMap,
) -> Response {
    let after = headers.get("last-event-id").and_then(|value| value.to_str().ok());
    let reader = app.feed.reader(&caller, after);
    let events = stream::unfold(reader, step).flat_map(stream::iter);
    let events = events.map(Ok::<_, Infallible>).take_until(pass.ended());
    sse::answer(events)
}

async fn step(mut reader: Reader) -> Option<(Vec<Sse>, Reader)> {
    loop {
        let events = reader.read();
        if !events.is_empty() {
            let form = |(id, event): &(String, _)| Sse::default().id(id).json_data(event).ok();
            return Some((events.iter().filter_map(form).collect(), reader));
        }
        reader.news().await;
    }
}
