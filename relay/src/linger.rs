//! Reads on for a while when a request is answered before its body was read.
//!
//! Else the connection is closed over unread bytes, and TCP answers those with a reset that
//! overtakes the answer: whoever sends a body that is refused would be told of a broken pipe and
//! not of the reason (RFC 9112, section 9.6; F98). Bounded in bytes and in time, so that nobody
//! holds a connection by a body without end.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

/// More than the largest pack.
const BYTES_MAX: u64 = 16 << 20;
const TIME_MAX: Duration = Duration::from_secs(10);

/// The body of a request; what is left of it when it is dropped is read and thrown away.
#[derive(Debug)]
pub(crate) struct Lingering(Option<Incoming>);

impl Lingering {
    pub(crate) fn new(body: Incoming) -> Self {
        Self(Some(body))
    }
}

impl Body for Lingering {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.0 {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let Some(body) = self.0.take() else { return };
        // One that says it is larger would be cut in any case.
        if body.is_end_stream() || body.size_hint().lower() > BYTES_MAX {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                // Too much or too late: then the connection ends as it would have at once.
                let _ = tokio::time::timeout(TIME_MAX, discard(body)).await;
            });
        }
    }
}

async fn discard(mut body: Incoming) {
    let mut read = 0;
    while let Some(Ok(frame)) = http_body_util::BodyExt::frame(&mut body).await {
        read += frame.data_ref().map_or(0, |bytes| bytes.len() as u64);
        if read > BYTES_MAX {
            return;
        }
    }
}
