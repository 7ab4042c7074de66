//! What is built, in one way for all tasks, so that one task's build is the next one's cache.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::command::{cargo, read, root, run, show};

/// Programs that run in guests: static, since a guest's image may hold nothing.
const GUESTS: [&str; 5] = ["gpunion-init", "gpunion-helper", "digits", "hostile-guest", "odd-jobs"];

/// Most bytes of the init, which is mounted into each guest.
const INIT_BYTES_MAX: u64 = 2_000_000;

/// A test program that cargo built.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TestProgram {
    pub(crate) package: String,
    pub(crate) target: String,
    /// A file in `tests/`, not the unit tests of a crate.
    pub(crate) is_integration: bool,
    pub(crate) folder: PathBuf,
    pub(crate) executable: PathBuf,
}

#[derive(Deserialize)]
struct Metadata {
    target_directory: PathBuf,
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct Message {
    reason: String,
    package_id: Option<String>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

fn metadata() -> Result<Metadata> {
    let text = read(&mut cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
    serde_json::from_str(&text).context("reading cargo metadata")
}

/// Where finished programs stand: `target/debug`, wherever the target folder is.
pub(crate) fn programs() -> Result<PathBuf> {
    Ok(target()?.join("debug"))
}

/// The same of programs that are measured.
pub(crate) fn released() -> Result<PathBuf> {
    Ok(target()?.join("release"))
}

pub(crate) fn target() -> Result<PathBuf> {
    Ok(metadata()?.target_directory)
}

/// Every crate with its tests, in one go: programs, libraries and test programs then share one
/// set of features, and nothing is built twice.
pub(crate) fn build_all() -> Result<Vec<TestProgram>> {
    let metadata = metadata()?;
    let mut command =
        cargo(&["build", "--workspace", "--all-targets", "--message-format=json-render-diagnostics"]);
    let text = read(&mut command)?;
    let mut programs = BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let message: Message =
            serde_json::from_str(line).with_context(|| format!("{}: {line}", show(&command)))?;
        programs.extend(test_program(&metadata, message));
    }
    ensure!(!programs.is_empty(), "cargo named no test program");
    Ok(programs.into_iter().collect())
}

fn test_program(metadata: &Metadata, message: Message) -> Option<TestProgram> {
    let (target, executable) = (message.target?, message.executable?);
    if message.reason != "compiler-artifact" || !message.profile?.test {
        return None;
    }
    let id = message.package_id?;
    let package = metadata.packages.iter().find(|package| package.id == id)?;
    Some(TestProgram {
        package: package.name.clone(),
        is_integration: target.kind.iter().any(|kind| kind == "test"),
        target: target.name,
        folder: package.manifest_path.parent()?.to_owned(),
        executable,
    })
}

const PROGRAMS: [&str; 6] =
    ["--package", "gpunion", "--package", "system-tests", "--package", "nvml-standin"];

/// What a person runs, and what the demo needs, without any test.
pub(crate) fn build_programs() -> Result<()> {
    run(&mut cargo(&[&["build"], &PROGRAMS[..]].concat()))
}

/// The same as it would be shipped, to be measured.
pub(crate) fn build_released() -> Result<()> {
    run(&mut cargo(&[&["build", "--release"], &PROGRAMS[..]].concat()))
}

/// Builds what runs in guests, and puts init and helper beside `gpunion`, which looks for them
/// there: into `beside`. Comes after the other builds, which put the dynamic ones there.
pub(crate) fn build_guests(beside: &Path) -> Result<()> {
    let host = host_triple()?;
    let mut arguments = vec!["build", "--profile", "guest", "--target", &host];
    arguments.extend(GUESTS.iter().flat_map(|guest| ["--package", guest]));
    run(cargo(&arguments).env("RUSTFLAGS", "-C target-feature=+crt-static"))?;
    let target = target()?;
    let built = target.join(&host).join("guest");
    for guest in GUESTS {
        ensure_static(&built.join(guest))?;
    }
    let size = fs::metadata(built.join("gpunion-init"))?.len();
    ensure!(size < INIT_BYTES_MAX, "gpunion-init has {size} bytes; at most {INIT_BYTES_MAX}");
    for guest in GUESTS {
        replace(&built.join(guest), &beside.join(guest))?;
    }
    Ok(())
}

fn host_triple() -> Result<String> {
    let text = read(std::process::Command::new("rustc").arg("-vV").current_dir(root()))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc names no host")?.to_owned())
}

/// A program that asks for a loader can't start in an image that has none.
fn ensure_static(program: &Path) -> Result<()> {
    let bytes = fs::read(program).with_context(|| program.display().to_string())?;
    let head = &bytes[..bytes.len().min(4096)];
    let asks = head.windows(7).any(|window| window == b"/ld-lin" || window == b"/ld-mus");
    ensure!(!asks, "{} is not static", program.display());
    Ok(())
}

/// Never written in place: cargo's own copy is a hard link to the same file, and it may run.
fn replace(from: &Path, to: &Path) -> Result<()> {
    let beside = to.with_extension("new");
    let copying = || format!("copying {} to {}", from.display(), to.display());
    fs::copy(from, &beside).with_context(copying)?;
    fs::rename(&beside, to).with_context(copying)
}
