//! Calls of the agent's local API.

use std::io;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use gpunion_agent_core::config::{Dirs, lock};
use gpunion_agent_core::relay_link::jobs::{JOBS_MAX, escaped};
use gpunion_agent_core::relay_link::{sse, tls};
use gpunion_protocol::ids::JobId;
use gpunion_protocol::job::JobView;
use gpunion_protocol::problem::{Code, Problem};
use reqwest::{Method, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::args::Place;
use crate::failure::{Failure, UNREACHABLE};

#[derive(Debug, Clone)]
pub(crate) struct Api {
    http: reqwest::Client,
    dirs: Dirs,
}

impl Api {
    pub(crate) fn new(place: &Place) -> Result<Self, Failure> {
        Self::of(place.agent()?)
    }

    pub(crate) fn of(dirs: Dirs) -> Result<Self, Failure> {
        let http = reqwest::Client::builder()
            .unix_socket(dirs.socket.clone())
            // No TLS goes over a unix socket; the client only wants to know which it would be.
            .tls_backend_preconfigured(tls::client_config(Some([0; 32]))?)
            .no_proxy()
            .build()
            .map_err(|error| Failure::failed(error.to_string()))?;
        Ok(Self { http, dirs })
    }

    pub(crate) fn dirs(&self) -> &Dirs {
        &self.dirs
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.read(self.send(Method::GET, path, None::<&()>).await?).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.read(self.send(Method::POST, path, Some(body)).await?).await
    }

    /// The answer once it begins, or the problem that it is.
    pub(crate) async fn send<B: Serialize>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<Response, Failure> {
        let mut request = self.http.request(method, format!("http://agent{path}"));
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = self.head(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let bytes = response.bytes().await.unwrap_or_default();
        let problem = serde_json::from_slice::<Problem>(&bytes).unwrap_or_else(|_| {
            Problem::new(Code::Unknown, format!("the agent answered with status {status}"))
        });
        Err(problem.into())
    }

    /// An answer may take long to begin (a large folder is read, a relay is away): it is waited for
    /// as long as the agent shows that it lives.
    async fn head(&self, request: reqwest::RequestBuilder) -> Result<Response, Failure> {
        let mut sending = std::pin::pin!(request.send());
        loop {
            tokio::select! {
                response = &mut sending => return response.map_err(|error| self.away(&error)),
                () = tokio::time::sleep(PATIENCE) => {
                    // From its memory, at once.
                    let sign = self.http.get("http://agent/v1/snapshot").send();
                    if tokio::time::timeout(PATIENCE, sign).await.is_err() {
                        return Err(self.silent());
                    }
                }
            }
        }
    }

    async fn read<T: DeserializeOwned>(&self, response: Response) -> Result<T, Failure> {
        let bytes = response.bytes().await.map_err(|error| broke_off(&error.to_string()))?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Problem::new(Code::Version, "the agent's answer is not understood; is it of another version?")
                .with_detail(format!("{error}; restart it with this program: gpunion agent"))
                .into()
        })
    }

    /// Events as they come; the stream ends when the agent ends it.
    pub(crate) async fn events<B: Serialize, T: DeserializeOwned + Send>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<impl Stream<Item = Result<T, Failure>> + Send + Unpin + use<B, T>, Failure> {
        let response = self.send(method, path, body).await?;
        let events = sse::events(Box::pin(response.bytes_stream()));
        Ok(Box::pin(events.filter_map(|event| {
            std::future::ready(match event {
                // A kind of event of a newer agent is passed over.
                Ok(event) => serde_json::from_str(&event.data).ok().map(Ok),
                Err(error) => Some(Err(broke_off(&error.to_string()))),
            })
        })))
    }

    /// Finds a job by its id, the end of it, or its name; of several the newest.
    pub(crate) async fn job(&self, word: &str) -> Result<JobView, Failure> {
        if let Ok(id) = word.parse::<JobId>() {
            return self.get(&format!("/v1/jobs/{id}")).await;
        }
        let named: Vec<JobView> = self.get(&format!("/v1/jobs?name={}", escaped(word))).await?;
        if let Some(job) = named.into_iter().max_by(|a, b| a.id.cmp(&b.id)) {
            return Ok(job);
        }
        let jobs: Vec<JobView> = self.get("/v1/jobs").await?;
        let mut ending = jobs.iter().filter(|job| word.len() >= 4 && job.id.as_str().ends_with(word));
        let found = match (ending.next(), ending.next()) {
            (Some(job), None) => job.clone(),
            (Some(_), Some(_)) => {
                return Err(Failure::usage(format!("more than one job ends in {word}"))
                    .fix("give more of its id; gpunion jobs lists them"));
            }
            (None, _) => {
                let fix = if jobs.len() < JOBS_MAX {
                    "gpunion jobs lists them".to_owned()
                } else {
                    format!(
                        "only the newest {JOBS_MAX} are known by the end of their id: give its name or whole id"
                    )
                };
                return Err(Problem::new(Code::NotFound, format!("you have no job {word:?}"))
                    .with_detail(fix)
                    .into());
            }
        };
        Ok(found)
    }

    /// Something holds the socket open, though it may say nothing.
    pub(crate) fn listens(&self) -> bool {
        std::os::unix::net::UnixStream::connect(&self.dirs.socket).is_ok()
    }

    fn silent(&self) -> Failure {
        let fix = match lock::holder(&self.dirs) {
            Some(pid) => {
                format!("it is stopped or stuck: kill -CONT {pid}, else kill -9 {pid} and start it again")
            }
            None => "it is stopped or stuck; end it, and start it again".to_owned(),
        };
        Failure::unreachable(format!("the agent at {} does not answer", self.dirs.socket.display())).fix(fix)
    }

    fn away(&self, error: &reqwest::Error) -> Failure {
        let mut cause: &dyn std::error::Error = error;
        let mut denied = false;
        while let Some(inner) = cause.source() {
            cause = inner;
            denied |= cause
                .downcast_ref::<io::Error>()
                .is_some_and(|e| e.kind() == io::ErrorKind::PermissionDenied);
        }
        let socket = self.dirs.socket.display();
        if denied {
            return Failure::from(
                Problem::new(Code::Forbidden, format!("this user may not open {socket}"))
                    .with_detail("ask the agent's owner to add you to the socket's group"),
            );
        }
        if error.is_connect() {
            return Failure::unreachable(format!("no agent answers at {socket}"))
                .fix("start one with `gpunion agent`, or name its data folder with --data");
        }
        broke_off(&cause.to_string())
    }
}

fn broke_off(cause: &str) -> Failure {
    let problem = Problem::new(Code::AgentAway, "the agent broke off its answer")
        .with_detail(format!("{cause}; look whether it still runs, and try again"));
    Failure { problem, exit: UNREACHABLE }
}

/// An agent that shows no sign of life for twice this is silent.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long an agent that is well takes at most to say that it acts.
pub(crate) const PROMPT: Duration = Duration::from_millis(200);
