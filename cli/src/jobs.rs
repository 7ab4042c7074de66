//! The member's jobs: listed, shown, explained, cancelled.

use std::process::ExitCode;

use gpunion_agent_core::relay_link::jobs::JOBS_MAX;
use gpunion_protocol::job::{AttemptState, JobState, JobView, Quality};
use gpunion_protocol::units::Bytes;

use crate::api::Api;
use crate::args::{Job, Jobs, Place};
use crate::failure::Failure;
use crate::out::Out;
use crate::{logs, show};

pub(crate) async fn list(place: &Place, asked: Jobs, out: &Out) -> Result<ExitCode, Failure> {
    let path = if asked.active { "/v1/jobs?state=open" } else { "/v1/jobs" };
    let mut jobs: Vec<JobView> = Api::new(place)?.get(path).await?;
    jobs.sort_by(|a, b| b.id.cmp(&a.id));
    out.answer(&jobs, |jobs| {
        if jobs.is_empty() {
            return "you have no jobs; submit one with `gpunion run FOLDER`".to_owned();
        }
        let rows: Vec<Vec<String>> = jobs
            .iter()
            .map(|job| {
                vec![
                    job.id.to_string(),
                    job.spec.name.clone(),
                    show::time(job.submitted),
                    logs::sentence(job),
                ]
            })
            .collect();
        show::table(&["JOB", "NAME", "SUBMITTED", "STATE"], &rows)
    })?;
    if jobs.len() >= JOBS_MAX {
        out.say(&format!("these are the newest {JOBS_MAX}; there may be older ones"));
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn show(place: &Place, asked: Job, out: &Out) -> Result<ExitCode, Failure> {
    let api = Api::new(place)?;
    let found = api.job(&asked.job).await?;
    // What a list leaves out, the job itself has.
    let job: JobView = api.get(&format!("/v1/jobs/{}", found.id)).await?;
    out.answer(&job, describe)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn why(place: &Place, asked: Job, out: &Out) -> Result<ExitCode, Failure> {
    let job = Api::new(place)?.job(&asked.job).await?;
    out.answer(&job.state, |state| match state {
        JobState::Queued { why } | JobState::Held { why } => show::clean(why),
        JobState::Failed { cause } => show::clean(&cause.sentence()),
        JobState::Placed
        | JobState::Running
        | JobState::Moving
        | JobState::Succeeded
        | JobState::Cancelled => logs::sentence(&job),
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn cancel(place: &Place, asked: Job, out: &Out) -> Result<ExitCode, Failure> {
    let api = Api::new(place)?;
    let job = api.job(&asked.job).await?;
    let job: JobView = api.post(&format!("/v1/jobs/{}/cancel", job.id), &serde_json::json!({})).await?;
    out.answer(&job, |job| format!("{} {}", job.id, logs::sentence(job)))?;
    Ok(ExitCode::SUCCESS)
}

fn describe(job: &JobView) -> String {
    let mut text = format!(
        "{}  {}\nstate      {}\nimage      {}\nsubmitted  {}\n",
        job.id,
        show::clean(&job.spec.name),
        logs::sentence(job),
        show::clean(job.image.reference()),
        show::time(job.submitted)
    );
    if !job.attempts.is_empty() {
        let rows: Vec<Vec<String>> = job
            .attempts
            .iter()
            .map(|attempt| {
                let standin = if attempt.standin { " (stand-in GPU)" } else { "" };
                vec![
                    attempt.number.to_string(),
                    format!("{}{standin}", attempt.device_name),
                    show::opt_time(attempt.started),
                    show::opt_time(attempt.ended),
                    attempt.note.as_ref().map_or_else(
                        || attempt_state(&attempt.state),
                        |note| format!("{}: {note}", attempt_state(&attempt.state)),
                    ),
                ]
            })
            .collect();
        text.push('\n');
        text.push_str(&show::table(&["ATTEMPT", "ON", "STARTED", "ENDED", "STATE"], &rows));
        for attempt in &job.attempts {
            if let Some(moved) = &attempt.moved {
                text.push_str(&format!(
                    "attempt {} began after {} without computing; at most {} of work were lost\n",
                    attempt.number,
                    show::lasted(moved.idle.0),
                    show::lasted(moved.lost.0)
                ));
            }
        }
    }
    if !job.checkpoints.is_empty() {
        let rows: Vec<Vec<String>> = job
            .checkpoints
            .iter()
            .map(|checkpoint| {
                let quality = match checkpoint.quality {
                    Quality::Quiet => "the program had saved",
                    Quality::Running => "taken while it computed",
                };
                vec![
                    show::opt_time(checkpoint.at),
                    Bytes(checkpoint.bytes).to_string(),
                    Bytes(checkpoint.new_bytes).to_string(),
                    show::lasted(checkpoint.stopped.0),
                    quality.to_owned(),
                ]
            })
            .collect();
        text.push('\n');
        text.push_str(&show::table(&["CHECKPOINT", "SIZE", "NEW", "STOOD STILL", "QUALITY"], &rows));
    }
    match (&job.result, job.checkpoints.is_empty()) {
        (Some(_), _) => text.push_str(&format!("\nits result: gpunion fetch {}\n", job.id)),
        (None, false) => {
            text.push_str(&format!("\nits newest checkpoint: gpunion fetch {} --checkpoint\n", job.id))
        }
        (None, true) => {}
    }
    text
}

fn attempt_state(state: &AttemptState) -> String {
    match state {
        AttemptState::Reserved => "reserved".to_owned(),
        AttemptState::Preparing { .. } => "preparing".to_owned(),
        AttemptState::Ready => "ready".to_owned(),
        AttemptState::Running => "running".to_owned(),
        AttemptState::Stopped { .. } => "stopped".to_owned(),
        AttemptState::Saving => "saving".to_owned(),
        AttemptState::Ended { cause } => cause.sentence(),
    }
}
