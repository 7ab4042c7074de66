//! Running other programs: as root where that is needed, loudly when they fail.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Where a program stands on PATH, or in the folders of root's programs, which an ordinary user's
/// PATH may lack.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut places = std::env::split_paths(&path).chain(more).map(|folder| folder.join(program));
    places.find(|file| file.is_file())
}

/// A command as root: by sudo, with the environment and PATH kept, when we are not root.
pub(crate) fn as_root(program: impl AsRef<OsStr>) -> Result<Command> {
    if is_root() {
        return Ok(Command::new(program));
    }
    if find("sudo").is_none() {
        bail!(
            "\"{}\" takes root, and there is no sudo: run this command as root",
            program.as_ref().display()
        );
    }
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    let mut command = Command::new("sudo");
    let mut keep = std::ffi::OsString::from("PATH=");
    keep.push(path);
    command.arg("--preserve-env").arg("--").arg("env").arg(keep).arg(program);
    Ok(command)
}

/// cargo, the very one that runs us, in the repository's root.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root());
    command
}

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// Runs it; its stdout goes to our stderr, which keeps ours clean for `--json`.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let out = std::io::stderr();
    let status = command
        .stdin(Stdio::null())
        .stdout(Stdio::from(std::os::fd::AsFd::as_fd(&out).try_clone_to_owned()?))
        .status()
        .with_context(|| format!("starting {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// What it says on stdout, if it succeeds.
pub(crate) fn read(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("starting {shown}"))?;
    if !output.status.success() {
        bail!("{shown}: {}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("{shown}: no UTF-8"))
}

pub(crate) fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}
