//! Lets children do its work, and leaves one about that it never looks after.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::chain::{self, State, mix};
use crate::{saved, say, words};

const STATE: &str = "state.txt";
/// At once.
const CHILDREN: u64 = 3;
/// Longer than the job is about.
const LINGERS: Duration = Duration::from_secs(30);

pub(crate) fn run(steps: u64, pause: Duration) -> Result<u64, String> {
    let mut lingers = Command::new("/proc/self/exe");
    lingers.arg("linger").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    lingers.spawn().map_err(words)?;
    let begin = saved::load(STATE)?.unwrap_or_default();
    chain::walk(begin, steps, pause, |state| {
        check(state)?;
        saved::save(STATE, state)
    })
}

/// The children's parts must come to what they are for this number.
fn check(state: State) -> Result<(), String> {
    let parts: Vec<u64> = (0..CHILDREN).map(|number| mix(state.x ^ number)).collect();
    let children = parts.iter().map(|part| {
        let mut child = Command::new("/proc/self/exe");
        child.args(["part", &part.to_string()]).stdout(Stdio::piped()).spawn().map_err(words)
    });
    let children: Vec<_> = children.collect::<Result<_, _>>()?;
    for (part, child) in parts.into_iter().zip(children) {
        let output = child.wait_with_output().map_err(words)?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if said != mix(part).to_string() {
            return Err(format!("a child ended with {} and said {said:?}", output.status));
        }
    }
    Ok(())
}

pub(crate) fn part(x: &str) -> Result<(), String> {
    say(&mix(x.parse().map_err(words)?).to_string());
    Ok(())
}

pub(crate) fn linger() -> Result<(), String> {
    std::thread::sleep(LINGERS);
    Ok(())
}
