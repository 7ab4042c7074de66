//! A login of one's own, without a screen: a session bus, a real keyring, and in it what a person
//! does, as a script of the shell.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};

use super::{Campus, Relay};
use crate::lab::User;

/// The words that scripts use: `unlock` (a keyring, as a login does it), `gp` (the command line),
/// `agent` (begun, and waited for; `$pid`), `connected` (with its relay).
const WORDS: &str = r#"
set -eu
# A daemon that is there stays locked; one in its place is opened by its start.
unlock() { printf 'throwaway' | gnome-keyring-daemon --replace --unlock --components=secrets >/dev/null; }
gp() { "$GPUNION" --data "$HOME/gp" --socket "$XDG_RUNTIME_DIR/a.sock" "$@"; }
agent() {
  "$GPUNION" --data "$HOME/gp" --socket "$XDG_RUNTIME_DIR/a.sock" agent "$@" --device-name desk --engine /nonexistent.sock --nvml-library /nonexistent.so >>"$HOME/agent.log" 2>&1 &
  pid=$!
  tries=0
  until gp share status >/dev/null 2>&1; do
    tries=$((tries + 1)); [ $tries -lt 600 ] || { cat "$HOME/agent.log"; exit 9; }
    sleep 0.1
  done
}
connected() {
  tries=0
  until gp members >/dev/null 2>&1; do
    tries=$((tries + 1)); [ $tries -lt 600 ] || { cat "$HOME/agent.log"; exit 8; }
    sleep 0.1
  done
}
unlock
"#;

/// Runs `script` in a session of `user`'s, with an invite to `relay` in `$LINK`; what was said. It
/// must end well and have said each of `wanted`.
pub fn session(campus: &Campus, relay: &Relay, user: &User, script: &str, wanted: &[&str]) -> Result<String> {
    let output = user
        .command("dbus-run-session")
        .args(["--", "sh", "-c", &format!("{WORDS}{script}")])
        .env("GPUNION", campus.program())
        .env("LINK", relay.invite("member")?)
        .stdin(Stdio::null())
        .output()
        .context("starting a session of one's own")?;
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "the session ended with {}: {said}", output.status);
    for wanted in wanted {
        ensure!(said.contains(wanted), "{wanted:?} is missing in: {said}");
    }
    Ok(said)
}
