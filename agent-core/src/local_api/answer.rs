//! Answers in their two forms: JSON, or a stream of events. Every refusal is a problem.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt as _};
use gpunion_protocol::problem::{self, Code, Problem};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

pub(super) struct Refusal(pub(super) Problem);

pub(super) type Answer<T> = Result<Json<T>, Refusal>;

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, [(header::CONTENT_TYPE, problem::CONTENT_TYPE)], Json(self.0).into_response().into_body())
            .into_response()
    }
}

pub(super) async fn not_found(request: Request) -> Refusal {
    Refusal(Problem::new(Code::NotFound, format!("there is nothing at {}", request.uri().path())))
}

/// A JSON body; one that makes no sense is a problem like any other. An empty one is `{}`.
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let bytes = Bytes::from_request(request, state).await.map_err(|error| {
            Problem::new(Code::TooLarge, "the request can't be read").with_detail(error.to_string())
        })?;
        let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        // The parser's words may quote a value, and a value may be a secret: only the place is told.
        let value = serde_json::from_slice(bytes).map_err(|error| {
            Problem::new(Code::BadRequest, "the request is not understood").with_detail(format!(
                "line {}, column {}",
                error.line(),
                error.column()
            ))
        })?;
        Ok(Self(value))
    }
}

/// A stream of JSON events; ends with the agent.
pub(super) fn events<T: Serialize + Send + 'static>(
    stream: impl Stream<Item = T> + Send + 'static,
    shutdown: CancellationToken,
) -> Sse<impl Stream<Item = Result<Event, Infallible>> + Send + 'static> {
    let stream = stream
        .take_until(shutdown.cancelled_owned())
        .filter_map(|value| std::future::ready(Event::default().json_data(&value).ok().map(Ok)));
    Sse::new(stream).keep_alive(KeepAlive::new().interval(Duration::from_secs(15)))
}
