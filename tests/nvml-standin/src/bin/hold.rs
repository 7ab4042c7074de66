//! Holds stand-in GPU memory until it is killed: what a job's process does, as a command.
//!
//! `nvml-standin-hold FOLDER BYTES [CHILD_BYTES]` prints `held PID` when its lock stands; with a
//! third word it starts a child first, in a session of the child's own, that holds memory of
//! its own and outlives it.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::fs::FlockOperation;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let (folder, bytes, child) = match words.as_slice() {
        [_, folder, bytes] => (folder, bytes, None),
        [_, folder, bytes, child] => (folder, bytes, Some(child)),
        _ => bail!("usage: nvml-standin-hold FOLDER BYTES [CHILD_BYTES]"),
    };
    if let Some(child) = child {
        start_child(folder, child)?;
    }
    let _held = hold(Path::new(folder), bytes.parse().context("BYTES is a number")?)?;
    say()?;
    // Nothing but a signal ends it.
    let _ = rustix::process::setsid();
    loop {
        std::thread::park();
    }
}

fn hold(folder: &Path, bytes: u64) -> Result<File> {
    let path = folder.join(format!("holder-{}", std::process::id()));
    let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
    file.set_len(bytes)?;
    rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)
        .with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

/// Waits until the child says that it holds, so that our own word covers both.
fn start_child(folder: &str, bytes: &str) -> Result<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .args([folder, bytes])
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the child")?;
    let mut out = child.stdout.take().context("the child has no output")?;
    let mut line = Vec::new();
    let mut byte = [0];
    while out.read(&mut byte)? == 1 && byte != *b"\n" {
        line.extend(byte);
    }
    std::io::stdout().write_all(&[line.as_slice(), b"\n"].concat())?;
    Ok(())
}

fn say() -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "held {}", std::process::id())?;
    out.flush().context("nobody reads what this prints")
}
