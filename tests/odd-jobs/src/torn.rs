//! Two files in turn, each written where it stands and with a pause in the middle: at any moment
//! one of them is half written, and the other one is whole. A copy that takes them at different
//! moments may have no whole one.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::time::Duration;

use crate::chain::{self, State, fill, sum};
use crate::words;

const SIZE: usize = 64 << 10;
/// Step, number and sum.
const HEAD: usize = 3 * 8;

pub(crate) fn run(steps: u64, pause: Duration) -> Result<u64, String> {
    let begin = newest()?;
    // The pause is in the middle of writing.
    chain::walk(begin, steps, Duration::ZERO, |state| write(state, pause))
}

fn name(step: u64) -> &'static str {
    if step.is_multiple_of(2) { "even.state" } else { "odd.state" }
}

fn write(state: State, pause: Duration) -> Result<(), String> {
    let bytes = encode(state);
    let (one, other) = bytes.split_at(SIZE / 2);
    let mut file = File::create(name(state.step)).map_err(words)?;
    file.write_all(one).map_err(words)?;
    std::thread::sleep(pause);
    file.write_all(other).map_err(words)
}

fn encode(state: State) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    fill(state.x, &mut bytes[HEAD..]);
    bytes[..8].copy_from_slice(&state.step.to_le_bytes());
    bytes[8..16].copy_from_slice(&state.x.to_le_bytes());
    let whole = sum(&bytes);
    bytes[16..HEAD].copy_from_slice(&whole.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<State> {
    let (step, rest) = bytes.split_first_chunk()?;
    let (x, _) = rest.split_first_chunk()?;
    let state = State { step: u64::from_le_bytes(*step), x: u64::from_le_bytes(*x) };
    (encode(state) == bytes).then_some(state)
}

fn newest() -> Result<State, String> {
    let mut newest: Option<State> = None;
    let mut is_second_begun = false;
    for step in [1, 2] {
        let bytes = match fs::read(name(step)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(words(error)),
        };
        is_second_begun |= step == 2;
        newest = [newest, decode(&bytes)].into_iter().flatten().max_by_key(|state| state.step);
    }
    match newest {
        None if is_second_begun => Err("both files are half written: they are of two moments".to_owned()),
        newest => Ok(newest.unwrap_or_default()),
    }
}
