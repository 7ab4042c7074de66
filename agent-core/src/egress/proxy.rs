//! One request of a guest: judged, then carried. HTTP/1.1: CONNECT for everything that is
//! encrypted, and absolute-form requests for what is not.
//!
//! A redirect is a new request, and judged anew; so is each further request on a connection. The
//! name is looked up once and the connection goes to the very address that was judged. Each
//! connection has its own buffers, and waits for nobody but its own two ends.

use std::any::Any;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use gpunion_protocol::problem::{CONTENT_TYPE, Code, Problem};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::{PathAndQuery, Uri};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};
use tokio_util::sync::CancellationToken;

use super::decide::{Policy, Refusal, judge_addresses};
use super::gate::Gate;
use super::ledger::Ledger;
use super::metered::Metered;
use super::outside::Outside;
use crate::config::clock;

/// A request's head must come within so long, also the next one on a connection.
const HEAD: Duration = Duration::from_secs(60);
/// Bytes that a connection buffers, each way.
const BUFFER: usize = 16 << 10;
const HEAD_MAX: usize = 64 << 10;
/// Beside the standard ones; `Connection` may name more.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

#[derive(Debug)]
pub(super) struct Proxy<O> {
    pub(super) policy: Policy,
    pub(super) outside: O,
    pub(super) gate: Arc<Gate>,
    pub(super) ledger: Mutex<Ledger>,
}

/// What must live as long as a connection does: its place among the many, and its right to be.
#[derive(Debug, Clone)]
struct Pass {
    cut: CancellationToken,
    place: Arc<dyn Any + Send + Sync>,
}

/// Where a request wants to go.
struct Target {
    host: String,
    port: u16,
}

impl<O: Outside> Proxy<O> {
    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves one connection of the guest's until it ends or is cut.
    pub(super) async fn serve<S, P>(self: Arc<Self>, client: S, place: P)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        P: Send + Sync + 'static,
    {
        let pass = Pass { cut: self.gate.pass(), place: Arc::new(place) };
        let (proxy, given) = (Arc::clone(&self), pass.clone());
        let service = service_fn(move |request| {
            let (proxy, pass) = (Arc::clone(&proxy), given.clone());
            async move { Ok::<_, Infallible>(proxy.answer(request, pass).await) }
        });
        let serving = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(HEAD_MAX)
            .half_close(true)
            .serve_connection(TokioIo::new(client), service)
            .with_upgrades();
        tokio::select! {
            ended = serving => if let Err(error) = ended {
                tracing::debug!("a connection of a guest ended: {error}");
            },
            () = pass.cut.cancelled() => {}
        }
    }

    async fn answer(&self, request: Request<Incoming>, pass: Pass) -> Response<Body> {
        let answered = match target(&request) {
            Ok(target) if request.method() == Method::CONNECT => self.tunnel(target, request, pass).await,
            Ok(target) => self.forward(target, request, pass).await,
            Err(problem) => Err(problem),
        };
        answered.unwrap_or_else(refusal)
    }

    async fn tunnel(
        &self,
        target: Target,
        request: Request<Incoming>,
        pass: Pass,
    ) -> Result<Response<Body>, Problem> {
        let mut upstream = self.reach(&target).await?;
        let pulse = upstream.pulse();
        tokio::spawn(async move {
            let _place = pass.place;
            let Ok(client) = hyper::upgrade::on(request).await else { return };
            let mut client = TokioIo::new(client);
            tokio::select! {
                _ = copy_bidirectional_with_sizes(&mut client, &mut upstream, BUFFER, BUFFER) => {}
                () = pulse.stops() => {}
                () = pass.cut.cancelled() => {}
            }
        });
        Ok(Response::new(Empty::new().map_err(never).boxed_unsync()))
    }

    async fn forward(
        &self,
        target: Target,
        mut request: Request<Incoming>,
        pass: Pass,
    ) -> Result<Response<Body>, Problem> {
        let upstream = self.reach(&target).await?;
        let pulse = upstream.pulse();
        let failed = |error: hyper::Error| unreachable(&target, &error.to_string());
        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .max_buf_size(HEAD_MAX)
            .handshake::<_, Incoming>(TokioIo::new(upstream))
            .await
            .map_err(failed)?;
        tokio::spawn(async move {
            let _place = pass.place;
            tokio::select! {
                _ = connection => {}
                () = pulse.stops() => {}
                () = pass.cut.cancelled() => {}
            }
        });
        rewrite(&mut request, &target);
        let mut response = sender.send_request(request).await.map_err(failed)?;
        strip(response.headers_mut());
        Ok(response.map(|body| body.boxed_unsync()))
    }

    /// Judges, connects, and enters it into the books, whatever comes of it.
    async fn reach(&self, target: &Target) -> Result<Metered<O::Stream>, Problem> {
        match self.connect(target).await {
            Ok((name, stream)) => {
                let mut ledger = self.ledger();
                let counts = [ledger.connected(&name, target.port, clock::wall()), ledger.total()];
                Ok(Metered::new(stream, Arc::clone(&self.gate), counts))
            }
            Err(problem) => {
                let shown: String = target.host.chars().filter(char::is_ascii_graphic).take(253).collect();
                self.ledger().refused(&shown, target.port, problem.title.clone(), clock::wall());
                Err(problem)
            }
        }
    }

    async fn connect(&self, target: &Target) -> Result<(String, O::Stream), Problem> {
        if !self.gate.is_open() {
            return Err(forbidden(&Refusal::LeaseOver));
        }
        let name = self.policy.judge_name(&target.host, target.port).map_err(|r| forbidden(&r))?;
        let found = self.outside.look_up(&name).await.map_err(|e| unreachable(target, &e.to_string()))?;
        let own = self.outside.own().map_err(|e| unreachable(target, &e.to_string()))?;
        let judged = judge_addresses(&name, &found, &own).map_err(|r| forbidden(&r))?;
        let mut why = String::new();
        for address in judged {
            match self.outside.connect(SocketAddr::new(address, target.port)).await {
                Ok(stream) => return Ok((name, stream)),
                Err(error) => why = error.to_string(),
            }
        }
        Err(unreachable(target, &why))
    }
}

fn target(request: &Request<Incoming>) -> Result<Target, Problem> {
    let bad = |what: &str| Problem::new(Code::BadRequest, what);
    let uri = request.uri();
    let host = uri.host().map(str::to_owned);
    if request.method() == Method::CONNECT {
        let port = uri.port_u16().ok_or_else(|| bad("CONNECT must name a host and a port"))?;
        let host = host.ok_or_else(|| bad("CONNECT must name a host and a port"))?;
        return Ok(Target { host, port });
    }
    match (uri.scheme_str(), host) {
        (Some("http"), Some(host)) => Ok(Target { host, port: uri.port_u16().unwrap_or(80) }),
        (Some(_), Some(_)) => Err(bad("this proxy carries http and, by CONNECT, what is encrypted")),
        (_, _) => Err(bad("this is a proxy: the request must name its host (GET http://host/)")),
    }
}

/// From what a proxy is sent to what a server is sent.
fn rewrite(request: &mut Request<Incoming>, target: &Target) {
    strip(request.headers_mut());
    let host = match target.port {
        80 => target.host.clone(),
        port => format!("{}:{port}", target.host),
    };
    if let Ok(host) = HeaderValue::from_str(&host) {
        request.headers_mut().insert(header::HOST, host);
    }
    let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(path);
    *request.version_mut() = Version::HTTP_11;
}

fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

fn forbidden(refusal: &Refusal) -> Problem {
    Problem::new(Code::Forbidden, refusal.to_string())
}

fn unreachable(target: &Target, why: &str) -> Problem {
    let mut problem =
        Problem::new(Code::Unknown, format!("{}:{} was not reached: {why}", target.host, target.port));
    problem.status = 502;
    problem
}

/// The sentence is the reason in the first line too: clients show that, and seldom the body.
fn refusal(problem: Problem) -> Response<Body> {
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    let mut response = Response::new(Full::new(Bytes::from(body)).map_err(never).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_GATEWAY);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    let plain = |c: &char| c.is_ascii_graphic() || *c == ' ';
    let sentence: String = problem.title.chars().filter(plain).take(400).collect();
    if let Ok(reason) = ReasonPhrase::try_from(sentence.into_bytes()) {
        response.extensions_mut().insert(reason);
    }
    response
}

fn never(impossible: Infallible) -> hyper::Error {
    match impossible {}
}
