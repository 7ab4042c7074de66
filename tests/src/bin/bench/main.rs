//! What GPUnion costs, each figure beside a rival's that was measured in the same run.
//!
//! The machines that this runs on are shared and noisy: a time by itself says little, a ratio of
//! two that took turns says much. Started by `cargo xtask bench`, in a release build, as root for
//! engines and users alone. Nothing here judges a timed test; the tests judge what is right.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for the terminal")]

mod cpu;
mod endings;
mod first_log;
mod fleet;
mod lost_work;
mod relay;
mod rest;
mod rival;
mod snapshot;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use system_tests::interrupt;
use system_tests::lab::Lab;

use table::{Table, Wanted};

/// What is measured on a disk stands here: /tmp is in memory on some machines.
const ON_DISK: &str = "/var/tmp/gpunion-bench";
const USAGE: u8 = 2;

/// Measures what GPUnion costs, beside a rival in the same run.
#[derive(Debug, Parser)]
struct Options {
    /// Only those rows whose names begin so; all when none is named
    names: Vec<String>,
    /// Print one JSON object, on one line, the last of stdout
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

/// What must be a process of its own, so that its memory and CPU time are its own.
#[derive(Debug, Subcommand)]
enum Part {
    /// A relay whose limits let a thousand devices join from one address
    #[command(name = "relay-process", hide = true)]
    Relay { state: PathBuf },
    /// An authenticated TLS request and a durable commit, and nothing else
    #[command(name = "rival-process", hide = true)]
    Rival { state: PathBuf },
    /// One snapshot of a folder, its packs written to another
    #[command(name = "snapshot-process", hide = true)]
    Snapshot { folder: PathBuf, packs: PathBuf },
}

/// A measurement, and how the rows that it fills begin.
struct Bench {
    rows: &'static [&'static str],
    what: &'static str,
    measure: fn(&mut Table) -> Result<()>,
}

const BENCHES: &[Bench] = &[
    Bench {
        rows: &["reclaim_ended", "reclaim_verified"],
        what: "a reclaim against the engine's kill",
        measure: endings::measure,
    },
    Bench {
        rows: &["submit_to_first_log"],
        what: "submit to the first line, against docker run",
        measure: first_log::measure,
    },
    Bench {
        rows: &["relay_idle", "relay_submit"],
        what: "a relay with a thousand devices",
        measure: relay::measure,
    },
    Bench { rows: &["agent_rest"], what: "an agent at rest with 8 stand-in GPUs", measure: rest::measure },
    Bench {
        rows: &["lost_work"],
        what: "work that owners' departures cost, in the simulated world",
        measure: lost_work::measure,
    },
    Bench { rows: &["snapshot_cpu"], what: "a snapshot of 2 GiB against restic", measure: snapshot::measure },
];

/// A folder on a disk; it is removed with the value, or by the next one when this is killed.
fn on_disk() -> Result<Lab> {
    Lab::new(ON_DISK)
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = match &options.part {
        Some(Part::Relay { state }) => relay::serve(state),
        Some(Part::Rival { state }) => rival::serve(state),
        Some(Part::Snapshot { folder, packs }) => snapshot::take(folder, packs),
        None => return measure(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> ExitCode {
    let wanted = Wanted::new(&options.names);
    let chosen: Vec<&Bench> = BENCHES.iter().filter(|bench| wanted.any(bench.rows)).collect();
    let mut table = Table::new(wanted);
    if chosen.is_empty() {
        let known: Vec<&str> = BENCHES.iter().flat_map(|bench| bench.rows).copied().collect();
        eprintln!(
            "bench: no row begins with {}; there are: {}",
            options.names.join(" or "),
            known.join(", ")
        );
        table.broke_off();
        table.print(options.json);
        return ExitCode::from(USAGE);
    }
    if let Err(error) = interrupt::listen("bench").and_then(|()| run(&chosen, &mut table)) {
        // What broke off because of it is no failure of its own.
        let why = if interrupt::interrupted() { "interrupted".to_owned() } else { format!("{error:#}") };
        eprintln!("bench: {why}");
        table.broke_off();
    }
    table.print(options.json)
}

fn run(chosen: &[&Bench], table: &mut Table) -> Result<()> {
    for bench in chosen {
        interrupt::go_on()?;
        eprintln!("== {}", bench.what);
        (bench.measure)(table)?;
    }
    Ok(())
}
