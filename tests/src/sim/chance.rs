//! The one source of chance. All that happens in a world follows from its seed through here.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Whose luck it is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stream {
    World,
    Relay,
    /// A machine with its agent, its guests and its owner.
    Machine,
    /// When the next fault comes.
    Faults,
    Fault,
    Job,
    /// When the owner of a machine leaves, in `lost`.
    Owners,
}

#[derive(Debug, Clone)]
pub(super) struct Chance(ChaCha8Rng);

impl Chance {
    /// A stream of its own for the `number`th of its kind in the world of this seed.
    pub(super) fn of(seed: u64, kind: Stream, number: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        bytes[16] = 1 + kind as u8;
        Self(ChaCha8Rng::from_seed(bytes))
    }

    /// In `from..=to`.
    pub(super) fn between(&mut self, from: u64, to: u64) -> u64 {
        let span = to.saturating_sub(from).saturating_add(1).max(1);
        from + self.0.next_u64() % span
    }

    /// True once in `n` times.
    pub(super) fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.between(1, n) == 1
    }

    pub(super) fn coin(&mut self) -> bool {
        self.one_in(2)
    }

    /// Mostly near `from`, now and then up to `to`.
    pub(super) fn mostly_short(&mut self, from: u64, to: u64) -> u64 {
        let top = from.max(1).saturating_mul(10).min(to).max(from);
        if self.one_in(6) { self.between(from, to) } else { self.between(from, top) }
    }

    pub(super) fn index(&mut self, length: usize) -> usize {
        self.between(0, length.max(1) as u64 - 1) as usize
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.fill_bytes(&mut bytes);
        bytes
    }
}
