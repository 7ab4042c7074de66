//! Where keys and nonces come from: handed in by the caller, so that the format has exact test
//! vectors and nothing in here draws randomness behind its back.

use std::fmt;

use crate::error::{Error, Result};

pub trait Randomness {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<()>;
}

/// The kernel's generator: the only one for real data.
#[derive(Debug, Default, Clone, Copy)]
pub struct SystemRandomness;

impl Randomness for SystemRandomness {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        getrandom::fill(bytes).map_err(|error| Error::System {
            what: "the system gives no random bytes",
            source: std::io::Error::other(error),
        })
    }
}

/// A fixed stream (the extended output of BLAKE3 over a seed): for test vectors and simulations
/// only, since whoever knows the seed knows every key.
pub struct SeededRandomness(blake3::OutputReader);

impl SeededRandomness {
    #[must_use]
    pub fn new(seed: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("gpunion 2026 seeded randomness v1");
        hasher.update(seed);
        Self(hasher.finalize_xof())
    }
}

impl Randomness for SeededRandomness {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.0.fill(bytes);
        Ok(())
    }
}

impl fmt::Debug for SeededRandomness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SeededRandomness(..)")
    }
}
