//! The program's own random numbers (xoshiro256++).
//!
//! Their whole state is four words that go into the checkpoint, so a resumed training draws what
//! the undisturbed one would have drawn. Never seeded from a clock or from the system.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rng(pub(crate) [u64; 4]);

impl Rng {
    /// Spreads one word over the state with splitmix64, as the authors of xoshiro advise.
    pub(crate) fn from_seed(mut seed: u64) -> Self {
        let mut next = || {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Rng([next(), next(), next(), next()])
    }

    pub(crate) fn word(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in [0, 1), on the 53 bits that an f64 holds exactly.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Fisher and Yates. The bias of the modulus is 2^-53 here: of no account for an order.
    pub(crate) fn shuffle(&mut self, items: &mut [u32]) {
        for last in (1..items.len()).rev() {
            let other = (self.word() % (last as u64 + 1)) as usize;
            items.swap(last, other);
        }
    }
}
