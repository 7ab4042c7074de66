//! The one WebSocket session with the relay: dialled, kept alive, dialled again.
//!
//! Carries messages and judges none. While there is no session, what is sent is dropped: nothing
//! relies on a message coming except through repetition, and everything is said anew at `Up`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt as _, SinkExt as _, StreamExt as _};
use gpunion_protocol::WIRE_VERSION;
use gpunion_protocol::ids::Epoch;
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::session::{MESSAGE_MAX, Terms, ToAgent, ToRelay};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error as WsError, Message, http};
use tokio_util::sync::CancellationToken;

use super::backoff::{Backoff, jitter};
use super::client::{RelayClient, problem_of, unreached};
use crate::config::Membership;

const QUEUE: usize = 256;
/// Pieces of output that wait; a guest that prints much waits for the line, and nothing else does.
const LOGS: usize = 4;
/// Reaching, greeting and welcoming must not take longer, each.
const STEP: Duration = Duration::from_secs(15);

/// What a driver holds of the session.
#[derive(Debug)]
pub struct SessionHandle {
    /// Bounded. While the session is down, what goes in is dropped.
    pub outgoing: mpsc::Sender<ToRelay>,
    /// The same for output of guests, which goes when there is nothing else to say.
    pub logs: mpsc::Sender<ToRelay>,
    /// Bounded; when it is full the socket is not read, and the relay waits.
    pub incoming: mpsc::Receiver<SessionEvent>,
    pub status: watch::Receiver<LinkStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEvent {
    /// Welcomed. Offers, renewals and states are to be said anew.
    Up {
        terms: Terms,
        epoch: Epoch,
    },
    Message(ToAgent),
    /// One sentence.
    Down {
        why: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkStatus {
    NoGroup,
    Connecting,
    Up,
    /// It goes on dialling.
    Down {
        problem: Problem,
    },
}

/// Runs for the agent's life; follows the membership as it comes, changes and goes.
pub fn open(
    membership: watch::Receiver<Option<Arc<Membership>>>,
    agent: String,
    shutdown: CancellationToken,
) -> SessionHandle {
    let (outgoing, to_send) = mpsc::channel(QUEUE);
    let (logs, logs_to_send) = mpsc::channel(LOGS);
    let (deliver, incoming) = mpsc::channel(QUEUE);
    let (tell, status) = watch::channel(LinkStatus::NoGroup);
    let to_send = ToSend { control: to_send, logs: logs_to_send };
    let task = Task { membership, agent, to_send, deliver, tell };
    tokio::spawn(async move {
        shutdown.run_until_cancelled_owned(task.run()).await;
    });
    SessionHandle { outgoing, logs, incoming, status }
}

struct Task {
    membership: watch::Receiver<Option<Arc<Membership>>>,
    agent: String,
    to_send: ToSend,
    deliver: mpsc::Sender<SessionEvent>,
    tell: watch::Sender<LinkStatus>,
}

/// What waits to be said.
struct ToSend {
    control: mpsc::Receiver<ToRelay>,
    logs: mpsc::Receiver<ToRelay>,
}

impl ToSend {
    /// A guest that prints without end must not cost it its lease: output waits for all else.
    /// `None`: nobody will say anything any more.
    async fn next(&mut self) -> Option<ToRelay> {
        tokio::select! {
            biased;
            message = self.control.recv() => message,
            Some(piece) = self.logs.recv() => Some(piece),
        }
    }

    fn drop_all(&mut self) {
        while self.control.try_recv().is_ok() || self.logs.try_recv().is_ok() {}
    }
}

type Socket = WebSocketStream<TlsStream<TcpStream>>;

/// Why the session is over for now.
enum Over {
    /// The driver is gone: nobody wants a session any more.
    Unwanted,
    /// The membership changed: dial at once.
    Regrouped,
    Broken(Problem),
}

impl Task {
    async fn run(mut self) {
        let mut backoff = Backoff::default();
        loop {
            let member = self.membership.borrow_and_update().clone();
            let Some(member) = member else {
                self.tell.send_replace(LinkStatus::NoGroup);
                if !self.idle(None).await {
                    return;
                }
                continue;
            };
            self.tell.send_replace(LinkStatus::Connecting);
            let problem = match self.one(&member.client, &mut backoff).await {
                Over::Unwanted => return,
                Over::Regrouped => {
                    backoff.succeeded();
                    continue;
                }
                Over::Broken(problem) => problem,
            };
            tracing::info!(%problem, "no session with the relay");
            self.tell.send_replace(LinkStatus::Down { problem });
            let wait = backoff.after_failure(jitter());
            if !self.idle(Some(wait)).await {
                return;
            }
        }
    }

    /// Waits, or for another membership; drops what the driver says meanwhile. False: nobody
    /// wants a session any more.
    async fn idle(&mut self, wait: Option<Duration>) -> bool {
        let until = wait.map(|wait| Instant::now() + wait);
        loop {
            tokio::select! {
                changed = self.membership.changed() => return changed.is_ok(),
                said = self.to_send.next() => if said.is_none() {
                    return false;
                },
                () = sleep_until(until) => return true,
            }
        }
    }

    /// One session, from dialling to its end.
    async fn one(&mut self, client: &RelayClient, backoff: &mut Backoff) -> Over {
        let dialled = tokio::select! {
            dialled = dial(client, &self.agent) => dialled,
            changed = self.membership.changed() => {
                return if changed.is_ok() { Over::Regrouped } else { Over::Unwanted };
            }
        };
        let (socket, terms, epoch) = match dialled {
            Ok(dialled) => dialled,
            Err(problem) => return Over::Broken(problem),
        };
        // What was said before counts for nothing now: it is said anew at `Up`.
        self.to_send.drop_all();
        // First, so that whoever hears of it finds it so.
        self.tell.send_replace(LinkStatus::Up);
        if self.deliver.send(SessionEvent::Up { terms, epoch }).await.is_err() {
            return Over::Unwanted;
        }
        backoff.succeeded();
        let over = self.carry(socket, terms).await;
        let why = match &over {
            Over::Unwanted => return over,
            Over::Regrouped => "the device's membership changed".to_owned(),
            Over::Broken(problem) => {
                self.tell.send_replace(LinkStatus::Down { problem: problem.clone() });
                problem.to_string()
            }
        };
        if self.deliver.send(SessionEvent::Down { why }).await.is_err() {
            return Over::Unwanted;
        }
        over
    }

    /// Carries messages both ways, with heartbeats, until something ends it.
    async fn carry<S>(&mut self, socket: WebSocketStream<S>, terms: Terms) -> Over
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let beat = terms.heartbeat.as_std().max(Duration::from_millis(20));
        let (mut sink, mut stream) = socket.split();
        let mut said = Instant::now();
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                changed = self.membership.changed() => {
                    let _ = tokio::time::timeout(STEP, sink.close()).await;
                    return if changed.is_ok() { Over::Regrouped } else { Over::Unwanted };
                }
                message = self.to_send.next() => {
                    let Some(message) = message else {
                        let _ = tokio::time::timeout(STEP, sink.close()).await;
                        return Over::Unwanted;
                    };
                    if let Err(over) = say(&mut sink, &message).await {
                        return over;
                    }
                    said = Instant::now();
                }
                () = tokio::time::sleep_until(said + beat) => {
                    if let Err(over) = say(&mut sink, &ToRelay::Beat).await {
                        return over;
                    }
                    said = Instant::now();
                }
                // A driver that is slow makes the relay wait; that is not the relay's silence.
                room = self.deliver.reserve(), if self.deliver.capacity() == 0 => {
                    if room.is_err() {
                        return Over::Unwanted;
                    }
                    heard = Instant::now();
                }
                () = tokio::time::sleep_until(heard + beat * 3), if self.deliver.capacity() > 0 => {
                    // When it was this machine that stood still, what came meanwhile is there now.
                    let Some(message) = stream.next().now_or_never() else {
                        return Over::Broken(
                            Problem::new(Code::RelayAway, "the relay fell silent").with_detail("dialling it again"),
                        );
                    };
                    heard = Instant::now();
                    if let Err(over) = self.hear(message).await {
                        return over;
                    }
                }
                message = stream.next(), if self.deliver.capacity() > 0 => {
                    heard = Instant::now();
                    if let Err(over) = self.hear(message).await {
                        return over;
                    }
                }
            }
        }
    }

    async fn hear(&self, message: Option<Result<Message, WsError>>) -> Result<(), Over> {
        match understood(message)? {
            Some(message) => {
                self.deliver.send(SessionEvent::Message(message)).await.map_err(|_| Over::Unwanted)
            }
            None => Ok(()),
        }
    }
}

async fn sleep_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

async fn say<S>(sink: &mut S, message: &ToRelay) -> Result<(), Over>
where
    S: futures_util::Sink<Message, Error = WsError> + Unpin,
{
    let text = match serde_json::to_string(message) {
        Ok(text) if text.len() <= MESSAGE_MAX => text,
        Ok(text) => {
            tracing::warn!(bytes = text.len(), "a message to the relay is too long and is not sent");
            return Ok(());
        }
        Err(error) => {
            tracing::warn!(%error, "a message to the relay has no text form and is not sent");
            return Ok(());
        }
    };
    match tokio::time::timeout(STEP * 2, sink.send(Message::text(text))).await {
        Ok(sent) => sent.map_err(|error| Over::Broken(broken(&error))),
        Err(_) => Err(Over::Broken(Problem::new(Code::RelayAway, "the relay takes nothing any more"))),
    }
}

/// `None`: nothing for the driver.
fn understood(message: Option<Result<Message, WsError>>) -> Result<Option<ToAgent>, Over> {
    let message = match message {
        Some(Ok(message)) => message,
        Some(Err(error)) => return Err(Over::Broken(broken(&error))),
        None => return Err(Over::Broken(Problem::new(Code::RelayAway, "the relay hung up"))),
    };
    match message {
        Message::Text(text) => match serde_json::from_str::<ToAgent>(&text) {
            Ok(ToAgent::Beat) => Ok(None),
            Ok(message) => Ok(Some(message)),
            Err(error) => {
                tracing::debug!(%error, "the relay said something that is not understood; it may be newer");
                Ok(None)
            }
        },
        Message::Close(frame) => {
            let reason = frame.map(|frame| frame.reason.to_string()).filter(|reason| !reason.is_empty());
            let mut problem = Problem::new(Code::RelayAway, "the relay ended the session");
            problem.detail = reason;
            Err(Over::Broken(problem))
        }
        Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => Ok(None),
    }
}

fn broken(error: &WsError) -> Problem {
    Problem::new(Code::RelayAway, "the session with the relay broke off").with_detail(error.to_string())
}

/// Tries each address until one welcomes this device.
async fn dial(client: &RelayClient, agent: &str) -> Result<(Socket, Terms, Epoch), Problem> {
    let mut last = Problem::new(Code::RelayAway, "no address of the relay is known");
    for address in client.addresses() {
        match dial_one(client, address, agent).await {
            Ok(done) => return Ok(done),
            Err(problem) => last = problem,
        }
    }
    Err(last)
}

async fn dial_one(
    client: &RelayClient,
    address: &str,
    agent: &str,
) -> Result<(Socket, Terms, Epoch), Problem> {
    let mut socket = step(address, connect(client, address)).await?;
    let hello = ToRelay::Hello { wire: WIRE_VERSION, agent: agent.to_owned() };
    let greeted = async {
        if let Err(Over::Broken(problem)) = say(&mut socket, &hello).await {
            return Err(problem);
        }
        loop {
            match understood(socket.next().await) {
                Ok(Some(ToAgent::Welcome { epoch, terms, addresses, .. })) => {
                    client.announce(addresses, address);
                    return Ok((terms, epoch));
                }
                Ok(_) => {}
                Err(Over::Broken(problem)) => return Err(problem),
                Err(Over::Unwanted | Over::Regrouped) => {}
            }
        }
    };
    let (terms, epoch) = step(address, greeted).await?;
    Ok((socket, terms, epoch))
}

async fn step<T>(address: &str, doing: impl Future<Output = Result<T, Problem>>) -> Result<T, Problem> {
    match tokio::time::timeout(STEP, doing).await {
        Ok(done) => done,
        Err(_) => Err(Problem::new(Code::RelayAway, format!("the relay at {address} does not answer"))
            .with_detail(format!("nothing came within {} s", STEP.as_secs()))),
    }
}

async fn connect(client: &RelayClient, address: &str) -> Result<Socket, Problem> {
    let away = |cause: String| unreached(address, &cause);
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_matches(['[', ']']).to_owned();
    let name = rustls::pki_types::ServerName::try_from(host).map_err(|error| away(error.to_string()))?;
    let tcp = TcpStream::connect(address).await.map_err(|error| away(error.to_string()))?;
    tcp.set_nodelay(true).map_err(|error| away(error.to_string()))?;
    let tls =
        TlsConnector::from(client.tls()).connect(name, tcp).await.map_err(|error| away(error.to_string()))?;
    let mut request = format!("wss://{address}/v1/session")
        .into_client_request()
        .map_err(|error| away(error.to_string()))?;
    if let Some(token) = client.token() {
        let mut value = http::HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| Problem::new(Code::Unauthorized, "the device's token is damaged; join again"))?;
        value.set_sensitive(true);
        request.headers_mut().insert(http::header::AUTHORIZATION, value);
    }
    let config = WebSocketConfig::default()
        .read_buffer_size(16 << 10)
        .max_message_size(Some(MESSAGE_MAX + 1024))
        .max_frame_size(Some(MESSAGE_MAX + 1024));
    match tokio_tungstenite::client_async_with_config(request, tls, Some(config)).await {
        Ok((socket, _)) => Ok(socket),
        Err(WsError::Http(response)) => {
            let body = response.body().as_deref().unwrap_or_default();
            Err(problem_of(response.status().as_u16(), body))
        }
        Err(error) => Err(away(error.to_string())),
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
