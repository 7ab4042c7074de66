//! A job's result, or its newest checkpoint, into a folder.

use std::path::PathBuf;
use std::process::ExitCode;

use futures_util::StreamExt as _;
use gpunion_protocol::job::JobView;
use gpunion_protocol::local::{FetchProgress, FetchRequest};
use gpunion_protocol::units::Bytes;
use indicatif::ProgressBar;
use reqwest::Method;

use crate::api::Api;
use crate::args::{Fetch, Place};
use crate::failure::Failure;
use crate::out::Out;
use crate::send::style;

pub(crate) async fn fetch(place: &Place, asked: Fetch, out: &Out) -> Result<ExitCode, Failure> {
    let api = Api::new(place)?;
    let job = api.job(&asked.job).await?;
    let into = asked.dir.unwrap_or_else(|| default_folder(&job));
    let into =
        std::path::absolute(&into).map_err(|error| Failure::usage(format!("{}: {error}", into.display())))?;
    let request = FetchRequest { into, checkpoint: asked.checkpoint, overwrite: asked.overwrite };
    let path = format!("/v1/jobs/{}/fetch", job.id);
    let mut progress = api.events::<_, FetchProgress>(Method::POST, &path, Some(&request)).await?;
    let bar = out.watched().then(|| {
        let bar = ProgressBar::new(0);
        bar.set_style(style());
        bar.set_message("fetching");
        bar
    });
    while let Some(step) = progress.next().await {
        match step? {
            FetchProgress::Fetching { bytes, total, .. } => {
                if let Some(bar) = &bar {
                    bar.set_length(total);
                    bar.set_position(bytes);
                }
            }
            done @ FetchProgress::Done { .. } => {
                bar.inspect(ProgressBar::finish_and_clear);
                out.answer(&done, |_| String::from(&sentence(&done)))?;
                return Ok(ExitCode::SUCCESS);
            }
            FetchProgress::Failed { problem } => {
                bar.inspect(ProgressBar::finish_and_clear);
                return Err(problem.into());
            }
        }
    }
    Err(Failure::unreachable("the agent broke off while it fetched").fix("run it again"))
}

fn sentence(done: &FetchProgress) -> String {
    match done {
        FetchProgress::Done { into, files, bytes } => {
            format!("{files} files, {} in {}", Bytes(*bytes), into.display())
        }
        FetchProgress::Fetching { .. } | FetchProgress::Failed { .. } => String::new(),
    }
}

/// A job's name may hold anything; a folder's may not.
fn default_folder(job: &JobView) -> PathBuf {
    let safe: String = job
        .spec
        .name
        .chars()
        .map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' })
        .collect();
    let safe = safe.trim_start_matches('.');
    PathBuf::from(format!("{}-results", if safe.is_empty() { "job" } else { safe }))
}
