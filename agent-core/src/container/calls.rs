//! The connection to one engine: dialled on use, every call with its limit.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error as ApiError;
use gpunion_protocol::ids::DeviceId;
use tokio::sync::OnceCell;

use super::error::EngineError;

/// A question that the engine answers out of its memory.
pub(super) const SHORT: Duration = Duration::from_secs(20);
/// Work on its disk: creating, starting, removing.
pub(super) const LONG: Duration = Duration::from_secs(120);
/// The longest silence in a transfer.
pub(super) const STALL: Duration = Duration::from_secs(180);

/// The client's own limit only catches what ours don't (seconds).
const CLIENT_LIMIT: u64 = 24 * 3600;

/// One engine, for one device. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    socket: PathBuf,
    device: DeviceId,
    client: OnceCell<Docker>,
    /// Marks of the helpers that somebody here talks to, from before they are made until they are
    /// gone.
    helpers: Mutex<BTreeSet<String>>,
}

impl Engine {
    /// Never fails and does not dial: an engine that is not up yet is normal (F74).
    pub fn connect(socket: &Path, device: &DeviceId) -> Self {
        let inner = Inner {
            socket: socket.to_owned(),
            device: device.clone(),
            client: OnceCell::new(),
            helpers: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    pub fn socket(&self) -> &Path {
        &self.inner.socket
    }

    pub fn device(&self) -> &DeviceId {
        &self.inner.device
    }

    pub(super) fn helpers(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.inner.helpers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client, in the newest version of the API that both sides speak.
    pub(super) async fn client(&self, doing: &'static str) -> Result<&Docker, EngineError> {
        self.inner
            .client
            .get_or_try_init(|| async {
                let path = self.inner.socket.to_string_lossy();
                let client = Docker::connect_with_unix(&path, CLIENT_LIMIT, bollard::API_DEFAULT_VERSION)
                    .map_err(|e| self.unreachable(doing, e))?;
                within(doing, SHORT, client.negotiate_version()).await.map_err(|e| self.with_socket(e))
            })
            .await
    }

    fn unreachable(&self, doing: &'static str, error: ApiError) -> EngineError {
        self.with_socket(EngineError::of_api(doing, error))
    }

    /// Whoever reads that nothing answers wants to know where.
    fn with_socket(&self, error: EngineError) -> EngineError {
        match error {
            EngineError::Away { doing, why } => {
                EngineError::Away { doing, why: format!("{}: {why}", self.inner.socket.display()) }
            }
            refused @ EngineError::Refused { .. } => refused,
        }
    }
}

pub(super) async fn within<T>(
    doing: &'static str,
    limit: Duration,
    call: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, EngineError> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(EngineError::of_api(doing, error)),
        Err(_) => Err(EngineError::timed_out(doing, limit)),
    }
}

/// As `within`; "no such" is an answer, not an error.
pub(super) async fn within_optional<T>(
    doing: &'static str,
    limit: Duration,
    call: impl Future<Output = Result<T, ApiError>>,
) -> Result<Option<T>, EngineError> {
    let call = async {
        match call.await {
            Ok(value) => Ok(Some(value)),
            Err(ApiError::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    };
    within(doing, limit, call).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn f74_an_engine_that_is_not_up_yet_is_away_and_named_with_the_fix() {
        let engine = Engine::connect(Path::new("/nowhere/docker.sock"), &DeviceId::new(1, [1; 10]));
        for _ in 0..2 {
            let Err(error) = engine.answers().await else { unreachable!("nobody listens there") };
            assert!(error.is_away(), "{error}");
            let text = error.to_string();
            assert!(
                text.contains("/nowhere/docker.sock") && text.contains("systemctl start docker"),
                "{text}"
            );
        }
    }
}
