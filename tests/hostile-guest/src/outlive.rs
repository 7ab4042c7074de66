//! Trying to be there after the end: deaf to signals, detached from who started it, or always
//! another process by the time that one is looked for.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::unistd::setsid;

use crate::{Outcome, say, words};

/// Writes again and again that it lives, and hears no signal that can be kept out.
pub(crate) fn deaf(file: &str) -> Outcome {
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None).map_err(words)?;
    let _ = setsid();
    for beat in 0_u64.. {
        let _ = fs::write(file, format!("{} {beat}", std::process::id()));
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok("for ever".to_owned())
}

/// Leaves a deaf one behind, in a session of its own and with a parent that is gone, and ends.
pub(crate) fn detach(file: &str) -> Outcome {
    let child = again(&["deaf", file]).spawn().map_err(words)?;
    // It has written once: from then on it hears nothing.
    while fs::read_to_string(file).map_or(true, |text| text.is_empty()) {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(format!("left {} behind", child.id()))
}

/// Processes that make the next and end, some at a time, for ever: whoever looks for one finds it
/// gone. The number stays the same, so that the machine that runs this test stays usable.
pub(crate) fn bomb(file: &str) -> Outcome {
    const CHAINS: usize = 24;
    for _ in 0..CHAINS {
        again(&["chain-link"]).spawn().map_err(words)?;
    }
    say("exploded");
    deaf(file)
}

/// A link of such a chain: makes the next and ends.
pub(crate) fn link() -> Outcome {
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), None);
    let _ = setsid();
    while again(&["chain-link"]).spawn().is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok("the next".to_owned())
}

/// One of many that are only there.
pub(crate) fn wait() -> Outcome {
    std::thread::sleep(Duration::from_secs(600));
    Ok("waited".to_owned())
}

fn again(words: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(words).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}
