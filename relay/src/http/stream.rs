//! Streams of events, so that they pass any proxy: said to be not for gathering, and never silent
//! for as long as a proxy keeps a silent connection (F103).

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;

/// Proxies are set to as little as 10 s.
const STILL_HERE: Duration = Duration::from_secs(5);
/// nginx and its kin hand on what comes as it comes.
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

pub(super) fn answer(events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static) -> Response {
    let keep_alive = KeepAlive::new().interval(STILL_HERE);
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    response.headers_mut().insert(BUFFERING, HeaderValue::from_static("no"));
    response
}
