//! `cargo xtask demo`'s own program, as a script meets it: the main job of the product on real
//! input, end to end, and the object that it prints; what it keeps, and what it leaves when it is
//! interrupted.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use system_tests::lab::{DEFAULT_BASE, wait_for};

/// Every new lab cleans what ended ones left, kept ones too: one demo at a time.
static ONE: Mutex<()> = Mutex::new(());
const LIMIT: Duration = Duration::from_secs(180);

fn demo(words: &[&str]) -> Result<Child> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_demo"));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("starting the demo")
}

/// The folder of the lab that this process has made.
fn lab_of(owner: u32) -> Result<PathBuf> {
    let dirs = fs::read_dir(DEFAULT_BASE)?.flatten().map(|entry| entry.path());
    let mine = format!("{owner}-");
    let mut found =
        dirs.filter(|dir| dir.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&mine)));
    found.next().with_context(|| format!("no lab of {owner} below {DEFAULT_BASE}"))
}

/// Accounts of a lab, by uid.
fn accounts(lab: &Path) -> Result<Vec<u32>> {
    let name = lab.file_name().context("its name")?.to_string_lossy().into_owned();
    let passwd = fs::read_to_string("/etc/passwd")?;
    let ours = passwd.lines().filter(|line| line.starts_with(&format!("gpl{name}-")));
    Ok(ours.filter_map(|line| line.split(':').nth(2)?.parse().ok()).collect())
}

/// Processes with the lab's folder on their command line, or of one of its accounts. A zombie holds
/// nothing and waits for whoever adopted it, which is this machine's first process and not ours.
fn processes(lab: &Path, uids: &[u32]) -> Vec<(i32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        let uid = status
            .lines()
            .find_map(|line| line.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok());
        let is_dead = status.lines().any(|line| line.starts_with("State:") && line.contains('Z'));
        if is_dead {
            continue;
        }
        if words.contains(&format!("{}/", lab.display())) || uid.is_some_and(|uid| uids.contains(&uid)) {
            found.push((pid, words));
        }
    }
    found
}

/// The last line of its stdout, which is one object and all that is there.
fn object(stdout: &str) -> Result<Value> {
    ensure!(stdout.lines().count() == 1, "one object, on one line: {stdout}");
    serde_json::from_str(stdout).with_context(|| stdout.to_owned())
}

#[test]
fn the_demo_holds_says_so_and_keeps_what_a_sigterm_ends() -> Result<()> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let child = demo(&["--json", "--keep"])?;
    let pid = child.id();
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8(output.stdout)?;
    let object = object(&stdout)?;
    assert_eq!((object["ok"].as_bool(), output.status.code()), (Some(true), Some(0)), "{object}\n{said}");
    the_object_is_whole(&object);
    assert!(said.contains("ok: its log was followed live"), "{said}");

    let lab = lab_of(pid)?;
    let uids = accounts(&lab)?;
    let ours = || -> Vec<i32> {
        let gpunion = lab.join("bin/gpunion");
        let all = processes(&lab, &uids).into_iter();
        all.filter(|(_, words)| words.starts_with(&gpunion.display().to_string()))
            .map(|(pid, _)| pid)
            .collect()
    };
    let kept = ours();
    ensure!(kept.len() == 4, "a relay and three agents are kept: {kept:?}");
    for pid in kept {
        kill(Pid::from_raw(pid), Signal::SIGTERM)?;
    }
    wait_for("the end of what was kept, by SIGTERM", Duration::from_secs(30), || {
        Ok(ours().is_empty().then_some(()))
    })?;
    let cleaned = Command::new(env!("CARGO_BIN_EXE_lab")).arg("clean").output()?;
    ensure!(cleaned.status.success(), "{cleaned:?}");
    nothing_is_left(&lab, &uids)
}

fn the_object_is_whole(object: &Value) {
    let keys: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    let mut wanted = ["ok", "accuracy", "timeline", "receipt", "finished_elsewhere", "failures"];
    wanted.sort_unstable();
    assert_eq!(keys, wanted);
    assert!(object["accuracy"].as_f64().unwrap() > 0.95);
    assert_eq!(object["finished_elsewhere"], true);
    assert!(object["failures"].as_array().unwrap().is_empty());
    let timeline = object["timeline"].as_object().unwrap();
    assert!(timeline.len() >= 5 && timeline.values().all(Value::is_number), "{timeline:?}");

    let receipt = &object["receipt"];
    assert_eq!((&receipt["verified"], &receipt["how"]), (&Value::Bool(true), &"process_list".into()));
    assert_eq!(receipt["standin"], true, "no figure of it is a GPU's, and it says so");
    let ms = |key: &str| receipt[key].as_u64().unwrap();
    assert!(ms("stopped_ms") <= ms("ended_ms") && ms("ended_ms") <= ms("verified_ms"), "{receipt}");
    // The program held 256 MiB and its child 64.
    assert!(ms("memory_before") >= ms("memory_after") + (320 << 20), "{receipt}");
}

fn nothing_is_left(lab: &Path, uids: &[u32]) -> Result<()> {
    ensure!(!lab.exists(), "{} is left", lab.display());
    ensure!(accounts(lab)?.is_empty(), "accounts are left");
    let left = processes(lab, uids);
    ensure!(left.is_empty(), "processes are left: {left:?}");
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    ensure!(!mounts.contains(&lab.display().to_string()), "mounts are left: {mounts}");
    Ok(())
}

#[test]
fn an_interrupted_demo_says_so_and_leaves_nothing() -> Result<()> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut child = demo(&["--json"])?;
    let mut said = BufReader::new(child.stderr.take().context("its stderr")?);
    let mut line = String::new();
    while !line.contains("submitted as") {
        line.clear();
        ensure!(said.read_line(&mut line)? > 0, "it ended before it submitted anything");
    }
    let lab = lab_of(child.id())?;
    let uids = accounts(&lab)?;
    ensure!(uids.len() == 4 && !processes(&lab, &uids).is_empty(), "the demo runs: {uids:?}");
    kill(Pid::from_raw(i32::try_from(child.id())?), Signal::SIGINT)?;
    // Read to the end, or it would wait for us.
    let reading = std::thread::spawn(move || {
        let mut rest = String::new();
        said.read_to_string(&mut rest).map(|_| rest)
    });
    let status = wait_for("the end of the demo", LIMIT, || Ok(child.try_wait()?))?;
    let mut stdout = String::new();
    child.stdout.take().context("its stdout")?.read_to_string(&mut stdout)?;
    let rest = reading.join().map_err(|_| anyhow::anyhow!("its stderr"))??;
    let object = object(&stdout)?;
    ensure!(status.code() == Some(1) && object["ok"] == false, "{status}: {object}\n{rest}");
    ensure!(object["failures"] == serde_json::json!(["interrupted"]), "{object}\n{rest}");
    nothing_is_left(&lab, &uids)
}
