//! Holding the memory of a stand-in GPU, where one is attached; for tests and the demo.
//!
//! A stand-in GPU is a folder. Who holds memory of it has a file there, of that size (sparse: it
//! takes no disk), and an own POSIX lock on it, which only the holder's end or the file's closing
//! undoes; an outsider reads both from /proc/locks. Such figures are never GPU figures.
//!
//! A child that leaves the session and turns a deaf ear to SIGTERM and SIGHUP holds some too,
//! because real programs have such children, and a reclaim that forgets them gives nothing back.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{SigSet, Signal};

const MIB: u64 = 1024 * 1024;
pub(crate) const HOLD_MIB: u64 = 256;
const CHILD_MIB: u64 = 64;

/// Memory held until this is dropped: the main process's and its child's, on each device.
#[derive(Debug)]
pub(crate) struct Held {
    files: Vec<(PathBuf, File)>,
    children: Vec<Child>,
}

/// Takes `mib` MiB in each folder below `devices`, and lets a child take some more. Where no
/// stand-in GPU is attached there is nothing to hold.
pub(crate) fn hold_everywhere(devices: &Path, mib: u64) -> Result<Held, String> {
    let mut held = Held { files: Vec::new(), children: Vec::new() };
    for device in folders(devices)? {
        held.files.push(take(&device, mib)?);
        held.children.push(start_child(&device)?);
    }
    Ok(held)
}

impl Held {
    /// One line for the log, when anything is held.
    pub(crate) fn describe(&self, mib: u64) -> Option<String> {
        (!self.files.is_empty()).then(|| {
            format!(
                "holding {mib} MiB, and a child {CHILD_MIB} MiB, of each of {} stand-in GPU(s)",
                self.files.len()
            )
        })
    }
}

impl Drop for Held {
    /// The normal end. The child listens to nothing softer than SIGKILL.
    fn drop(&mut self) {
        for child in &mut self.children {
            if child.kill().is_ok() {
                let _ = child.wait();
            }
        }
        for (path, _) in &self.files {
            let _ = fs::remove_file(path);
        }
    }
}

fn folders(devices: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = match fs::read_dir(devices) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => {
            return Err(format!("can't list stand-in GPUs in {}: {e}", devices.display()));
        }
    };
    let mut found: Vec<_> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()).collect();
    found.sort();
    Ok(found)
}

/// A file of that size, locked by this very process: a lock is not inherited, and one that its
/// taker left behind would not be listed.
fn take(device: &Path, mib: u64) -> Result<(PathBuf, File), String> {
    let take = || {
        let path = device.join(format!("holder-{}-{:016x}", std::process::id(), random()?));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        file.set_len(mib * MIB)?;
        let whole = nix::libc::flock {
            l_type: nix::libc::F_WRLCK as i16,
            l_whence: nix::libc::SEEK_SET as i16,
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        fcntl(&file, FcntlArg::F_SETLK(&whole))?;
        Ok((path, file))
    };
    take().map_err(|e: std::io::Error| {
        format!("can't hold memory of the stand-in GPU {}: {e}", device.display())
    })
}

/// Guests have their own process ids, so the id alone would name two holders alike.
fn random() -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn start_child(device: &Path) -> Result<Child, String> {
    let start = || {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("hold")
            .arg(device)
            .arg(CHILD_MIB.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        // The line comes once it holds: what starts after this finds the memory taken.
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        match line.trim() {
            "holding" => Ok(child),
            _ => {
                child.wait()?;
                Err(std::io::Error::other("it ended at once"))
            }
        }
    };
    start().map_err(|e| format!("can't start the child that holds stand-in memory: {e}"))
}

/// The child's whole life: leaves the session, ignores what asks it to end, holds until killed.
pub(crate) fn be_child(device: &Path, mib: u64) -> Result<(), String> {
    let mut deaf = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
        deaf.add(signal);
    }
    deaf.thread_block().map_err(|e| format!("can't block signals: {e}"))?;
    nix::unistd::setsid().map_err(|e| format!("can't leave the session: {e}"))?;
    let (_, file) = take(device, mib)?;
    writeln!(std::io::stdout(), "holding").map_err(|e| format!("can't say so: {e}"))?;
    loop {
        std::thread::park();
        // Parking may end without cause; the lock must stay until we are killed.
        debug_assert!(file.as_raw_fd() >= 0, "the locked file stays open");
    }
}
