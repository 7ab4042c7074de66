//! `cargo xtask`: everything that is done with this repository, beyond building it.
//!
//! Small in dependencies, since it is the first thing that a stranger compiles. It knows how to
//! get a fresh machine ready, what to build and in which order; what is tested, and what the demo
//! shows, is in `tests/`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

mod bench;
mod build;
mod command;
mod demo;
mod deny;
mod handover;
mod mutants;
mod setup;
mod sim;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Builds, tests and shows GPUnion. On a fresh machine start with `cargo xtask demo`: it asks
/// before it installs anything.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Shows the product at work on this machine: two providers, a job, a reclaim.
    ///
    /// Installs what is missing (a container engine), builds, starts a relay and two providers
    /// with an engine and a stand-in GPU each, runs a training there, reclaims the GPU under it,
    /// and shows it finish on the other. Needs root for the engines and their users (by sudo);
    /// everything shown runs as ordinary users. Cleans up behind itself.
    Demo(demo::Options),
    /// Runs all checks and tests, as CI does.
    ///
    /// Installs what they need, then: format, lint, licences and bans, unit and property tests,
    /// the programs that run in guests, the simulation, and the system tests on real engines.
    /// With --mutants instead: puts small mistakes into both machines, one at a time, and tells
    /// which the tests did not notice.
    ///
    /// Nothing is skipped. Prints minutes and counts by part, at the end one line that says
    /// whether all held.
    Test(test::Options),
    /// Runs the simulated world: one relay, three providers, and every kind of bad luck.
    ///
    /// A failure prints its seed and trace; `--seed S` runs that world again, step by step the
    /// same.
    Sim(sim::Options),
    /// Measures what GPUnion costs, each figure beside a rival's in the same run.
    ///
    /// Installs what the rivals need, builds as it would be shipped, and prints a table of ratios
    /// with what each is aimed at. It says more on a machine that does nothing else. Needs root for
    /// the engines and their users (by sudo), and 5 GB on the disk of /var/tmp. Cleans up behind
    /// itself, also on Ctrl-C.
    Bench(bench::Options),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().task {
        Task::Demo(options) => demo::run(&options),
        Task::Test(options) => test::run(&options),
        Task::Sim(options) => sim::run(&options),
        Task::Bench(options) => bench::run(&options),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
