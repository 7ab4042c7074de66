//! `cargo xtask test --mutants`: small mistakes are put into both machines, one at a time, and the
//! tests must notice. A sample, for as long as it may take; `docs/mutants.md` explains what stays.
//!
//! The machines are pure, so they are tested in a small workspace of their own: without drivers,
//! engines and TLS a mistake is built and judged in seconds. cargo-mutants makes the mistakes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::build::target;
use crate::command::{cargo, find, root, run};

/// Of a hundred mistakes so many must be noticed.
const CAUGHT_MIN: usize = 90;
/// What is copied: the machines, what they speak, and the simulated world that judges them.
const SOURCES: [&str; 10] = [
    "protocol/src",
    "agent-core/src/provider",
    "agent-core/src/rules",
    "agent-core/src/gpu/verify.rs",
    "agent-core/src/gpu/verify_tests.rs",
    "relay/src/broker",
    "tests/src/sim",
    "tests/tests/simulation.rs",
    "tests/seeds.txt",
    "rust-toolchain.toml",
];
const CRATES: [&str; 4] = ["protocol", "agent-core", "relay", "tests"];
const AGENT: &str = "pub mod gpu {\n    pub mod verify;\n}\npub mod provider;\npub mod rules;\n";
const RELAY: &str = "pub mod broker;\n";
const TESTS: &str = "pub mod sim;\n";
/// The tests themselves, and what only they ask.
const NOT_MUTATED: [&str; 4] =
    ["**/tests/**", "**/check.rs", "agent-core/src/provider/call.rs", "relay/src/broker/views.rs"];

/// How a sample ended, by the lists of cargo-mutants.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sample {
    caught: usize,
    missed: Vec<String>,
}

#[expect(clippy::disallowed_methods, reason = "a limit of minutes, for a person")]
pub(crate) fn test(minutes: u64) -> Result<ExitCode> {
    let program = cargo_mutants()?;
    let folder = target()?.join("mutants");
    let tree = folder.join("tree");
    lay_out(&tree)?;
    println!("Mistakes for {minutes} minutes, in {}", tree.display());
    let mut command = Command::new(program);
    command
        .current_dir(&tree)
        .args(["mutants", "--in-place", "--shuffle", "--no-times", "--colors=never", "--timeout=300"])
        .args(["--test-package=gpunion-agent-core,gpunion-relay,system-tests"])
        .args(["--file=agent-core/src/provider/**", "--file=relay/src/broker/**"])
        .args(NOT_MUTATED.map(|glob| format!("--exclude={glob}")))
        .arg("--output")
        .arg(&folder)
        // Two folders of finished programs would be built in turn.
        .env_remove("CARGO_TARGET_DIR")
        .stdin(Stdio::null());
    let mut child = command.spawn().context("starting cargo-mutants")?;
    let end = Instant::now() + Duration::from_secs(minutes * 60);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if Instant::now() >= end {
            let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id())?);
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT)?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    // 2: some were missed, 3: some ran out of time, 4: the tests fail without any mistake.
    let broken = status.and_then(|status| status.code()).filter(|code| ![0, 2, 3].contains(code));
    ensure!(broken.is_none(), "cargo-mutants ended with {broken:?}: see {}", folder.display());
    judge(&read(&folder.join("mutants.out"))?)
}

/// The small workspace, made afresh; what was built in it before is kept.
fn lay_out(tree: &Path) -> Result<()> {
    for name in CRATES {
        let there = tree.join(name);
        if there.exists() {
            fs::remove_dir_all(&there)?;
        }
    }
    for source in SOURCES {
        copy(&root().join(source), &tree.join(source))?;
    }
    for (name, library) in [("agent-core", AGENT), ("relay", RELAY), ("tests", TESTS)] {
        fs::write(tree.join(name).join("src/lib.rs"), library)?;
    }
    for name in CRATES {
        let manifest = fs::read_to_string(root().join(name).join("Cargo.toml"))?;
        fs::write(tree.join(name).join("Cargo.toml"), small_manifest(&manifest))?;
    }
    let workspace = fs::read_to_string(root().join("Cargo.toml"))?;
    fs::write(tree.join("Cargo.toml"), small_workspace(&workspace)?)?;
    fs::copy(root().join("Cargo.lock"), tree.join("Cargo.lock"))?;
    Ok(())
}

/// Only the crates that were copied, and of those only what the machines need.
fn small_workspace(text: &str) -> Result<String> {
    let (before, rest) = text.split_once("members = [").context("the workspace has no members")?;
    let (_, after) = rest.split_once(']').context("the members have no end")?;
    Ok(format!("{before}members = {CRATES:?}{after}"))
}

/// A mistake may leave something unused, which is no reason not to build it. Only the dependencies
/// of pure code stay: a mistake is not to wait for a TLS library.
fn small_manifest(manifest: &str) -> String {
    const KEPT: [&str; 14] = [
        "gpunion-protocol",
        "gpunion-agent-core",
        "gpunion-relay",
        "serde",
        "serde_json",
        "thiserror",
        "tokio",
        "blake3",
        "hex",
        "jiff",
        "proptest",
        "rand_chacha",
        "base64",
        "toml",
    ];
    let mut section = String::new();
    let mut kept = String::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            line.clone_into(&mut section);
        }
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        let stays = match section.as_str() {
            "[package]" => true,
            "[dependencies]" | "[dev-dependencies]" => line.starts_with('[') || KEPT.contains(&name),
            _ => false,
        };
        if stays {
            kept += line;
            kept.push('\n');
        }
    }
    kept
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().context("a source without a folder")?;
    fs::create_dir_all(parent)?;
    if from.is_file() {
        fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
        return Ok(());
    }
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

fn read(out: &Path) -> Result<Sample> {
    let lines = |name: &str| -> Result<Vec<String>> {
        let file = out.join(name);
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        Ok(text.lines().map(str::to_owned).collect())
    };
    // One that never ends is noticed too.
    Ok(Sample {
        caught: lines("caught.txt")?.len() + lines("timeout.txt")?.len(),
        missed: lines("missed.txt")?,
    })
}

fn judge(sample: &Sample) -> Result<ExitCode> {
    let all = sample.caught + sample.missed.len();
    ensure!(all > 0, "not one mistake was judged in this time");
    let explained = fs::read_to_string(root().join("docs/mutants.md"))?;
    let (known, new): (Vec<&String>, Vec<&String>) =
        sample.missed.iter().partition(|line| explained.contains(without_place(line)));
    let percent = sample.caught * 100 / all;
    println!(
        "\n{} of {all} mistakes were noticed ({percent} %), {} not:",
        sample.caught,
        sample.missed.len()
    );
    for line in &known {
        println!("  explained in docs/mutants.md: {line}");
    }
    for line in &new {
        println!("  NOT EXPLAINED: {line}");
    }
    let holds = percent >= CAUGHT_MIN && new.is_empty();
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `relay/src/broker/lease.rs:70:9: replace … with …`: what was done, without where it stands today.
fn without_place(line: &str) -> &str {
    line.split_once(": ").map_or(line, |(_, what)| what)
}

/// The one on PATH, else our own in the target folder.
fn cargo_mutants() -> Result<PathBuf> {
    if let Some(found) = find("cargo-mutants") {
        return Ok(found);
    }
    let tools = target()?.join("tools");
    let own = tools.join("bin/cargo-mutants");
    if !own.is_file() {
        println!("Installing cargo-mutants into {} (about a minute)", tools.display());
        let mut command = cargo(&["install", "--quiet", "--locked", "--debug", "cargo-mutants", "--root"]);
        run(command.arg(&tools).env("CARGO_TARGET_DIR", tools.join("build")))
            .context("installing cargo-mutants")?;
        fs::remove_dir_all(tools.join("build"))?;
    }
    Ok(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_manifest_only_what_pure_code_needs_is_left() {
        let manifest = "[package]\nname = \"x\"\n[lints]\nworkspace = true\n[dependencies]\n\
                        serde.workspace = true\nreqwest.workspace = true\n[[bin]]\nname = \"y\"\n";
        let small = small_manifest(manifest);
        assert_eq!(small, "[package]\nname = \"x\"\n[dependencies]\nserde.workspace = true\n");
    }

    #[test]
    fn the_workspace_has_the_machines_alone_and_the_same_versions() {
        let small =
            small_workspace("[workspace]\nmembers = [\n  \"a\",\n]\n[workspace.dependencies]\nx = \"1\"\n");
        let small = small.unwrap();
        assert!(small.contains("\"relay\"") && !small.contains("\"a\"") && small.contains("x = \"1\""));
    }

    #[test]
    fn a_mistake_is_known_again_when_its_line_has_moved() {
        let (then, now) = ("a/b.rs:1:2: replace x with y", "a/b.rs:7:9: replace x with y");
        assert_eq!(without_place(then), without_place(now));
    }
}
