//! Sends a job: shows what will leave this machine, asks, sends, and says what came of it, also
//! when it is interrupted.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use gpunion_protocol::ids::JobId;
use gpunion_protocol::job::JobView;
use gpunion_protocol::local::{Preview, PreviewRequest, SubmitProgress, SubmitRequest, Thing as What};
use gpunion_protocol::units::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use reqwest::Method;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::api::Api;
use crate::args::Thing;
use crate::failure::Failure;
use crate::out::Out;
use crate::prompt::{self, Interrupted};
use crate::{preview, show};

/// A job that was submitted while somebody pressed Ctrl-C is known to the relay by then.
const KNOWN: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(200);

pub(crate) enum Sent {
    /// The last step, and its job.
    Submitted(SubmitProgress, JobId),
    /// The member did not agree.
    Declined,
    /// Ctrl-C; what came of it was said.
    Interrupted,
}

pub(crate) async fn send(api: &Api, thing: Thing, out: &Out) -> Result<Sent, Failure> {
    let mut request = PreviewRequest {
        thing: what(&thing.thing)?,
        image: thing.image,
        name: thing.name,
        args: thing.args,
        secrets: BTreeMap::new(),
    };
    let caught = |error: std::io::Error| Failure::failed(format!("signals can't be caught ({error})"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(caught)?;
    let preview: Preview = tokio::select! {
        preview = api.post("/v1/preview", &request) => preview?,
        _ = interrupt.recv() => return Ok(nothing(out)),
    };
    out.say(&preview::describe(&preview, |name| std::env::var_os(name).is_some()));
    if preview.spec.image.is_empty() {
        let fix = preview.image_suggested.as_deref().map_or_else(
            || "name one with --image, or write a gpunion.toml".to_owned(),
            |image| format!("by what is in it, --image {image} may fit; or write a gpunion.toml"),
        );
        return Err(Failure::usage("no image is named for this folder").fix(fix));
    }
    if !thing.yes {
        if !out.can_ask() {
            return Err(
                Failure::usage("nobody can be asked whether to send it").fix("add --yes to send it unasked")
            );
        }
        match prompt::agree("Send it?").await? {
            Ok(true) => {}
            Ok(false) => {
                out.say("nothing was sent");
                return Ok(Sent::Declined);
            }
            Err(Interrupted) => return Ok(nothing(out)),
        }
    }
    for name in &preview.secrets_missing {
        match secret(name, out).await? {
            Ok(value) => request.secrets.insert(name.clone(), value),
            Err(Interrupted) => return Ok(nothing(out)),
        };
    }
    // What was agreed to is what is sent; --yes agrees to whatever there is.
    let seen = (!thing.yes).then_some(preview.digest);
    let submit = SubmitRequest { what: request, accepted: true, seen };
    let progress = api.events::<_, SubmitProgress>(Method::POST, "/v1/jobs", Some(&submit)).await?;
    follow(api, progress, interrupt, out).await
}

async fn secret(name: &str, out: &Out) -> Result<Result<String, Interrupted>, Failure> {
    match std::env::var(name) {
        Ok(value) => Ok(Ok(value)),
        Err(_) if out.can_ask() => {
            prompt::secret(&format!("value of the secret {}", show::clean(name))).await
        }
        Err(_) => Err(Failure::usage(format!("the secret {name} has no value"))
            .fix(format!("set {name} in the environment of this command"))),
    }
}

async fn follow(
    api: &Api,
    mut progress: impl Stream<Item = Result<SubmitProgress, Failure>> + Unpin,
    mut interrupt: Signal,
    out: &Out,
) -> Result<Sent, Failure> {
    let bar = Bar::new(out);
    let mut begun = None;
    loop {
        let step = tokio::select! {
            step = progress.next() => step,
            _ = interrupt.recv() => {
                bar.end();
                if begun.is_none() {
                    // It may be on its way.
                    let next = tokio::time::timeout(LOOK, progress.next()).await;
                    if let Ok(Some(Ok(SubmitProgress::Begun { job }))) = next {
                        begun = Some(job);
                    }
                }
                // The agent gives up what nobody waits for, unless the relay has been asked already.
                drop(progress);
                return Ok(let_go(api, begun.as_ref(), out).await);
            }
        };
        match step.transpose()? {
            Some(SubmitProgress::Begun { job }) => begun = Some(job),
            Some(submitted @ SubmitProgress::Submitted { .. }) => {
                bar.end();
                return said(submitted, out);
            }
            Some(SubmitProgress::Failed { problem }) => {
                bar.end();
                return Err(problem.into());
            }
            Some(
                step @ (SubmitProgress::Reading { .. }
                | SubmitProgress::Image { .. }
                | SubmitProgress::Sending { .. }),
            ) => bar.step(&step),
            None => break,
        }
    }
    bar.end();
    let failure = Failure::unreachable("the agent broke off while it sent");
    Err(failure.fix("run it again: what arrived is not sent twice"))
}

fn said(submitted: SubmitProgress, out: &Out) -> Result<Sent, Failure> {
    let SubmitProgress::Submitted { job, sent, reused } = &submitted else {
        return Err(Failure::failed("the job was not submitted"));
    };
    let (sent, reused) = (Bytes(*sent), Bytes(*reused));
    out.say(&format!("submitted as {job}; {sent} sent, {reused} were there already"));
    let job = job.clone();
    Ok(Sent::Submitted(submitted, job))
}

fn nothing(out: &Out) -> Sent {
    out.say("\nnothing was submitted");
    Sent::Interrupted
}

/// Whether the job was submitted all the same.
async fn let_go(api: &Api, begun: Option<&JobId>, out: &Out) -> Sent {
    let Some(job) = begun else { return nothing(out) };
    let known = tokio::time::timeout(KNOWN, async {
        while api.get::<JobView>(&format!("/v1/jobs/{job}")).await.is_err() {
            tokio::time::sleep(LOOK).await;
        }
    });
    if known.await.is_ok() {
        out.say(&format!(
            "\nit was submitted already, as {job}\n  follow it with: gpunion logs -f {job}\n  cancel it with: gpunion cancel {job}"
        ));
        return Sent::Interrupted;
    }
    out.say("\nnothing was submitted; what arrived is not sent twice");
    Sent::Interrupted
}

/// What is there is a folder or a spec; what looks like a path must be there.
fn what(word: &str) -> Result<What, Failure> {
    let path = Path::new(word);
    if path.exists() {
        let path = std::path::absolute(path).map_err(|error| Failure::usage(format!("{word}: {error}")))?;
        return Ok(What::Folder(path));
    }
    if word.starts_with(['.', '/', '~'])
        || word.ends_with('/')
        || word.ends_with(".toml")
        || word.ends_with(".json")
    {
        return Err(Failure::usage(format!("{word} does not exist"))
            .fix("name a folder, a gpunion.toml or a container image"));
    }
    Ok(What::Image(word.to_owned()))
}

/// Drawn only where somebody watches.
struct Bar(Option<ProgressBar>);

impl Bar {
    fn new(out: &Out) -> Self {
        Self(out.watched().then(|| {
            let bar = ProgressBar::new(0);
            bar.set_style(style());
            bar
        }))
    }

    fn step(&self, step: &SubmitProgress) {
        let Some(bar) = &self.0 else { return };
        match step {
            SubmitProgress::Reading { files, bytes, total } => {
                at(bar, *bytes, *total, format!("reading, {files} files"))
            }
            SubmitProgress::Image { bytes, total } => {
                at(bar, *bytes, total.unwrap_or(*bytes), "image".to_owned())
            }
            SubmitProgress::Sending { sent, total, files, .. } => {
                at(bar, *sent, *total, format!("sending, {files} files"))
            }
            SubmitProgress::Begun { .. }
            | SubmitProgress::Submitted { .. }
            | SubmitProgress::Failed { .. } => {}
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn at(bar: &ProgressBar, done: u64, total: u64, what: String) {
    bar.set_length(total);
    bar.set_position(done);
    bar.set_message(what);
}

pub(crate) fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_a_folder_or_an_image() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        assert_eq!(what(path).unwrap(), What::Folder(folder.path().to_owned()));
        assert_eq!(what("ghcr.io/lab/trainer:2").unwrap(), What::Image("ghcr.io/lab/trainer:2".to_owned()));
        assert!(what("./nothing-here").is_err());
    }
}
