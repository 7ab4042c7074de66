//! The work: a chain of numbers, each made of the one before, so that a step that is left out,
//! taken twice or taken from elsewhere gives another end.

use std::time::Duration;

use crate::say;

/// Steps that are done, and what they came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) step: u64,
    pub(crate) x: u64,
}

impl State {
    pub(crate) fn next(self) -> Self {
        Self { step: self.step + 1, x: mix(self.x ^ mix(self.step + 1)) }
    }
}

/// Scatters the bits of a number, one to one (the finaliser of SplitMix64).
pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// From `state` on until `steps` are done; `save` comes after each.
pub(crate) fn walk(
    mut state: State,
    steps: u64,
    pause: Duration,
    mut save: impl FnMut(State) -> Result<(), String>,
) -> Result<u64, String> {
    say(&format!("from step {}", state.step));
    while state.step < steps {
        std::thread::sleep(pause);
        state = state.next();
        save(state)?;
        say(&format!("step {} of {steps}", state.step));
    }
    Ok(state.x)
}

/// Bytes that follow from `x`, and from nothing else.
pub(crate) fn fill(x: u64, bytes: &mut [u8]) {
    let mut at = x;
    for part in bytes.chunks_mut(8) {
        at = mix(at);
        part.copy_from_slice(&at.to_le_bytes()[..part.len()]);
    }
}

/// Finds accidents, not enemies.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0, |sum, part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        mix(sum ^ u64::from_le_bytes(word))
    })
}
