//! `cargo xtask bench`: gets the machine ready, builds as it would be shipped, and hands over.
//!
//! What is measured, and how, is in `tests/src/bin/bench/`. stdout is the table's alone, or the
//! one object's with `--json`.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use crate::build::{build_guests, build_released, released};
use crate::command::{as_root, root};
use crate::handover::{Ended, hand_over, sweep};
use crate::setup;

/// Where the bench keeps what belongs on a disk, and on none in memory.
const ON_DISK: &str = "/var/tmp/gpunion-bench";

const ROWS: &str = "\
Rows, what each is measured against in the same run, and the most that its value may be:
  reclaim_ended        click to no process left; the engine's kill of the same container   0.5 x
  reclaim_verified     click to verified; the period in which NVML is read                 2 periods
  submit_to_first_log  gpunion run of a folder of 1 MB; docker run of the same             2 x
  relay_submit         1,000 devices, 50 clients; a bare TLS request and one commit        3 x
  agent_rest           8 stand-in GPUs; 30 MiB of memory, 0.5 % of a core                  all of it
  snapshot_cpu         CPU time for 2 GiB of random bytes; restic on the same              0.5 x
  lost_work            in the simulation: ours over that of requeue from scratch           0.1 x
                       and over that of a checkpoint each ten minutes                      0.5 x
  relay_idle           1,000 devices; 3 % of a core, 30 KiB a device                       all of it

Examples:
  cargo xtask bench                      all of it: about a quarter of an hour
  cargo xtask bench reclaim agent_rest   only these
  cargo xtask bench --yes --json         asks nothing; the last line of stdout is one object:
                                         {ok, rows: [{name, value, unit, against, aim, holds}]}

Exit code: 0 when every aim holds, 1 when one does not or something broke off, 2 usage.";

#[derive(Debug, clap::Args)]
#[command(after_long_help = ROWS)]
pub(crate) struct Options {
    /// Only rows whose names begin so; all when none is named.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Install what is missing without asking.
    #[arg(long)]
    yes: bool,
    /// Print one JSON object as the last line of stdout.
    #[arg(long)]
    json: bool,
}

/// With `--json` there is an object whatever happens: the bench's own, or one without rows.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let why = match measure(options) {
        Ok(Ended::With(code)) => return Ok(ExitCode::from(code)),
        Ok(Ended::Killed) => anyhow::anyhow!("the bench was killed"),
        Err(error) => error,
    };
    if options.json {
        println!("{}", json!({ "ok": false, "rows": [] }));
    }
    Err(why)
}

fn measure(options: &Options) -> Result<Ended> {
    setup::ready(setup::FOR_BENCH, options.yes)?;
    eprintln!("Building for release (some minutes the first time)");
    build_released()?;
    let programs = released()?;
    build_guests(&programs)?;
    let mut bench = as_root(programs.join("bench"))?;
    bench.current_dir(root());
    if options.json {
        bench.arg("--json");
    }
    // A name is never taken for one of the processes that the bench starts of itself.
    bench.arg("--").args(&options.names);
    let ended = hand_over(bench)?;
    // One that was killed could not clean up.
    sweep(&programs, None)?;
    sweep(&programs, Some(ON_DISK))?;
    Ok(ended)
}
