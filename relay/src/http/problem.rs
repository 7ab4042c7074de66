//! Every error as an RFC 9457 problem, those of the framework too.

use std::time::Duration;

use axum::extract::rejection::JsonRejection;
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use gpunion_protocol::problem::{self, Code, Problem};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::JSON_MAX;

/// A JSON body that takes longer is given up.
const BODY: Duration = Duration::from_secs(30);

/// A problem on its way out.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) Problem);

impl Refused {
    pub(crate) fn new(code: Code, title: impl Into<String>) -> Self {
        Self(Problem::new(code, title))
    }

    pub(crate) fn io(doing: &str, error: &std::io::Error) -> Self {
        if crate::error::is_full(error) {
            let problem = Problem::new(Code::DiskFull, "the relay's disk is full");
            return Self(problem.with_detail("ask its operator to make room, then try again"));
        }
        tracing::error!(%error, doing, "a request failed");
        Self::new(Code::Internal, format!("the relay could not {doing}"))
    }

    pub(crate) fn not_found(what: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no such {what}, or it is not yours"))
    }

    /// The broker answered something that does not belong to what was asked.
    pub(crate) fn confused() -> Self {
        Self::new(Code::Internal, "the broker gave another answer than was asked for")
    }
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(&self.0)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(problem::CONTENT_TYPE));
        if self.0.code == Code::Busy {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// JSON in and out; what can't be read is a problem that says where.
pub(crate) struct Json<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        let told = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
        if told.is_some_and(|bytes| bytes > JSON_MAX) {
            // Not waited for: it may never come.
            let problem = Problem::new(Code::TooLarge, "the body can't be read");
            return Err(problem.with_detail(format!("it has more than {JSON_MAX} bytes")).into());
        }
        let read = axum::Json::<T>::from_request(request, state);
        match tokio::time::timeout(BODY, read).await {
            Ok(Ok(axum::Json(value))) => Ok(Self(value)),
            Ok(Err(rejection)) => Err(refused(&rejection)),
            Err(_) => Err(Refused::new(Code::BadRequest, "the body did not come within 30 s")),
        }
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

fn refused(rejection: &JsonRejection) -> Refused {
    let code = match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Code::TooLarge,
        _ => Code::BadRequest,
    };
    Refused(Problem::new(code, "the body can't be read").with_detail(rejection.body_text()))
}

pub(super) async fn no_route(uri: Uri) -> Refused {
    Refused::new(Code::NotFound, format!("this relay has no {}", uri.path()))
}

pub(super) async fn wrong_method(method: Method, uri: Uri) -> Refused {
    let title = format!("{method} is not possible on {}", uri.path());
    Refused(Problem { status: 405, ..Problem::new(Code::BadRequest, title) })
}
