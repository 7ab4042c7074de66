//! Licences, bans and sources of dependencies, by cargo-deny; advisories where their database can
//! be fetched.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::build::target;
use crate::command::{cargo, find, root, run};

pub(crate) fn check() -> Result<()> {
    let deny = cargo_deny()?;
    let deny = |arguments: &[&str]| {
        let mut command = std::process::Command::new(&deny);
        command.args(arguments).current_dir(root());
        command
    };
    run(&mut deny(&["--log-level", "error", "check", "licenses", "bans", "sources"]))?;
    // Somebody else's machine being out of reach is no fault of this code.
    let fetched = run(&mut deny(&["--log-level", "off", "fetch", "db"]));
    match fetched {
        Ok(()) => run(&mut deny(&["--log-level", "error", "check", "--disable-fetch", "advisories"])),
        Err(_) => {
            eprintln!("Advisories are not checked: their database can't be fetched from here.");
            Ok(())
        }
    }
}

/// The one on PATH, else our own in the target folder: a minute to build, once.
fn cargo_deny() -> Result<PathBuf> {
    if let Some(found) = find("cargo-deny") {
        return Ok(found);
    }
    let tools = target()?.join("tools");
    let own = tools.join("bin/cargo-deny");
    if !own.is_file() {
        eprintln!("Installing cargo-deny into {} (about a minute)", tools.display());
        let mut command = cargo(&["install", "--quiet", "--locked", "--debug", "cargo-deny", "--root"]);
        run(command.arg(&tools).env("CARGO_TARGET_DIR", tools.join("build")))
            .context("installing cargo-deny")?;
        std::fs::remove_dir_all(tools.join("build"))?;
    }
    Ok(own)
}
