//! Who is at the other end of the socket, by the kernel's word.

use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use axum::serve::IncomingStream;
use gpunion_protocol::problem::{Code, Problem};
use tokio::net::UnixListener;

use super::answer::Refusal;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    /// Absent when the kernel did not tell.
    uid: Option<u32>,
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Self { uid: stream.io().peer_cred().ok().map(|cred| cred.uid()) }
    }
}

impl Peer {
    /// The agent's own user; root may do all anyway.
    fn is_owner(self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        self.uid.is_some_and(|uid| uid == own || uid == 0)
    }
}

/// The owner alone changes anything; the socket's group may look and reclaim.
pub(super) async fn owner_only(
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if peer.is_owner() {
        return next.run(request).await;
    }
    let problem = Problem::new(Code::Forbidden, "only the owner of this agent may do that")
        .with_detail("the members of its socket's group may look and reclaim; ask whoever runs the agent");
    Refusal(problem).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_user_is_not_the_owner() {
        let own = rustix::process::geteuid().as_raw();
        assert!(Peer { uid: Some(own) }.is_owner());
        assert!(!Peer { uid: Some(own + 1) }.is_owner());
        assert!(!Peer { uid: None }.is_owner());
    }
}
