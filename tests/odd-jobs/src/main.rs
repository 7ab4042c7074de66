//! Programs of members that do not do what a good one does: one that never saves, one that hears
//! no SIGTERM, one whose files are half written at any moment, one that leaves children about, one
//! with a large state.
//!
//! `odd-jobs KIND STEPS MILLISECONDS` takes so many steps of that length in the folder that it is
//! started in, goes on from what it finds there, and leaves `result.txt`. Whatever is done to it
//! on the way, the folder it ends with depends on kind and steps alone.

mod big;
mod chain;
mod forks;
mod saved;
mod torn;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};

use chain::State;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["part", x] => forks::part(x),
        ["linger"] => forks::linger(),
        [kind, steps, milliseconds] => run(kind, steps, milliseconds),
        _ => Err("usage: odd-jobs KIND STEPS MILLISECONDS".to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "odd-jobs: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(kind: &str, steps: &str, milliseconds: &str) -> Result<(), String> {
    let steps: u64 = steps.parse().map_err(words)?;
    let pause = Duration::from_millis(milliseconds.parse().map_err(words)?);
    let x = match kind {
        "never-saves" => chain::walk(State::default(), steps, pause, |_| Ok(()))?,
        "deaf" => deaf(steps, pause)?,
        "torn" => torn::run(steps, pause)?,
        "forks" => forks::run(steps, pause)?,
        "big" => big::run(steps, pause)?,
        _ => return Err(format!("no kind is called {kind}")),
    };
    saved::replace("result.txt", format!("{kind} {steps} {x:016x}\n").as_bytes())
}

/// Saves each step and tells nobody; hears nothing that can be kept out.
fn deaf(steps: u64, pause: Duration) -> Result<u64, String> {
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None).map_err(words)?;
    let begin = saved::load("state.txt")?.unwrap_or_default();
    chain::walk(begin, steps, pause, |state| saved::save("state.txt", state))
}

/// A line of output; nobody who reads is no reason to stop.
fn say(line: &str) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn words<E: std::fmt::Display>(error: E) -> String {
    error.to_string()
}
