//! The hand that writes: the files `end`, then the owner's word. A process of its own.
//!
//! A disk that hangs holds whoever writes to it, and no signal frees them: the process that the
//! owner waits for must never be the one. Lines of JSON go in, one line comes back for each.

use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};

use gpunion_agent_core::channel::write_end_file;
use gpunion_agent_core::driver::word;
use gpunion_agent_core::provider::word::Wanted;
use gpunion_protocol::time::WallMs;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::Instant;

/// The word on the command line that makes this program the hand; nobody types it.
const WORD: &str = "--hand-of-reclaim";

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Write {
    /// The control folder of a guest.
    End(PathBuf),
    Word {
        path: PathBuf,
        wanted: Wanted,
        at: WallMs,
    },
}

/// What came of it. `None`: it has not been done yet.
pub(super) type Written = Option<Result<(), String>>;

/// This process was started as the hand, and has done its work.
pub(crate) fn was_wanted() -> Option<ExitCode> {
    if std::env::args_os().nth(1)? != WORD {
        return None;
    }
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let done = match serde_json::from_str(&line) {
            Ok(Write::End(folder)) => write_end_file(&folder),
            Ok(Write::Word { path, wanted, at }) => word::add(&path, wanted, at),
            Err(error) => Err(std::io::Error::other(error)),
        };
        let said = done.map_err(|error| error.to_string());
        let Ok(text) = serde_json::to_string(&said) else { break };
        // Whoever asked may have ended; the rest is written all the same.
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }
    Some(ExitCode::SUCCESS)
}

/// What is still to come from the hand.
pub(super) struct Hand {
    // Held, not waited for: dropping it leaves the process to end by itself.
    _child: Option<Child>,
    answers: Result<Lines<BufReader<ChildStdout>>, String>,
    waiting: usize,
}

impl Hand {
    pub(super) fn begin(writes: &[Write]) -> Self {
        let mut hand = Self { _child: None, answers: Err(String::new()), waiting: writes.len() };
        match Self::start(writes) {
            Ok((child, answers)) => {
                hand._child = Some(child);
                hand.answers = Ok(answers);
            }
            Err(error) => hand.answers = Err(format!("nothing can be written: {error}")),
        }
        hand
    }

    fn start(writes: &[Write]) -> std::io::Result<(Child, Lines<BufReader<ChildStdout>>)> {
        let mut text = String::new();
        for write in writes {
            text.push_str(&serde_json::to_string(write)?);
            text.push('\n');
        }
        let mut command = Command::new("/proc/self/exe");
        command.arg(WORD).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // A Ctrl-C is for whoever waits.
        let mut child = command.process_group(0).spawn()?;
        if let Some(mut input) = child.stdin.take() {
            // More than a pipe holds goes when the hand takes it.
            tokio::spawn(async move { input.write_all(text.as_bytes()).await });
        }
        let output = child.stdout.take().ok_or_else(|| std::io::Error::other("it has no output"))?;
        Ok((child, BufReader::new(output).lines()))
    }

    /// The next answers, in the order of what was asked; what has not come by then is `None`.
    pub(super) async fn answers(&mut self, many: usize, until: Instant) -> Vec<Written> {
        let mut written = Vec::with_capacity(many);
        for _ in 0..many.min(self.waiting) {
            written.push(self.answer(until).await);
        }
        self.waiting -= written.iter().filter(|one| one.is_some()).count();
        written.resize_with(many, || None);
        written
    }

    async fn answer(&mut self, until: Instant) -> Written {
        let lines = match &mut self.answers {
            Ok(lines) => lines,
            Err(why) => return Some(Err(why.clone())),
        };
        let line = tokio::time::timeout_at(until, lines.next_line()).await.ok()?.ok().flatten()?;
        serde_json::from_str(&line).ok()
    }
}
