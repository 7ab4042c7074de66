//! Accepts connections, speaks TLS, and hands requests to the routes. HTTP/1.1 only: that is
//! what WebSockets and every proxy on a campus speak.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use crate::config::Limits;
use crate::http::Peer;
use crate::linger::Lingering;
use crate::strangers::{Stranger, Strangers};

/// For the handshake, and for the head of each request (so an idle connection is closed).
const HANDSHAKE: Duration = Duration::from_secs(10);
/// A stranger whose request is being answered is looked at again after so long.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
const HEAD: Duration = Duration::from_secs(90);
/// After an error of `accept` (no file descriptors left), before the next try.
const BREATH: Duration = Duration::from_millis(100);

/// Accepts until `stopping`; connections are in `tasks`.
pub(crate) async fn run(
    listener: TcpListener,
    tls: ServerConfig,
    router: Router,
    limits: &Limits,
    stopping: CancellationToken,
    tasks: TaskTracker,
) {
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let places = Arc::new(Semaphore::new(limits.connections.max(1)));
    let strangers = Strangers::new(limits.strangers);
    let patience = limits.stranger.as_std();
    loop {
        let accept = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            biased;
            () = stopping.cancelled() => return,
            accepted = accept => accepted,
        };
        let Ok(place) = place else { return };
        match accepted {
            Ok((stream, peer)) => {
                let Some(stranger) = strangers.admit(peer.ip()) else {
                    tracing::debug!(%peer, "cut: too many strangers from there");
                    continue;
                };
                let guest = Guest { peer, stranger, patience };
                let serve = serve(stream, guest, acceptor.clone(), router.clone(), stopping.clone());
                tasks.spawn(async move {
                    serve.await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

/// Who is at the other end of a connection.
struct Guest {
    peer: SocketAddr,
    stranger: Stranger,
    /// How long one that stays a stranger may stay at all.
    patience: Duration,
}

fn serve(
    stream: TcpStream,
    guest: Guest,
    acceptor: TlsAcceptor,
    router: Router,
    stopping: CancellationToken,
) -> impl Future<Output = ()> {
    let Guest { peer, stranger, patience } = guest;
    let answering = Arc::new(AtomicUsize::new(0));
    let (known, busy) = (stranger.clone(), Arc::clone(&answering));
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer.ip()));
        request.extensions_mut().insert(stranger.clone());
        let (router, busy) = (router.clone(), Busy::new(&busy));
        async move {
            let answer = router.oneshot(request.map(|body| Body::new(Lingering::new(body)))).await;
            drop(busy);
            answer
        }
    });
    async move {
        let arrived = tokio::time::Instant::now();
        // Small messages of a session must not wait for each other.
        let _ = stream.set_nodelay(true);
        let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else {
            tracing::debug!(%peer, "no TLS came of it");
            return;
        };
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        tokio::pin!(connection);
        let mut asked = false;
        let mut look = arrived + patience;
        loop {
            tokio::select! {
                biased;
                () = stopping.cancelled(), if !asked => {
                    asked = true;
                    connection.as_mut().graceful_shutdown();
                }
                done = &mut connection => {
                    if let Err(error) = done {
                        tracing::debug!(%peer, %error, "a connection broke off");
                    }
                    return;
                }
                () = tokio::time::sleep_until(look), if !known.is_known() => {
                    if !known.is_known() && answering.load(Ordering::Relaxed) == 0 {
                        tracing::debug!(%peer, "cut: nobody of the group spoke on it");
                        return;
                    }
                    look = tokio::time::Instant::now() + LOOK_AGAIN;
                }
            }
        }
    }
}

/// Counts a request as long as it is answered, also when its answer is given up.
struct Busy(Arc<AtomicUsize>);

impl Busy {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
