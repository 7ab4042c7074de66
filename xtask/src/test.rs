//! `cargo xtask test`: every part in order, each with its minutes and its count.
//!
//! A part that fails does not hide the next; nothing is skipped, and a test that cargo ignores is
//! a failure.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::build::{TestProgram, build_all, build_guests, programs};
use crate::command::{self, as_root, cargo, root, show};
use crate::{deny, mutants, setup};

/// Steps of the simulated world that each run of the tests takes: with these, every pair of state and
/// event that can be reached is. The seeds are the same each time, and so is what they reach.
const SIM_STEPS: &str = "20000000";

/// The crate of the simulated world and of the tests on real engines.
const SYSTEM: &str = "system-tests";

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Install what is missing without asking.
    #[arg(long)]
    yes: bool,
    /// Instead: do the tests of both machines notice small mistakes in them? A sample.
    #[arg(long)]
    mutants: bool,
    /// How long the sample may take.
    #[arg(long, default_value_t = 20, requires = "mutants")]
    minutes: u64,
    /// Print one JSON object as the last line of stdout.
    #[arg(long)]
    json: bool,
}

/// Tests that were run, as their programs counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
    ignored: u64,
}

#[derive(Debug)]
struct Part {
    name: &'static str,
    took: Duration,
    count: Count,
    error: Option<String>,
}

#[expect(clippy::disallowed_methods, reason = "shows how long each part took")]
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    if options.mutants {
        setup::ready(setup::FOR_SIM, options.yes)?;
        return mutants::test(options.minutes);
    }
    let started = Instant::now();
    let mut parts = Vec::new();
    let mut part = |name, work: &mut dyn FnMut() -> Result<Count>| {
        println!("\n=== {name}");
        let started = Instant::now();
        let (count, error) = match work() {
            Ok(count) => (count, complaint(count)),
            Err(error) => (Count::default(), Some(format!("{error:#}"))),
        };
        if let Some(error) = &error {
            println!("{name}: {error}");
        }
        parts.push(Part { name, took: started.elapsed(), count, error });
    };
    let mut built = None;
    part("setup", &mut || plain(setup::ready(setup::FOR_TEST, options.yes)));
    part("format", &mut || plain(command::run(&mut cargo(&["fmt", "--all", "--check"]))));
    part("lint", &mut || plain(command::run(&mut lint())));
    part("licences and bans", &mut || plain(deny::check()));
    part("build", &mut || {
        built = Some(build_all()?);
        plain(build_guests(&programs()?))
    });
    part("unit and property tests", &mut || {
        let mut count = run_tests(&built, |test| !is_system(test), &[])?;
        count.add(count_tests(&mut cargo(&["test", "--workspace", "--doc"]))?);
        Ok(count)
    });
    part("simulation", &mut || plain(simulate(built.is_some())));
    part("system tests", &mut || {
        // Engines are heavy, and some tests measure: two at a time.
        run_tests(&built, is_system, &["--test-threads=2"])
    });
    Ok(report(&parts, started.elapsed(), options.json))
}

fn plain(result: Result<()>) -> Result<Count> {
    result.map(|()| Count::default())
}

fn lint() -> Command {
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

fn is_system(test: &TestProgram) -> bool {
    test.package == SYSTEM && test.is_integration
}

fn simulate(is_built: bool) -> Result<()> {
    if !is_built {
        bail!("not run: the build failed");
    }
    let mut sim = Command::new(programs()?.join("sim"));
    command::run(sim.current_dir(root()).args(["--steps", SIM_STEPS, "--pairs"]))
}

/// Runs test programs as cargo would, all of them even when one fails. Those of the system as
/// root, for its engines and users.
fn run_tests(
    built: &Option<Vec<TestProgram>>,
    wanted: impl Fn(&TestProgram) -> bool,
    arguments: &[&str],
) -> Result<Count> {
    let Some(built) = built else { bail!("not run: the build failed") };
    let mut total = Count::default();
    let mut broken = Vec::new();
    for test in built.iter().filter(|test| wanted(test)) {
        println!("\n     Running {} {}", test.package, test.target);
        let mut command =
            if is_system(test) { as_root(&test.executable)? } else { Command::new(&test.executable) };
        command.args(arguments).current_dir(&test.folder);
        match count_tests(&mut command) {
            Ok(count) => total.add(count),
            Err(error) => broken.push(format!("{error:#}")),
        }
    }
    if !broken.is_empty() {
        bail!("{} ({} tests passed)", broken.join("; "), total.passed);
    }
    Ok(total)
}

/// Shows what it prints and adds up its closing lines.
fn count_tests(command: &mut Command) -> Result<Count> {
    let shown = show(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {shown}"))?;
    let mut total = Count::default();
    if let Some(stdout) = child.stdout.take() {
        let mut out = std::io::stdout();
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line?;
            out.write_all(&line)?;
            out.write_all(b"\n")?;
            total.add(closing_line(&String::from_utf8_lossy(&line)).unwrap_or_default());
        }
    }
    let status = child.wait()?;
    // Failed tests are counted; a program that failed without one broke.
    if !status.success() && total.failed == 0 {
        bail!("{shown}: {status}");
    }
    Ok(total)
}

impl Count {
    fn add(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

/// `test result: ok. 3 passed; 0 failed; 0 ignored; …`
fn closing_line(line: &str) -> Option<Count> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut count = Count::default();
    for field in counts.split("; ") {
        match field.split_once(' ') {
            Some((n, "passed")) => count.passed = n.parse().ok()?,
            Some((n, "failed")) => count.failed = n.parse().ok()?,
            Some((n, "ignored")) => count.ignored = n.parse().ok()?,
            Some(_) | None => {}
        }
    }
    Some(count)
}

fn complaint(count: Count) -> Option<String> {
    match count {
        Count { failed: 0, ignored: 0, .. } => None,
        Count { failed: 0, ignored, .. } => Some(format!("{ignored} tests are ignored")),
        Count { failed, .. } => Some(format!("{failed} tests failed")),
    }
}

fn report(parts: &[Part], took: Duration, json: bool) -> ExitCode {
    println!("\n{:<26}{:>8}{:>8}", "part", "minutes", "tests");
    let mut total = Count::default();
    for part in parts {
        total.add(part.count);
        let minutes = part.took.as_secs_f64() / 60.0;
        let tests = part.count.passed + part.count.failed;
        let tests = if tests == 0 { String::new() } else { tests.to_string() };
        let verdict = part.error.as_deref().unwrap_or("holds");
        println!("{:<26}{minutes:>8.1}{tests:>8}  {verdict}", part.name);
    }
    let broken: Vec<&str> = parts.iter().filter(|part| part.error.is_some()).map(|part| part.name).collect();
    let ok = broken.is_empty();
    let minutes = took.as_secs_f64() / 60.0;
    if ok {
        println!("\nAll {} parts hold: {} tests in {minutes:.1} minutes.", parts.len(), total.passed);
    } else {
        println!("\nDOES NOT HOLD: {} (after {minutes:.1} minutes).", broken.join(", "));
    }
    if json {
        println!("{}", as_json(parts, ok));
    } else {
        // The total, in the form that cargo closes with.
        let Count { passed, failed, ignored } = total;
        let (verdict, seconds) = (if ok { "ok" } else { "FAILED" }, took.as_secs_f64());
        println!(
            "test result: {verdict}. {passed} passed; {failed} failed; {ignored} ignored; \
             0 measured; 0 filtered out; finished in {seconds:.2}s"
        );
    }
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn as_json(parts: &[Part], ok: bool) -> serde_json::Value {
    let parts: Vec<_> = parts
        .iter()
        .map(|part| {
            serde_json::json!({
                "name": part.name,
                "minutes": part.took.as_secs_f64() / 60.0,
                "passed": part.count.passed,
                "failed": part.count.failed,
                "error": part.error,
            })
        })
        .collect();
    serde_json::json!({ "ok": ok, "parts": parts })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closing_line_is_counted_and_nothing_else_is() {
        let line = "test result: FAILED. 12 passed; 1 failed; 2 ignored; 0 measured; \
                    3 filtered out; finished in 0.01s";
        assert_eq!(closing_line(line), Some(Count { passed: 12, failed: 1, ignored: 2 }));
        assert_eq!(closing_line("test a::b ... ok"), None);
    }

    #[test]
    fn an_ignored_test_is_a_failure() {
        let ignored = Count { passed: 5, failed: 0, ignored: 1 };
        assert!(complaint(ignored).is_some_and(|text| text.contains("ignored")));
        assert_eq!(complaint(Count { passed: 5, ..Count::default() }), None);
    }
}
