//! Runs simulated worlds on all cores and tells what they were made of. When one did not hold: its
//! seed, the same world made small, its trace, and exit code 1. `--steps` alone runs worlds until so
//! many steps are done; with `--pairs` every pair of state and event must have come about too.
#![expect(clippy::print_stdout, reason = "a program for the terminal")]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Parser;
use serde_json::json;
use system_tests::sim::{self, Outcome, Pairs, Part, Script, Short, Stats};

#[derive(Debug, Parser)]
#[command(about = "Relay and three providers in a virtual world")]
struct Options {
    /// How many worlds, each from its own seed.
    #[arg(long)]
    seeds: Option<u64>,
    /// The first seed.
    #[arg(long)]
    seed: Option<u64>,
    /// With --seeds or --seed: steps of trouble in each world. Alone: steps in all.
    #[arg(long)]
    steps: Option<u64>,
    /// With --seed: nothing but these parts of that world, as a shortened failure names them.
    #[arg(long, value_delimiter = ' ', requires = "seed")]
    only: Option<Vec<Part>>,
    /// Fails when a pair of state and event that can be reached was not, and prints all.
    #[arg(long)]
    pairs: bool,
    /// A failure is told as it is, not made small first.
    #[arg(long)]
    long: bool,
    /// Of a failure's trace so many lines, the last.
    #[arg(long, default_value_t = 60)]
    lines: usize,
    /// One JSON object on one line, the last of stdout.
    #[arg(long)]
    json: bool,
}

/// What all worlds together were made of.
#[derive(Default)]
struct Total {
    worlds: u64,
    stats: Stats,
    pairs: Pairs,
    /// The first that failed.
    failed: Option<Outcome>,
    /// Worlds that are done before one of a smaller seed is.
    early: BTreeMap<u64, Outcome>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let alone = options.seeds.is_none() && options.seed.is_none();
    let world = options.steps.filter(|_| !alone).unwrap_or(sim::WORLD);
    let first = options.seed.unwrap_or(1);
    let script = options.only.clone().map_or_else(Script::default, Script::of);
    let enough = options.steps.filter(|_| alone);
    let worlds = options.seeds.unwrap_or(if alone { 20 } else { 1 });
    let total = live(first, world, &script, |number, steps| match enough {
        Some(enough) => steps < enough,
        None => number < worlds,
    });
    let complaints = if options.pairs { total.pairs.complaints() } else { Vec::new() };
    let holds = total.failed.is_none() && complaints.is_empty();
    let Total { worlds, stats, pairs, failed, early: _ } = total;
    let short = failed.map(|outcome| {
        if options.long || options.only.is_some() {
            told_whole(&outcome, world, script)
        } else {
            println!("seed {} does not hold; making it small", outcome.seed);
            sim::shorten(outcome, world)
        }
    });
    if let Some(short) = &short {
        tell(short, world, options.lines);
    }
    if options.json {
        println!("{}", as_json(holds, worlds, &stats, &complaints, short.as_ref()));
    } else {
        println!("{worlds} worlds from seed {first}");
        print_stats(&stats);
        let (reached, can_be) = pairs.reached();
        println!("{:>24}  {reached} of {can_be}", "pairs reached");
    }
    if options.pairs {
        println!("{}", pairs.print());
    }
    for what in &complaints {
        println!("{what}");
    }
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Worlds from this seed on, as long as `goes_on` (worlds, their steps) says so. They are added up in
/// the order of their seeds, so that the sum is the same on any number of cores.
fn live(first: u64, steps: u64, script: &Script, goes_on: impl Fn(u64, u64) -> bool + Sync) -> Total {
    let begun = AtomicU64::new(0);
    let total = Mutex::new(Total::default());
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let work = || {
        loop {
            let number = begun.fetch_add(1, Ordering::Relaxed);
            let Ok(over) = total.lock().map(|total| total.is_over(number, &goes_on)) else { return };
            if over {
                return;
            }
            let outcome = sim::run_parts(first + number, steps, script.clone());
            let Ok(mut total) = total.lock() else { return };
            total.early.insert(number, outcome);
            total.take_in(&goes_on);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(work);
        }
    });
    total.into_inner().unwrap_or_default()
}

impl Total {
    fn is_over(&self, number: u64, goes_on: &impl Fn(u64, u64) -> bool) -> bool {
        self.failed.is_some() || !goes_on(number, 0) || !goes_on(self.worlds, self.stats.steps)
    }

    /// What has no gap before it.
    fn take_in(&mut self, goes_on: &impl Fn(u64, u64) -> bool) {
        while !self.is_over(self.worlds, goes_on)
            && let Some(outcome) = self.early.remove(&self.worlds)
        {
            self.worlds += 1;
            self.stats.add(&outcome.stats);
            self.pairs.add(&outcome.pairs);
            self.failed = Some(outcome).filter(|outcome| outcome.failure.is_some());
        }
    }
}

fn told_whole(outcome: &Outcome, steps: u64, script: Script) -> Short {
    let parts: Vec<Part> = outcome.happened.clone();
    Short { of: parts.len(), parts, outcome: sim::run_traced(outcome.seed, steps, script) }
}

fn tell(short: &Short, steps: u64, lines: usize) {
    let Short { of, parts, outcome } = short;
    let Some(failure) = &outcome.failure else { return };
    for line in failure.last(lines) {
        println!("{line}");
    }
    let seed = outcome.seed;
    println!("seed {seed}, step {}: {}", failure.step, failure.what);
    println!("again, whole:  cargo xtask sim --seed {seed}   (worlds of {steps} steps)");
    if parts.len() < *of {
        let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
        println!(
            "{} of its {of} parts do: cargo xtask sim --seed {seed} --only \"{}\"",
            parts.len(),
            parts.join(" ")
        );
    }
}

fn as_json(
    ok: bool,
    worlds: u64,
    stats: &Stats,
    complaints: &[String],
    short: Option<&Short>,
) -> serde_json::Value {
    let failure = short.and_then(|short| {
        let failure = short.outcome.failure.as_ref()?;
        let parts: Vec<String> = short.parts.iter().map(ToString::to_string).collect();
        let seed = short.outcome.seed;
        Some(json!({ "seed": seed, "step": failure.step, "what": failure.what, "parts": parts, "trace": failure.last(60) }))
    });
    json!({ "ok": ok, "worlds": worlds, "stats": stats, "pairs": complaints, "failure": failure })
}

fn print_stats(total: &Stats) {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(total) else { return };
    for (name, value) in fields {
        println!("{:>24}  {value}", name.replace('_', " "));
    }
}
