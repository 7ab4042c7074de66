//! Short-lived containers of our own static program, which alone look into a workspace.
//!
//! Nothing on the host opens a path below a folder that a guest can write (invariant 13): the
//! program runs with one volume and nothing else, no network, and three capabilities, and talks
//! over its standard streams. Its container goes with the session, however that ends; one left
//! by a crash is found by its label.

use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bollard::container::LogOutput;
use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{
    AttachContainerOptions, CreateContainerOptions, CreateImageOptions, StartContainerOptions,
    WaitContainerOptions,
};
use bytes::Bytes;
use futures_util::StreamExt;
use gpunion_protocol::guest::WORKSPACE;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio_util::io::StreamReader;

use super::calls::{Engine, LONG, SHORT, within};
use super::error::EngineError;
use super::labels::{self, Kind};
use super::plan::{hardened, volume};

/// The engine's image of our program, by id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelperImage {
    pub id: String,
}

/// Where the program lies in its image.
pub(super) const PROGRAM: &str = "gpunion-helper";
/// Bytes; a snapshot needs under 64 MiB, the rest is room for the file cache.
const MEMORY: i64 = 512 << 20;
/// An engine that dies while it is asked to remove a container may never answer, and the helper's
/// workspace must not wait for that.
const REMOVED_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of its complaints that are kept, the last ones.
const COMPLAINTS: usize = 8 << 10;

/// One running helper. Dropping it ends and removes its container.
pub struct HelperSession {
    pub input: Pin<Box<dyn AsyncWrite + Send>>,
    pub output: Pin<Box<dyn AsyncRead + Send>>,
    complaints: Arc<Mutex<Vec<u8>>>,
    container: Removed,
}

impl std::fmt::Debug for HelperSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HelperSession({})", self.container.id)
    }
}

/// How a helper ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelperEnd {
    pub code: i64,
    /// The end of what it wrote to its standard error.
    pub complaints: String,
}

impl Engine {
    /// Makes the image of the static program once; it is known again by the program's hash.
    pub async fn helper_image(&self, program: &Path) -> Result<HelperImage, EngineError> {
        const DOING: &str = "making the helper's image";
        let bytes = tokio::fs::read(program)
            .await
            .map_err(|e| EngineError::refused(DOING, format!("{}: {e}", program.display())))?;
        let tag = blake3::hash(&bytes).to_hex()[..32].to_owned();
        let name = format!("{PROGRAM}:{tag}");
        if let Some(image) = self.image(&name).await? {
            return Ok(HelperImage { id: image.id });
        }
        let options = CreateImageOptions {
            from_src: Some("-".to_owned()),
            repo: Some(PROGRAM.to_owned()),
            tag: Some(tag),
            ..CreateImageOptions::default()
        };
        let tar = image_of(&bytes).map_err(|e| EngineError::refused(DOING, e.to_string()))?;
        let client = self.client(DOING).await?;
        let mut stream = client.create_image(Some(options), Some(bollard::body_full(tar)), None);
        let all = async {
            while let Some(said) = stream.next().await {
                said?;
            }
            Ok(())
        };
        within(DOING, LONG, all).await?;
        match self.image(&name).await? {
            Some(image) => Ok(HelperImage { id: image.id }),
            None => {
                Err(EngineError::refused(DOING, format!("the engine took {name} in but does not have it")))
            }
        }
    }

    /// Starts the program on one volume. It takes its orders over its input; `verb` is a label
    /// that tells the owner what the container is there for.
    pub async fn helper(
        &self,
        image: &HelperImage,
        volume_name: &str,
        read_only: bool,
        verb: &str,
    ) -> Result<HelperSession, EngineError> {
        const DOING: &str = "starting a helper on the workspace";
        let client = self.client(DOING).await?;
        let talk = Talk::begin(self).map_err(|e| EngineError::refused(DOING, e.to_string()))?;
        let body = self.helper_body(image, volume_name, read_only, verb, &talk);
        let made = within(DOING, LONG, client.create_container(None::<CreateContainerOptions>, body)).await?;
        let container = Removed { id: made.id, talk: Some(talk), engine: self.clone() };
        let streams = AttachContainerOptions {
            stream: true,
            stdin: true,
            stdout: true,
            stderr: true,
            ..AttachContainerOptions::default()
        };
        // Attached before it starts, so that no byte of it is missed.
        let attached = within(DOING, SHORT, client.attach_container(&container.id, Some(streams))).await?;
        within(DOING, LONG, client.start_container(&container.id, None::<StartContainerOptions>)).await?;
        let complaints = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&complaints);
        let output = attached.output.filter_map(move |piece| {
            let piece = match piece {
                Ok(LogOutput::StdOut { message }) => Some(Ok(message)),
                Ok(LogOutput::StdErr { message } | LogOutput::Console { message }) => {
                    keep_last(&mut kept.lock().unwrap_or_else(PoisonError::into_inner), &message);
                    None
                }
                Ok(LogOutput::StdIn { .. }) => None,
                Err(error) => Some(Err(std::io::Error::other(error))),
            };
            std::future::ready(piece)
        });
        let output: Pin<Box<dyn AsyncRead + Send>> = Box::pin(StreamReader::new(output.boxed()));
        Ok(HelperSession { input: attached.input, output, complaints, container })
    }

    fn helper_body(
        &self,
        image: &HelperImage,
        name: &str,
        read_only: bool,
        verb: &str,
        talk: &Talk,
    ) -> ContainerCreateBody {
        let mut marks = labels::of_device(self.device(), Kind::Helper.word());
        marks.insert(labels::VERB.to_owned(), verb.to_owned());
        marks.insert(labels::TALK.to_owned(), talk.mark.clone());
        let capabilities = ["CHOWN", "DAC_OVERRIDE", "FOWNER"];
        ContainerCreateBody {
            image: Some(image.id.clone()),
            entrypoint: Some(vec![format!("/{PROGRAM}")]),
            cmd: Some(Vec::new()),
            user: Some("0:0".to_owned()),
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            open_stdin: Some(true),
            stdin_once: Some(true),
            tty: Some(false),
            labels: Some(marks),
            host_config: Some(HostConfig {
                cap_add: Some(capabilities.map(str::to_owned).to_vec()),
                mounts: Some(vec![volume(name, WORKSPACE, read_only)]),
                memory: Some(MEMORY),
                memory_swap: Some(MEMORY),
                pids_limit: Some(64),
                cpu_shares: Some(128),
                blkio_weight: Some(10),
                ..hardened(false, None, None)
            }),
            ..ContainerCreateBody::default()
        }
    }
}

impl HelperSession {
    /// Waits until the program has ended by itself, and removes its container.
    pub async fn close(self, limit: Duration) -> Result<HelperEnd, EngineError> {
        const DOING: &str = "waiting for the helper's end";
        let Self { mut input, mut output, complaints, container } = self;
        // It reads until its input ends, and writes until somebody has read all. The engine hears of
        // the end by the word alone: the connection carries the output too, and stays.
        let rest = async {
            // One that has ended by itself has hung up.
            let _ = input.shutdown().await;
            tokio::io::copy(&mut output, &mut tokio::io::sink()).await?;
            Ok(())
        };
        within(DOING, limit, rest).await?;
        let client = container.engine.client(DOING).await?;
        let options = WaitContainerOptions { condition: "not-running".to_owned() };
        let mut waiting = client.wait_container(&container.id, Some(options));
        let code = match tokio::time::timeout(limit, waiting.next()).await {
            Err(_) => return Err(EngineError::timed_out(DOING, limit)),
            Ok(Some(Ok(answer))) => answer.status_code,
            // The client calls an exit with another code than 0 an error.
            Ok(Some(Err(bollard::errors::Error::DockerContainerWaitError { code, .. }))) => code,
            Ok(Some(Err(error))) => return Err(EngineError::of_api(DOING, error)),
            Ok(None) => return Err(EngineError::away(DOING, "it broke off")),
        };
        let complaints =
            String::from_utf8_lossy(&complaints.lock().unwrap_or_else(PoisonError::into_inner)).into_owned();
        container.remove().await?;
        Ok(HelperEnd { code, complaints })
    }

    /// Lets the program end, and keeps its container until what is answered is dropped: removing it
    /// costs the engine as much as starting one, and whoever waits for something else comes first.
    pub fn put_aside(self) -> Aside {
        Aside { _container: self.container }
    }

    /// What it has complained about so far.
    pub fn complaints(&self) -> String {
        String::from_utf8_lossy(&self.complaints.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

/// A helper that has done its work; its container goes with this.
pub struct Aside {
    _container: Removed,
}

impl std::fmt::Debug for Aside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Aside").finish_non_exhaustive()
    }
}

/// Somebody talks to a helper: so long as this lives, its container is no orphan.
struct Talk {
    engine: Engine,
    mark: String,
}

impl Talk {
    fn begin(engine: &Engine) -> Result<Self, getrandom::Error> {
        let mark = format!("{:016x}", getrandom::u64()?);
        engine.helpers().insert(mark.clone());
        Ok(Self { engine: engine.clone(), mark })
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.engine.helpers().remove(&self.mark);
    }
}

/// A container that is removed at the latest when this is dropped, if the engine is there; else
/// it is an orphan from then on.
struct Removed {
    id: String,
    talk: Option<Talk>,
    engine: Engine,
}

impl Removed {
    async fn remove(mut self) -> Result<(), EngineError> {
        let id = std::mem::take(&mut self.id);
        self.engine.remove_guest(&id).await
    }
}

impl Drop for Removed {
    fn drop(&mut self) {
        if self.id.is_empty() {
            return;
        }
        let (engine, id, talk) = (self.engine.clone(), std::mem::take(&mut self.id), self.talk.take());
        // Without a runtime the program is ending; the next start finds it by its label.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            const DOING: &str = "removing a helper";
            let removing = tokio::time::timeout(REMOVED_WITHIN, engine.remove_guest(&id)).await;
            if let Err(error) = removing.unwrap_or(Err(EngineError::timed_out(DOING, REMOVED_WITHIN))) {
                tracing::warn!(container = %id, "a helper is left behind for now: {error}");
            }
            // From here on it is an orphan, and whoever cleans up takes it along.
            drop(talk);
        });
    }
}

fn keep_last(kept: &mut Vec<u8>, more: &Bytes) {
    kept.extend_from_slice(more);
    let over = kept.len().saturating_sub(COMPLAINTS);
    kept.drain(..over);
}

/// An image's file system: the one program and the place of the volume.
fn image_of(program: &[u8]) -> std::io::Result<Bytes> {
    let mut tar = tar::Builder::new(Vec::with_capacity(program.len() + 4096));
    let mut header = tar::Header::new_ustar();
    header.set_size(program.len() as u64);
    header.set_mode(0o755);
    tar.append_data(&mut header, PROGRAM, program)?;
    let mut folder = tar::Header::new_ustar();
    folder.set_entry_type(tar::EntryType::Directory);
    folder.set_size(0);
    folder.set_mode(0o755);
    tar.append_data(&mut folder, "workspace/", std::io::empty())?;
    Ok(tar.into_inner()?.into())
}
