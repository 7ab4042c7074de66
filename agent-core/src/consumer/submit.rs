//! Submits a job: image, input and data are sent, the key is wrapped, the relay is told.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt as _;

use bytes::Bytes;
use futures_util::StreamExt as _;
use gpunion_protocol::http::Submit;
use gpunion_protocol::ids::JobId;
use gpunion_protocol::job::{DataInput, Image};
use gpunion_protocol::local::{SubmitProgress, SubmitRequest};
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::spec::BadSpec;
use gpunion_snapshot::{JobKey, SystemRandomness};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::Consumer;
use super::image_archive;
use super::images::{Archive, Found, LocalImage};
use super::keys::{JobSecrets, wrap_for};
use super::memory::Memory;
use super::plan::Plan;
use super::progress::Meter;
use super::tree::Tree;
use super::upload::{Line, Sent};
use crate::config::clock;
use crate::relay_link::RelayClient;

const QUEUE: usize = 32;
/// So often an engine is asked to write an image out.
const EXPORTS: usize = 3;
/// So often at most all is sent, where the relay swept some of it before the job named it.
const ROUNDS: u32 = 3;

impl Consumer {
    /// Progress, beginning with `Begun` (another one when it begins anew), ending in `Submitted` or `Failed`. Dropping the receiver
    /// while things are sent gives up; once the relay is asked to take the job, nothing does.
    pub fn submit(&self, request: SubmitRequest) -> mpsc::Receiver<SubmitProgress> {
        let (tell, progress) = mpsc::channel(QUEUE);
        let consumer = self.clone();
        tokio::spawn(async move {
            let mut round = 1;
            let done = loop {
                let ready = tokio::select! {
                    ready = consumer.send_all(request.clone(), tell.clone()) => ready,
                    () = tell.closed() => return,
                };
                let done = match ready {
                    Ok(ready) => ready.submit().await,
                    Err(problem) => Err(problem),
                };
                match done {
                    // What is still there does not travel again.
                    Err(problem) if problem.code == Code::Missing && round < ROUNDS => {
                        tracing::info!(%problem, round, "the relay has not kept all of it; sending that again");
                        round += 1;
                    }
                    done => break done,
                }
            };
            let _ = tell.send(done.unwrap_or_else(|problem| SubmitProgress::Failed { problem })).await;
        });
        progress
    }

    /// All but the word that makes it a job.
    async fn send_all(
        &self,
        request: SubmitRequest,
        tell: mpsc::Sender<SubmitProgress>,
    ) -> Result<Ready, Problem> {
        let member = self.pairing.current()?;
        let plan = self.plan(&request.what).await?;
        check(&plan, &request)?;
        let random = &mut SystemRandomness;
        let job_key =
            JobKey::generate(random).map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
        let job = new_job_id()?;
        let _ = tell.send(SubmitProgress::Begun { job: job.clone() }).await;
        let trees = plan.input.iter().chain(plan.data.iter().map(|(_, tree)| tree));
        let line = Line {
            client: member.client.clone(),
            chunk_key: member.identity.chunk_key.clone(),
            job_key: job_key.clone(),
            meter: Meter::new(tell, trees.map(|tree| tree.bytes).sum()),
        };
        let mut reused = 0;
        let image = self.send_image(&line, &plan, &mut reused).await?;
        let mut input = None;
        if let Some(tree) = &plan.input {
            let sent = self.send_tree(&line, "input", tree).await?;
            reused += sent.reused;
            input = Some(sent.snapshot);
        }
        let mut data = Vec::with_capacity(plan.data.len());
        for (at, tree) in &plan.data {
            let sent = self.send_tree(&line, "data", tree).await?;
            reused += sent.reused;
            data.push(DataInput { at: at.clone(), snapshot: sent.snapshot, bytes: sent.bytes });
        }
        let secrets: BTreeMap<String, String> = request
            .what
            .secrets
            .into_iter()
            .filter(|(name, _)| plan.spec.secrets.contains_key(name))
            .collect();
        let sealed = JobSecrets { chunk_key: line.chunk_key.clone(), secrets }.seal(&job_key)?;
        let keys = wrap_for(&job_key, &job, &member.client.devices().await?)?;
        let submit = Submit { job, spec: plan.spec, image, input, data, keys, sealed };
        Ok(Ready { client: member.client.clone(), submit, sent: line.meter.sent_so_far(), reused })
    }

    async fn send_tree(&self, line: &Line, kind: &str, tree: &Tree) -> Result<Sent, Problem> {
        let what = [kind.as_bytes(), b"\0", tree.root.as_os_str().as_bytes()].concat();
        let memory = self.memory(line, &what)?;
        line.folder(memory, tree).await
    }

    /// An image that no registry has travels as the files of its archive.
    async fn send_image(&self, line: &Line, plan: &Plan, reused: &mut u64) -> Result<Image, Problem> {
        let reference = plan.spec.image.clone();
        let local = match &plan.image {
            Found::Registry { digest } => return Ok(Image::Registry { reference, digest: digest.clone() }),
            Found::NotLooked => return Ok(Image::Registry { reference, digest: None }),
            Found::Here(local) => local,
        };
        let memory = self.memory(line, &[b"image\0", local.id.as_bytes()].concat())?;
        let before = match memory.last() {
            Some((manifest, _)) => line.again(&manifest).await?,
            None => None,
        };
        let sent = match before {
            Some(sent) => sent,
            None => self.send_archive(line, &reference, local, memory).await?,
        };
        *reused += sent.reused;
        Ok(Image::Layers { reference, image_id: local.id.clone(), snapshot: sent.snapshot })
    }

    /// An engine that breaks off says nothing of it in the archive: it is asked again.
    async fn send_archive(
        &self,
        line: &Line,
        reference: &str,
        local: &LocalImage,
        memory: Memory,
    ) -> Result<Sent, Problem> {
        for _ in 1..EXPORTS {
            let archive = self.images.export(reference).await?;
            match line.archive(memory.clone(), archive, local).await {
                Err(problem) if problem.code == Code::EngineAway => tracing::warn!(%problem, reference),
                done => return done,
            }
        }
        let archive = self.images.export(reference).await?;
        line.archive(memory, archive, local).await
    }

    fn memory(&self, line: &Line, what: &[u8]) -> Result<Memory, Problem> {
        Memory::open(&self.dirs, &line.chunk_key, what).map_err(|error| {
            Problem::new(Code::Internal, "what was sent can't be looked up").with_detail(error.to_string())
        })
    }
}

/// All that it names is at the relay.
struct Ready {
    client: RelayClient,
    submit: Submit,
    sent: u64,
    reused: u64,
}

impl Ready {
    async fn submit(self) -> Result<SubmitProgress, Problem> {
        let submitted = self.client.submit(&self.submit).await?;
        Ok(SubmitProgress::Submitted { job: submitted.job, sent: self.sent, reused: self.reused })
    }
}

fn check(plan: &Plan, request: &SubmitRequest) -> Result<(), Problem> {
    if plan.spec.image.is_empty() {
        let fix = plan.image_suggested.as_deref().map_or_else(
            || "name one with --image, or write a gpunion.toml".to_owned(),
            |image| format!("by what is in it, --image {image} may fit; or write a gpunion.toml"),
        );
        return Err(Problem::new(Code::BadSpec, "no image is named for this folder").with_detail(fix));
    }
    plan.spec.check().map_err(|error: BadSpec| Problem::new(Code::BadSpec, error.to_string()))?;
    if let Some(name) = plan.secrets_missing.first() {
        return Err(Problem::new(Code::BadSpec, format!("the secret {name} has no value"))
            .with_detail(format!("set {name} in the environment of the command")));
    }
    if !request.accepted {
        return Err(Problem::new(Code::BadRequest, "nothing is sent before its preview was accepted"));
    }
    // The folder was read twice: for the eyes, and to be sent.
    if request.seen.is_some() && request.seen != Some(plan.digest()?) {
        return Err(Problem::new(Code::Conflict, "the folder or its spec changed after it was shown")
            .with_detail("nothing was sent; run it again, and look at what it shows"));
    }
    Ok(())
}

fn new_job_id() -> Result<JobId, Problem> {
    let mut random = [0; 10];
    getrandom::fill(&mut random).map_err(|error| {
        Problem::new(Code::Internal, "the system gives no random bytes").with_detail(error.to_string())
    })?;
    Ok(JobId::new(u64::try_from(clock::wall().0).unwrap_or(0), random))
}

impl Line {
    async fn archive(&self, memory: Memory, archive: Archive, image: &LocalImage) -> Result<Sent, Problem> {
        let total = image.bytes;
        let meter = self.meter.clone();
        let mut seen = 0;
        let counted = archive.inspect(move |piece| {
            seen += piece.as_ref().map_or(0, Bytes::len) as u64;
            meter.image(seen, total);
        });
        let reader = Blocking { stream: counted.boxed(), handle: Handle::current(), piece: Bytes::new() };
        let job_key = self.job_key.clone();
        self.send(memory, move |mut writer, _parent| {
            image_archive::files_of(reader, &mut writer)?;
            Ok((writer.finish(&job_key)?, None))
        })
        .await
    }
}

/// A stream as a reader, for a thread that may block.
struct Blocking {
    stream: Archive,
    handle: Handle,
    piece: Bytes,
}

impl io::Read for Blocking {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.handle.block_on(self.stream.next()) {
                Some(piece) => self.piece = piece.map_err(io::Error::other)?,
                None => return Ok(0),
            }
        }
        let count = self.piece.len().min(into.len());
        into[..count].copy_from_slice(&self.piece.split_to(count));
        Ok(count)
    }
}
