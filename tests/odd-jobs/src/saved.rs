//! A state in a file, replaced as a whole.

use std::fs;
use std::io::ErrorKind;

use crate::chain::{State, mix};
use crate::words;

pub(crate) fn save(name: &str, state: State) -> Result<(), String> {
    let State { step, x } = state;
    replace(name, format!("{step} {x} {}\n", check(state)).as_bytes())
}

/// None when there is none yet. One that is not whole is an error: it was replaced as a whole.
pub(crate) fn load(name: &str) -> Result<Option<State>, String> {
    let text = match fs::read_to_string(name) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{name}: {error}")),
    };
    let numbers: Result<Vec<u64>, _> = text.split_whitespace().map(str::parse).collect();
    match numbers.map_err(|error| format!("{name}: {error}"))?[..] {
        [step, x, sum] if sum == check(State { step, x }) => Ok(Some(State { step, x })),
        _ => Err(format!("{name} is damaged: {text:?}")),
    }
}

fn check(state: State) -> u64 {
    mix(state.x ^ mix(state.step))
}

/// Whoever looks, and whoever comes after a crash, sees the old or the new.
pub(crate) fn replace(name: &str, bytes: &[u8]) -> Result<(), String> {
    let beside = format!("{name}.tmp");
    fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, name)).map_err(words)
}
