//! The crash points of agent and relay (`GPUNION_CRASH`, debug builds alone): who passed what,
//! and who shall end where. They are asked for by a folder in the home of who runs the program.

use std::fs;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::lab::User;

fn folder(user: &User) -> PathBuf {
    user.home().join("crash")
}

/// From its next start on, what this user runs has crash points.
pub fn watch(user: &User) -> Result<()> {
    let folder = folder(user);
    fs::create_dir_all(&folder)?;
    chown(&folder, Some(user.uid()), Some(user.gid())).context("giving away the folder of crash points")
}

pub(super) fn ask(user: &User, command: &mut Command) {
    let folder = folder(user);
    if folder.exists() {
        command.env("GPUNION_CRASH", folder);
    }
}

/// Boundaries passed since the last `forget`, in their order.
pub fn passed(user: &User) -> Result<Vec<String>> {
    let trace = fs::read_to_string(folder(user).join("trace")).unwrap_or_default();
    Ok(trace.lines().map(str::to_owned).collect())
}

pub fn forget(user: &User) -> Result<()> {
    fs::write(folder(user).join("trace"), "").and_then(|()| own(user, "trace")).context("emptying the trace")
}

/// Ends before the nth pass of this boundary from now on.
pub fn arm(user: &User, name: &str, nth: u32) -> Result<()> {
    // Whole or not there: it is read at any moment.
    fs::write(folder(user).join("at.new"), format!("{nth} {name}"))?;
    own(user, "at.new")?;
    fs::rename(folder(user).join("at.new"), folder(user).join("at")).context("arming a crash point")
}

/// Whether it was still to come; now it will not.
pub fn disarm(user: &User) -> bool {
    fs::remove_file(folder(user).join("at")).is_ok()
}

fn own(user: &User, name: &str) -> std::io::Result<()> {
    chown(folder(user).join(name), Some(user.uid()), Some(user.gid()))
}
