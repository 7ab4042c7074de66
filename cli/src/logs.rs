//! A job's output, as it was and as it comes.

use std::process::ExitCode;
use std::time::Duration;

use futures_util::StreamExt as _;
use gpunion_protocol::http::LogPiece;
use gpunion_protocol::ids::JobId;
use gpunion_protocol::job::{JobState, JobView};
use gpunion_protocol::local::LogEvent;
use gpunion_protocol::units::Bytes;
use reqwest::Method;

use crate::api::Api;
use crate::args::{Logs, Place};
use crate::failure::{DETACHED, Failure, UNREACHABLE};
use crate::out::Out;
use crate::run::goes_on;
use crate::show;

/// How often the job's state is asked for while its output is followed.
const STATE_EVERY: Duration = Duration::from_secs(1);
/// An agent that restarts is waited for so long.
const AWAY: Duration = Duration::from_secs(60);

pub(crate) async fn logs(place: &Place, asked: Logs, out: &Out) -> Result<ExitCode, Failure> {
    let api = Api::new(place)?;
    let job = api.job(&asked.job).await?.id;
    if !asked.follow {
        let mut screen = Screen::new(out, asked.from);
        read(&api, &job, false, &mut screen).await?;
        return Ok(ExitCode::SUCCESS);
    }
    tokio::select! {
        done = follow(&api, &job, asked.from, out) => done.map(|_| ExitCode::SUCCESS),
        _ = tokio::signal::ctrl_c() => {
            out.say("\nthe job goes on");
            Ok(ExitCode::from(DETACHED))
        }
    }
}

/// Why following ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Followed {
    Over,
    /// Whoever read the output has gone.
    NobodyReads,
}

/// Shows output and changes of state until the job is over. A failure before that says that the
/// job goes on.
pub(crate) async fn follow(api: &Api, job: &JobId, from: u64, out: &Out) -> Result<Followed, Failure> {
    match watch(api, job, from, out).await {
        Err(failure) => {
            let view = api.get::<JobView>(&format!("/v1/jobs/{job}")).await;
            let over = view.is_ok_and(|view| view.state.is_final());
            Err(if over { failure } else { goes_on(failure, job) })
        }
        done => done,
    }
}

async fn watch(api: &Api, job: &JobId, from: u64, out: &Out) -> Result<Followed, Failure> {
    let mut screen = Screen::new(out, from);
    let mut states = std::pin::pin!(states(api, job, out));
    loop {
        let broke = tokio::select! {
            over = read(api, job, true, &mut screen) => match over {
                Ok(_) if out.unread() => return Ok(Followed::NobodyReads),
                Ok(true) => return Ok(Followed::Over),
                Ok(false) => None,
                Err(failure) if failure.exit == UNREACHABLE => Some(failure),
                Err(failure) => return Err(failure),
            },
            never = &mut states => match never {},
        };
        // The agent restarts, perhaps; the job does not care.
        if let Some(failure) = broke {
            wait_for_agent(api, job).await.map_err(|_| failure)?;
        }
    }
}

async fn wait_for_agent(api: &Api, job: &JobId) -> Result<(), tokio::time::error::Elapsed> {
    tokio::time::timeout(AWAY, async {
        while api.get::<JobView>(&format!("/v1/jobs/{job}")).await.is_err() {
            tokio::time::sleep(STATE_EVERY).await;
        }
    })
    .await
}

/// Tells each change of the job's state; never ends.
async fn states(api: &Api, job: &JobId, out: &Out) -> std::convert::Infallible {
    let mut told = String::new();
    loop {
        if let Ok(view) = api.get::<JobView>(&format!("/v1/jobs/{job}")).await {
            let now = sentence(&view);
            if now != told && !view.state.is_final() {
                out.say(&format!("── {now}"));
                told = now;
            }
        }
        tokio::time::sleep(STATE_EVERY).await;
    }
}

pub(crate) fn sentence(view: &JobView) -> String {
    // One that is prepared ahead has nothing to say yet.
    let runs = view.state == JobState::Running;
    let mut attempts = view.attempts.iter().rev();
    let attempt = attempts.find(|attempt| !runs || !attempt.state.is_before_running());
    let place = attempt.map(|attempt| {
        let standin = if attempt.standin { " (stand-in GPU)" } else { "" };
        format!(" on {}{standin}", show::clean(&attempt.device_name))
    });
    let place = place.unwrap_or_default();
    match &view.state {
        JobState::Queued { why } => format!("queued: {}", show::clean(why)),
        JobState::Held { why } => format!("held: {}", show::clean(why)),
        JobState::Placed => format!("preparing{place}"),
        JobState::Running => format!("running{place}"),
        JobState::Moving => "moving to another provider".to_owned(),
        JobState::Succeeded => "succeeded".to_owned(),
        JobState::Failed { cause } => format!("failed: {}", show::clean(&cause.sentence())),
        JobState::Cancelled => "cancelled".to_owned(),
    }
}

/// True when the job is over and its log complete.
async fn read(api: &Api, job: &JobId, follow: bool, screen: &mut Screen<'_>) -> Result<bool, Failure> {
    let path = format!("/v1/jobs/{job}/log?from={}&follow={}", screen.next, u8::from(follow));
    let mut pieces = api.events::<(), LogEvent>(Method::GET, &path, None).await?;
    while let Some(piece) = pieces.next().await {
        match piece? {
            LogEvent::Piece(piece) => {
                let over = screen.show(&piece)?;
                if over || screen.out.unread() {
                    return Ok(over);
                }
            }
            LogEvent::Problem { problem } => return Err(problem.into()),
        }
    }
    Ok(false)
}

struct Screen<'a> {
    out: &'a Out,
    next: u64,
    /// The program's last byte did not end a line.
    open: bool,
}

impl<'a> Screen<'a> {
    fn new(out: &'a Out, next: u64) -> Self {
        Self { out, next, open: false }
    }

    fn show(&mut self, piece: &LogPiece) -> Result<bool, Failure> {
        if self.out.json() {
            self.out.answer(piece, |_| String::new())?;
        }
        match piece {
            LogPiece::Bytes { next, bytes } => {
                self.next = *next;
                if !self.out.json() {
                    self.out.bytes(&bytes.0)?;
                }
                self.open = bytes.0.last().map_or(self.open, |last| *last != b'\n');
            }
            LogPiece::Attempt { next, number, device_name } => {
                self.next = *next;
                self.mark(&format!("attempt {number} on {}", show::clean(device_name)));
            }
            LogPiece::Gap { next, bytes } => {
                self.next = *next;
                self.mark(&format!("{} of output were dropped", Bytes(*bytes)));
            }
            LogPiece::End { next } => {
                self.next = *next;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn mark(&mut self, text: &str) {
        let line = if std::mem::take(&mut self.open) { "\n" } else { "" };
        self.out.say(&format!("{line}── {text}"));
    }
}
