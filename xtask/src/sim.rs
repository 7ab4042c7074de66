//! `cargo xtask sim`: builds the simulated world and runs it.

use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::build::programs;
use crate::command::{self, cargo, root};
use crate::setup;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How many worlds, each from its own seed; 100, or 1 with --seed.
    #[arg(long)]
    seeds: Option<u64>,
    /// The first seed: the one that a failure printed.
    #[arg(long)]
    seed: Option<u64>,
    /// Of that world only these parts, as a shortened failure names them.
    #[arg(long, requires = "seed")]
    only: Option<String>,
    /// Install what is missing without asking.
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    setup::ready(setup::FOR_SIM, options.yes)?;
    command::run(&mut cargo(&["build", "--package", "system-tests", "--bin", "sim"]))?;
    let mut sim = Command::new(programs()?.join("sim"));
    let seeds = options.seeds.unwrap_or(if options.seed.is_some() { 1 } else { 100 });
    sim.current_dir(root()).args(["--seeds", &seeds.to_string()]);
    if let Some(seed) = options.seed {
        sim.args(["--seed", &seed.to_string()]);
    }
    if let Some(only) = &options.only {
        sim.args(["--only", only]);
    }
    let status = sim.status().context("starting the simulation")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
