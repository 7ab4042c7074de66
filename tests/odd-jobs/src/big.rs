//! A state of many blocks, of which each step makes one anew; it says that it has saved, as good
//! programs do.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use crate::chain::{self, State, fill, sum};
use crate::{saved, words};

const STATE: &str = "state.bin";
const BLOCK: usize = 1 << 20;
const BLOCKS: usize = 16;
/// Step, number and sum.
const HEAD: usize = 3 * 8;
/// A save costs a write of all of it.
const EACH: u64 = 4;

pub(crate) fn run(steps: u64, pause: Duration) -> Result<u64, String> {
    // A save that was cut off.
    match fs::remove_file(format!("{STATE}.tmp")) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(words(error)),
        Ok(()) | Err(_) => {}
    }
    let (begin, mut bytes) = load()?;
    chain::walk(begin, steps, pause, |state| {
        let at = HEAD + (state.step as usize % BLOCKS) * BLOCK;
        fill(state.x, &mut bytes[at..at + BLOCK]);
        if state.step.is_multiple_of(EACH) || state.step == steps { save(state, &mut bytes) } else { Ok(()) }
    })
}

fn save(state: State, bytes: &mut [u8]) -> Result<(), String> {
    bytes[..8].copy_from_slice(&state.step.to_le_bytes());
    bytes[8..16].copy_from_slice(&state.x.to_le_bytes());
    let whole = sum(&bytes[HEAD..]);
    bytes[16..HEAD].copy_from_slice(&whole.to_le_bytes());
    saved::replace(STATE, bytes)?;
    let run = Path::new("/run/gpunion");
    if run.is_dir() { File::create(run.join("saved")).map(drop).map_err(words) } else { Ok(()) }
}

fn load() -> Result<(State, Vec<u8>), String> {
    let bytes = match fs::read(STATE) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok((State::default(), vec![0; HEAD + BLOCKS * BLOCK]));
        }
        Err(error) => return Err(words(error)),
    };
    if bytes.len() != HEAD + BLOCKS * BLOCK {
        return Err(format!("{STATE} has {} bytes", bytes.len()));
    }
    let number = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let (state, whole) = (State { step: number(0), x: number(8) }, number(16));
    if sum(&bytes[HEAD..]) != whole {
        return Err(format!("{STATE} is damaged"));
    }
    Ok((state, bytes))
}
