//! `run` and `submit`: send a job, and follow it.

use std::process::ExitCode;

use gpunion_protocol::ids::JobId;
use gpunion_protocol::job::{JobState, JobView};

use crate::api::Api;
use crate::args::{Place, Thing};
use crate::failure::{DETACHED, FAILED, Failure, UNREACHABLE};
use crate::logs::{self, Followed};
use crate::out::Out;
use crate::send::{Sent, send};
use crate::show;

pub(crate) async fn run(place: &Place, thing: Thing, out: &Out) -> Result<ExitCode, Failure> {
    let api = Api::new(place)?;
    let (submitted, job) = match send(&api, thing, out).await? {
        Sent::Submitted(submitted, job) => (submitted, job),
        Sent::Declined => return Ok(ExitCode::from(FAILED)),
        Sent::Interrupted => return Ok(ExitCode::from(DETACHED)),
    };
    if out.json() {
        out.answer(&submitted, |_| String::new())?;
    }
    follow(&api, &job, out).await
}

pub(crate) async fn submit(place: &Place, thing: Thing, out: &Out) -> Result<ExitCode, Failure> {
    let api = Api::new(place)?;
    let (submitted, job) = match send(&api, thing, out).await? {
        Sent::Submitted(submitted, job) => (submitted, job),
        Sent::Declined => return Ok(ExitCode::from(FAILED)),
        Sent::Interrupted => return Ok(ExitCode::from(DETACHED)),
    };
    out.answer(&submitted, |_| job.to_string())?;
    out.say(&format!("follow it with: gpunion logs -f {job}"));
    Ok(ExitCode::SUCCESS)
}

/// Follows a job to its end; Ctrl-C lets go of it.
async fn follow(api: &Api, job: &JobId, out: &Out) -> Result<ExitCode, Failure> {
    let interrupted = tokio::signal::ctrl_c();
    let followed = tokio::select! {
        followed = logs::follow(api, job, 0, out) => followed?,
        _ = interrupted => {
            out.say(&format!(
                "\ndetached; the job goes on\n  come back with: gpunion logs -f {job}\n  cancel it with: gpunion cancel {job}"
            ));
            return Ok(ExitCode::from(DETACHED));
        }
    };
    match followed {
        Followed::Over => {}
        Followed::NobodyReads => return Ok(ExitCode::SUCCESS),
    }
    let view: JobView = api.get(&format!("/v1/jobs/{job}")).await.map_err(|failure| goes_on(failure, job))?;
    if out.json() {
        out.answer(&view, |_| String::new())?;
    }
    let (sentence, code) = match &view.state {
        JobState::Succeeded => (format!("succeeded; its result: gpunion fetch {job}"), ExitCode::SUCCESS),
        JobState::Failed { cause } => (format!("failed: {}", cause.sentence()), ExitCode::from(FAILED)),
        JobState::Cancelled => ("cancelled".to_owned(), ExitCode::from(FAILED)),
        // Not the job's failure: only that it can't be followed for now.
        JobState::Queued { .. }
        | JobState::Placed
        | JobState::Running
        | JobState::Moving
        | JobState::Held { .. } => (
            format!(
                "is {}, though its output ended; the job goes on: gpunion logs -f {job}",
                view.state.word()
            ),
            ExitCode::from(UNREACHABLE),
        ),
    };
    out.say(&format!("{} {sentence}", show::clean(&view.spec.name)));
    Ok(code)
}

/// A follower that is cut off says nothing about the job.
pub(crate) fn goes_on(mut failure: Failure, job: &JobId) -> Failure {
    let why = failure.problem.detail.take().map_or_else(String::new, |detail| format!("{detail}\n  "));
    failure.problem.detail = Some(format!("{why}the job goes on: gpunion logs -f {job}"));
    if failure.exit == FAILED {
        failure.exit = UNREACHABLE;
    }
    failure
}
