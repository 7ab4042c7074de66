//! The relay's HTTP interface, as calls. Addresses are tried in order, the last good one first.
//!
//! No call has a total time-out: a slow line is no failure (F97). Each fails when nothing moved
//! for `STALL`. What the relay answers as a problem is handed on unchanged.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use gpunion_protocol::http::{
    DeviceView, IDEMPOTENCY_KEY, Join, Joined, MadeInvite, Me, MemberView, NewInvite, Submit, Submitted,
};
use gpunion_protocol::ids::{DeviceId, JobId};
use gpunion_protocol::job::JobView;
use gpunion_protocol::problem::{Code, Problem};
use reqwest::{Method, Response, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use zeroize::Zeroizing;

use super::backoff::{Backoff, jitter};
use super::parts::PartSize;
use super::tls;

/// A call in which nothing moved for so long is given up.
pub const STALL: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(10);
/// No answer in JSON is longer.
const JSON_MAX: usize = 32 << 20;
/// Uploads go out in slices, so that progress can be seen.
const SLICE: usize = 64 << 10;
/// How often a call that may be repeated is made before its trouble is told.
const TRIES: u32 = 5;

#[derive(Clone)]
pub struct RelayClient {
    inner: Arc<Inner>,
}

struct Inner {
    http: reqwest::Client,
    tls: Arc<rustls::ClientConfig>,
    addresses: Vec<String>,
    /// Where the last call that connected went.
    good: AtomicUsize,
    token: Option<Zeroizing<String>>,
    part_size: PartSize,
    /// Where the relay says that it is to be reached.
    announced: watch::Sender<Vec<String>>,
}

impl fmt::Debug for RelayClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayClient").field("addresses", &self.inner.addresses).finish_non_exhaustive()
    }
}

impl RelayClient {
    pub fn new(
        addresses: Vec<String>,
        pin: Option<[u8; 32]>,
        token: Option<Zeroizing<String>>,
    ) -> anyhow::Result<Self> {
        anyhow::ensure!(!addresses.is_empty(), "no address of the relay is known");
        let tls = tls::client_config(pin)?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls.clone())
            .connect_timeout(CONNECT)
            .tcp_keepalive(Duration::from_secs(20))
            .pool_idle_timeout(Duration::from_secs(60))
            // The relay is on the campus network, as is the session, which knows no proxy either.
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        let inner = Inner {
            http,
            tls: Arc::new(tls),
            addresses,
            good: AtomicUsize::new(0),
            token,
            part_size: PartSize::default(),
            announced: watch::Sender::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub async fn join(&self, join: &Join) -> Result<Joined, Problem> {
        let body = serde_json::to_vec(join).map_err(|error| no_json(&error))?;
        let headers = [(header::CONTENT_TYPE.as_str(), "application/json".to_owned())];
        let response =
            self.first(Method::POST, "/v1/join", &headers, Some(body.into()), Again::Unreached).await?;
        of_json(&read_body(response, JSON_MAX).await.map_err(unanswered)?)
    }

    pub async fn me(&self) -> Result<Me, Problem> {
        self.get("/v1/me").await
    }

    /// Whether a relay answers there, whoever asks; its wall clock in milliseconds, when it tells.
    pub async fn answers(&self) -> Result<Option<i64>, Problem> {
        Ok(date_of(&self.send(Method::GET, "/healthz", &[], None).await?))
    }

    /// Asks who this device is; answers the relay's wall clock in milliseconds, when it tells.
    pub async fn seen(&self) -> Result<Option<i64>, Problem> {
        let response = self.send(Method::GET, "/v1/me", &[], None).await?;
        Ok(date_of(&response))
    }

    pub async fn devices(&self) -> Result<Vec<DeviceView>, Problem> {
        self.get("/v1/devices").await
    }

    pub async fn members(&self) -> Result<Vec<MemberView>, Problem> {
        self.get("/v1/members").await
    }

    pub async fn invite(&self, invite: &NewInvite) -> Result<MadeInvite, Problem> {
        self.json(Method::POST, "/v1/invites", &[], Some(invite)).await
    }

    /// Revokes a device's token.
    pub async fn revoke(&self, device: &DeviceId) -> Result<(), Problem> {
        self.done(Method::DELETE, &format!("/v1/devices/{device}")).await
    }

    pub async fn job(&self, job: &JobId) -> Result<JobView, Problem> {
        self.get(&format!("/v1/jobs/{job}")).await
    }

    pub async fn cancel(&self, job: &JobId) -> Result<(), Problem> {
        self.done(Method::POST, &format!("/v1/jobs/{job}/cancel")).await
    }

    /// Safe to repeat: the key is the job's own id.
    pub async fn submit(&self, submit: &Submit) -> Result<Submitted, Problem> {
        let headers = [(IDEMPOTENCY_KEY, submit.job.to_string())];
        self.repeat(|| self.json(Method::POST, "/v1/jobs", &headers, Some(submit))).await
    }

    /// A GET of JSON, repeated while the relay can't be reached.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Problem> {
        self.repeat(|| self.json(Method::GET, path, &[], None::<&()>)).await
    }

    async fn done(&self, method: Method, path: &str) -> Result<(), Problem> {
        let response = self.send(method, path, &[], None).await?;
        read_body(response, JSON_MAX).await.map(drop)
    }

    pub(super) async fn json<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, String)],
        body: Option<&B>,
    ) -> Result<T, Problem> {
        let body = body.map(serde_json::to_vec).transpose().map_err(|error| no_json(&error))?;
        let mut headers = headers.to_vec();
        if body.is_some() {
            headers.push((header::CONTENT_TYPE.as_str(), "application/json".to_owned()));
        }
        let response = self.send(method, path, &headers, body.map(Bytes::from)).await?;
        of_json(&read_body(response, JSON_MAX).await?)
    }

    /// Makes a call again while the relay is away or busy, a few times.
    pub(super) async fn repeat<T, F>(&self, call: impl Fn() -> F) -> Result<T, Problem>
    where
        F: Future<Output = Result<T, Problem>>,
    {
        let mut backoff = Backoff::default();
        let mut left = TRIES;
        loop {
            match call().await {
                Err(problem) if left > 1 && matches!(problem.code, Code::RelayAway | Code::Busy) => {
                    left -= 1;
                    tokio::time::sleep(backoff.after_failure(jitter())).await;
                }
                other => return other,
            }
        }
    }

    /// Sends to the first address that can be reached; an answer that is a problem is an error.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, String)],
        body: Option<Bytes>,
    ) -> Result<Response, Problem> {
        self.first(method, path, headers, body, Again::Always).await
    }

    async fn first(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, String)],
        body: Option<Bytes>,
        again: Again,
    ) -> Result<Response, Problem> {
        let inner = &*self.inner;
        let start = inner.good.load(Ordering::Relaxed);
        let mut away = None;
        for turn in 0..inner.addresses.len() {
            let at = (start + turn) % inner.addresses.len();
            let Some(address) = inner.addresses.get(at) else { continue };
            match self.send_to(address, method.clone(), path, headers, body.clone()).await {
                Ok(response) => {
                    inner.good.store(at, Ordering::Relaxed);
                    return response_or_problem(response).await;
                }
                Err(unsent) if unsent.reached && again == Again::Unreached => {
                    return Err(unanswered(unsent.problem));
                }
                Err(unsent) => away = Some(unsent.problem),
            }
        }
        Err(away.unwrap_or_else(|| Problem::new(Code::RelayAway, "no address of the relay is known")))
    }

    async fn send_to(
        &self,
        address: &str,
        method: Method,
        path: &str,
        headers: &[(&'static str, String)],
        body: Option<Bytes>,
    ) -> Result<Response, Unsent> {
        let mut request = self.inner.http.request(method, format!("https://{address}{path}"));
        if let Some(token) = &self.inner.token {
            request = request.bearer_auth(token.as_str());
        }
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let moved = Arc::new(AtomicU64::new(0));
        if let Some(body) = body {
            request =
                request.header(header::CONTENT_LENGTH, body.len()).body(sliced(body, Arc::clone(&moved)));
        }
        let mut sending = std::pin::pin!(request.send());
        let mut seen = 0;
        loop {
            tokio::select! {
                answer = &mut sending => return answer.map_err(|error| Unsent {
                    reached: !error.is_connect(),
                    problem: away(address, &error),
                }),
                () = tokio::time::sleep(STALL) => {
                    let now = moved.load(Ordering::Relaxed);
                    if now == seen {
                        return Err(Unsent { reached: true, problem: stalled() });
                    }
                    seen = now;
                }
            }
        }
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = &str> {
        let inner = &*self.inner;
        let start = inner.good.load(Ordering::Relaxed);
        let count = inner.addresses.len();
        (0..count).filter_map(move |turn| inner.addresses.get((start + turn) % count)).map(String::as_str)
    }

    /// The address that answered last.
    pub fn address(&self) -> &str {
        self.addresses().next().unwrap_or("")
    }

    pub(super) fn part_size(&self) -> &PartSize {
        &self.inner.part_size
    }

    /// The relay, reached at `here`, told where it is to be reached from now on. `here` stays, as
    /// the last: what it calls itself may be out of reach from this network.
    pub(super) fn announce(&self, mut addresses: Vec<String>, here: &str) {
        if addresses.is_empty() {
            return;
        }
        if addresses.iter().all(|address| address != here) {
            addresses.push(here.to_owned());
        }
        self.inner.announced.send_replace(addresses);
    }

    pub(super) fn announced(&self) -> watch::Receiver<Vec<String>> {
        self.inner.announced.subscribe()
    }

    pub(super) fn tls(&self) -> Arc<rustls::ClientConfig> {
        Arc::clone(&self.inner.tls)
    }

    pub(super) fn token(&self) -> Option<&str> {
        self.inner.token.as_ref().map(|token| token.as_str())
    }
}

/// When a call goes to the next address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    /// It may be made twice.
    Always,
    /// Only as long as nobody can have heard it.
    Unreached,
}

/// A call that got no answer.
struct Unsent {
    problem: Problem,
    /// The relay may have heard it.
    reached: bool,
}

/// An invite is used once, and whoever did not answer may have used it.
fn unanswered(problem: Problem) -> Problem {
    let detail = format!(
        "{problem}; if the link is refused now, ask the operator for a new one, and to remove this device if \
         `gpunion members` lists it"
    );
    Problem::new(problem.code, "the relay took the request and did not say whether this device has joined")
        .with_detail(detail)
}

fn no_json(error: &serde_json::Error) -> Problem {
    Problem::new(Code::Internal, "the request has no JSON form").with_detail(error.to_string())
}

fn of_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| {
        Problem::new(Code::Version, "the relay's answer is not understood; is it of another version?")
            .with_detail(error.to_string())
    })
}

fn sliced(body: Bytes, moved: Arc<AtomicU64>) -> reqwest::Body {
    let slices = (0..body.len().div_ceil(SLICE)).map(move |n| {
        let slice = body.slice(n * SLICE..body.len().min((n + 1) * SLICE));
        moved.fetch_add(slice.len() as u64, Ordering::Relaxed);
        Ok::<_, std::io::Error>(slice)
    });
    reqwest::Body::wrap_stream(futures_util::stream::iter(slices))
}

fn date_of(response: &Response) -> Option<i64> {
    let date = response.headers().get(header::DATE).and_then(|date| date.to_str().ok());
    let date = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok());
    date.map(|date| date.timestamp().as_millisecond())
}

fn away(address: &str, error: &reqwest::Error) -> Problem {
    // The innermost cause says most: "connection refused", "invalid peer certificate".
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    unreached(address, &cause.to_string())
}

/// With the fix, by what went wrong.
pub(super) fn unreached(address: &str, cause: &str) -> Problem {
    let fix = if cause.contains(tls::ANOTHER_KEY) {
        "its key is not the one that the invite link pins: it is another relay, or a proxy with a certificate of its \
         own; ask the operator for a new link"
    } else if cause.contains("certificate") {
        "this system does not trust its certificate for that name; check the address, and ask the operator which \
         root signs it"
    } else {
        "check that the relay runs and that this machine reaches it"
    };
    Problem::new(Code::RelayAway, format!("the relay at {address} can't be reached"))
        .with_detail(format!("{cause}; {fix}"))
}

pub(super) fn stalled() -> Problem {
    Problem::new(Code::RelayAway, "the relay does not answer").with_detail(format!(
        "nothing came for {} s; check that the relay runs and that this machine reaches it",
        STALL.as_secs()
    ))
}

async fn response_or_problem(response: Response) -> Result<Response, Problem> {
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let bytes = read_body(response, 1 << 20).await.unwrap_or_default();
    Err(problem_of(status.as_u16(), &bytes))
}

/// What an answer says that is no success; a proxy in between may not speak problems.
pub(super) fn problem_of(status: u16, body: &[u8]) -> Problem {
    if let Ok(problem) = serde_json::from_slice::<Problem>(body) {
        return problem;
    }
    let code = match status {
        401 => Code::Unauthorized,
        403 => Code::Forbidden,
        404 => Code::NotFound,
        410 => Code::InviteGone,
        413 => Code::TooLarge,
        502..=504 => Code::RelayAway,
        _ => Code::Unknown,
    };
    let mut problem = Problem::new(code, format!("the relay answered with status {status} and no reason"));
    problem.status = status;
    problem
}

/// The next piece of a body, given up when it stalls.
pub(super) async fn next_piece(response: &mut Response) -> Result<Option<Bytes>, Problem> {
    match tokio::time::timeout(STALL, response.chunk()).await {
        Ok(Ok(piece)) => Ok(piece),
        Ok(Err(error)) => {
            Err(Problem::new(Code::RelayAway, "the relay's answer broke off").with_detail(error.to_string()))
        }
        Err(_) => Err(stalled()),
    }
}

pub(super) async fn read_body(mut response: Response, limit: usize) -> Result<Bytes, Problem> {
    // Told beforehand, a pack is not copied while it grows.
    let told = response.content_length().and_then(|length| usize::try_from(length).ok()).unwrap_or(0);
    let mut whole = BytesMut::with_capacity(told.min(limit));
    while let Some(piece) = next_piece(&mut response).await? {
        if whole.len() + piece.len() > limit {
            return Err(Problem::new(Code::TooLarge, format!("the relay's answer is over {limit} bytes")));
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole.freeze())
}

/// The bytes of an answer that goes on and on.
pub(super) fn piece_stream(
    response: Response,
    patience: Duration,
) -> impl futures_util::Stream<Item = Result<Bytes, String>> + Send + Unpin {
    Box::pin(futures_util::stream::unfold(Some(response.bytes_stream().boxed()), move |stream| async move {
        let mut stream = stream?;
        match tokio::time::timeout(patience, stream.next()).await {
            Ok(Some(Ok(piece))) => Some((Ok(piece), Some(stream))),
            Ok(Some(Err(error))) => Some((Err(error.to_string()), None)),
            Ok(None) => None,
            Err(_) => Some((Err("nothing came for a long time".to_owned()), None)),
        }
    }))
}
