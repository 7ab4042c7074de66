//! Chance of a test on real engines: another one each time, and the same again from its seed.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::Write as _;

use anyhow::{Context as _, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

/// Where a seed is given.
const SEED: &str = "GPUNION_SEED";

#[derive(Debug)]
pub struct Luck(ChaCha8Rng);

impl Luck {
    /// Says its seed, also when the test goes well: what one run covered is known afterwards.
    pub fn of(test: &str) -> Result<Self> {
        let seed = match std::env::var(SEED) {
            Ok(text) => text.parse().with_context(|| format!("{SEED}={text:?} is no number"))?,
            // Each has keys of its own, from the system's chance.
            Err(_) => RandomState::new().build_hasher().finish(),
        };
        say(&format!("{test}: again by {SEED}={seed}"));
        Ok(Self(ChaCha8Rng::seed_from_u64(seed)))
    }

    /// In `from..=to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.0.next_u64() % (to.saturating_sub(from) + 1)
    }

    /// In `0..length`; 0 of none.
    pub fn index(&mut self, length: usize) -> usize {
        self.between(0, length.max(1) as u64 - 1) as usize
    }

    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.index(last + 1));
        }
    }
}

/// A line that a run of all tests shows, whatever came of the test.
pub fn say(line: &str) {
    // Nobody who reads is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{line}");
}
