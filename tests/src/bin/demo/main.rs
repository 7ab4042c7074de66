//! The main job of GPUnion on real input, start to end, by commands that a user has.
//!
//! Two providers lend stand-in GPUs; a member trains on real handwritten digits there, an owner
//! takes a GPU back in the middle, and the job ends on the other provider with the same bytes.
//! Started by `cargo xtask demo`, as root for engines and users alone; what is shown runs as
//! ordinary users.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

mod report;
mod scenario;

use std::process::ExitCode;

use clap::Parser;
use system_tests::interrupt::{self, interrupted};

use report::Report;

/// Shows GPUnion at work on this machine: lend, run, reclaim, and the job goes on.
#[derive(Debug, Parser)]
struct Options {
    /// Print one JSON object, on one line, the last of stdout
    #[arg(long)]
    json: bool,
    /// Leave everything running, and say how to reach it
    #[arg(long)]
    keep: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Err(error) = interrupt::listen("demo") {
        eprintln!("demo: Ctrl-C can't be listened for: {error:#}");
        return ExitCode::FAILURE;
    }
    let mut report = Report::new(options.json);
    if let Err(error) = scenario::play(&mut report, options.keep) {
        // What broke off because of it is no failure of its own.
        report.failed(if interrupted() { "interrupted".to_owned() } else { format!("{error:#}") });
    }
    report.close()
}
