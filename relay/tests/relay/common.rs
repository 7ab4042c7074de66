//! A relay on loopback and a client that speaks to it as an agent does: TLS with the pinned key.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use gpunion_protocol::WIRE_VERSION;
use gpunion_protocol::http::{Join, Joined, MadeInvite, NewInvite, Role};
use gpunion_protocol::invite::Invite;
use gpunion_protocol::job::Blob;
use gpunion_protocol::problem::{CONTENT_TYPE, Code, Problem};
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_relay::{Config, Started, launch};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

/// Nothing here takes longer, on a machine that is not broken.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

pub(crate) async fn soon<T>(what: &str, wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, wait).await.unwrap_or_else(|_| panic!("{what} did not come in {LIMIT:?}"))
}

pub(crate) struct Relay {
    pub(crate) started: Started,
    stop: Option<oneshot::Sender<()>>,
}

impl Relay {
    pub(crate) async fn start(dir: &Path) -> Self {
        Self::with(Config::new(dir)).await
    }

    pub(crate) async fn with(config: Config) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let shutdown = async move { drop(stopped.await) };
        let started = launch(config, listener, shutdown).await.unwrap();
        Self { started, stop: Some(stop) }
    }

    /// One that a test started itself; it stops with its runtime.
    pub(crate) fn running(started: Started) -> Self {
        Self { started, stop: None }
    }

    pub(crate) async fn stop(self) {
        self.stop.unwrap().send(()).unwrap();
        soon("the stop", self.started.stopped()).await.unwrap();
    }

    pub(crate) fn address(&self) -> String {
        self.started.address.to_string()
    }

    /// Nobody in particular.
    pub(crate) fn stranger(&self) -> Client {
        Client::new(&self.address(), self.started.pin)
    }

    /// The first operator, by the link of the first start.
    pub(crate) async fn operator(&self) -> Client {
        let link = self.started.operator_invite.as_ref().unwrap().link().to_owned();
        Client::join(&link, "Olga", "olga-laptop").await.unwrap()
    }
}

/// A new member or operator, invited by this one.
pub(crate) async fn invited(by: &Client, role: Role, name: &str) -> Client {
    let made = by.invite(role).await;
    Client::join(&made.link, name, &format!("{name}-box")).await.unwrap()
}

#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    pub(crate) tls: Arc<rustls::ClientConfig>,
    pub(crate) address: String,
    pub(crate) joined: Option<Joined>,
}

impl Client {
    pub(crate) fn new(address: &str, pin: [u8; 32]) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned { pin, provider }))
            .with_no_client_auth();
        let http = reqwest::Client::builder().tls_backend_preconfigured(tls.clone()).build().unwrap();
        Self { http, tls: Arc::new(tls), address: address.to_owned(), joined: None }
    }

    pub(crate) async fn join(link: &str, member: &str, device: &str) -> Result<Self, Problem> {
        let invite: Invite = link.parse().unwrap();
        let mut client = Self::new(&invite.addresses[0], invite.pin.unwrap());
        let join = Join {
            code: invite.code,
            member_name: member.to_owned(),
            device_name: device.to_owned(),
            public_key: Blob(vec![7; 32]),
        };
        let joined = client.json::<Joined>(client.request(Method::POST, "/v1/join").json(&join)).await?;
        client.joined = Some(joined);
        Ok(client)
    }

    /// The same device over a new connection.
    pub(crate) fn being(self, other: &Self) -> Self {
        Self { joined: other.joined.clone(), ..self }
    }

    pub(crate) fn joined(&self) -> &Joined {
        self.joined.as_ref().unwrap()
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("https://{}{path}", self.address));
        match &self.joined {
            Some(joined) => request.bearer_auth(&joined.token),
            None => request,
        }
    }

    /// The answer, or the problem, which must have the form of one.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response, Problem> {
        let response = soon("an answer", request.send()).await.unwrap();
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        assert_eq!(response.headers()["content-type"], CONTENT_TYPE, "{status}");
        let problem: Problem = response.json().await.unwrap();
        assert_eq!(problem.status, status.as_u16());
        assert!(!problem.title.is_empty());
        Err(problem)
    }

    pub(crate) async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, Problem> {
        Ok(self.send(request).await?.json().await.unwrap())
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Problem> {
        self.json(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Problem> {
        self.json(self.request(Method::POST, path).json(body)).await
    }

    pub(crate) async fn put(
        &self,
        path: &str,
        bytes: impl Into<reqwest::Body>,
    ) -> Result<StatusCode, Problem> {
        Ok(self.send(self.request(Method::PUT, path).body(bytes)).await?.status())
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<StatusCode, Problem> {
        Ok(self.send(self.request(Method::DELETE, path)).await?.status())
    }

    pub(crate) async fn invite(&self, role: Role) -> MadeInvite {
        self.post("/v1/invites", &NewInvite { role, member: None, valid_s: 3600 }).await.unwrap()
    }

    pub(crate) async fn sse(&self, path: &str, last: Option<&str>) -> Result<Sse, Problem> {
        let mut request = self.request(Method::GET, path);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let stream = Box::pin(self.send(request).await?.bytes_stream());
        Ok(Sse { stream, text: String::new() })
    }

    /// A session that has not said anything yet.
    pub(crate) async fn socket(&self) -> Result<Socket, StatusCode> {
        let tcp = TcpStream::connect(&self.address).await.unwrap();
        let name = ServerName::try_from("relay").unwrap();
        let tls = tokio_rustls::TlsConnector::from(Arc::clone(&self.tls)).connect(name, tcp).await.unwrap();
        let mut request = format!("wss://{}/v1/session", self.address).into_client_request().unwrap();
        if let Some(joined) = &self.joined {
            let value = format!("Bearer {}", joined.token).parse().unwrap();
            request.headers_mut().insert("authorization", value);
        }
        match tokio_tungstenite::client_async(request, tls).await {
            Ok((socket, _)) => Ok(Socket(socket)),
            Err(tokio_tungstenite::tungstenite::Error::Http(response)) => Err(response.status()),
            Err(e) => panic!("no session: {e}"),
        }
    }

    /// A session after hello and welcome.
    pub(crate) async fn session(&self) -> Socket {
        let mut socket = self.socket().await.unwrap();
        socket.say(&ToRelay::Hello { wire: WIRE_VERSION, agent: "test".to_owned() }).await;
        socket.until("welcome", |m| matches!(m, ToAgent::Welcome { .. })).await;
        socket
    }
}

pub(crate) struct Socket(pub(crate) WebSocketStream<tokio_rustls::client::TlsStream<TcpStream>>);

impl Socket {
    pub(crate) async fn say(&mut self, message: &ToRelay) {
        self.say_text(&serde_json::to_string(message).unwrap()).await;
    }

    pub(crate) async fn say_text(&mut self, text: &str) {
        soon("sending", self.0.send(Message::text(text))).await.unwrap();
    }

    /// The next message, or why the relay ended the session.
    pub(crate) async fn hear(&mut self) -> Result<ToAgent, String> {
        loop {
            match soon("a message", self.0.next()).await {
                Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).unwrap()),
                Some(Ok(Message::Close(frame))) => {
                    return Err(frame.map(|f| f.reason.to_string()).unwrap_or_default());
                }
                Some(Ok(_)) => {}
                Some(Err(e)) => return Err(e.to_string()),
                None => return Err("closed".to_owned()),
            }
        }
    }

    pub(crate) async fn until(&mut self, what: &str, wanted: impl Fn(&ToAgent) -> bool) -> ToAgent {
        soon(what, async {
            loop {
                let message = self.hear().await.unwrap_or_else(|e| panic!("{what}: {e}"));
                if wanted(&message) {
                    return message;
                }
            }
        })
        .await
    }

    /// Waits for the end and returns the relay's reason.
    pub(crate) async fn end(&mut self) -> String {
        soon("the session's end", async {
            loop {
                if let Err(why) = self.hear().await {
                    return why;
                }
            }
        })
        .await
    }

    /// Cuts the connection without a word.
    pub(crate) fn cut(self) {
        drop(self.0);
    }
}

type Bytes = std::pin::Pin<Box<dyn futures_util::Stream<Item = reqwest::Result<bytes::Bytes>> + Send>>;

pub(crate) struct Sse {
    stream: Bytes,
    text: String,
}

impl Sse {
    /// The next message's id and data; `None` at the end.
    pub(crate) async fn next<T: DeserializeOwned>(&mut self) -> Option<(String, T)> {
        // Around all of it: comments that keep the stream alive are no message.
        soon("an event", self.message()).await
    }

    async fn message<T: DeserializeOwned>(&mut self) -> Option<(String, T)> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    let line = block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                    line.map(|line| line.trim_start().to_owned())
                };
                let (id, data) = (field("id"), field("data"));
                self.text = rest.to_owned();
                if let Some(data) = data {
                    return Some((id.unwrap_or_default(), serde_json::from_str(&data).unwrap()));
                }
                continue;
            }
            match self.stream.next().await {
                Some(Ok(bytes)) => self.text.push_str(std::str::from_utf8(&bytes).unwrap()),
                Some(Err(_)) | None => return None,
            }
        }
    }
}

/// Accepts the one key, whatever the certificate says.
#[derive(Debug)]
struct Pinned {
    pin: [u8; 32],
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let cert = rustls::server::ParsedCertificate::try_from(end_entity)?;
        let pin: [u8; 32] = Sha256::digest(cert.subject_public_key_info()).into();
        if pin == self.pin {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(rustls::Error::General("another key".to_owned()))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

pub(crate) fn code<T: std::fmt::Debug>(result: Result<T, Problem>) -> Code {
    result.unwrap_err().code
}
