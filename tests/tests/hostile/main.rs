//! A guest that means harm, as a real job through the whole product: relay, an agent that runs as
//! an ordinary user, an engine. It reaches nothing; each attempt is a test.
//!
//! `tests/hostile-guest` makes the attempts. A refusal proves something only where the same
//! attempt could have succeeded, so each is also made outside of a guest, where it does. All tests
//! share one campus, which ends with the last of them.

#![expect(clippy::unwrap_used, reason = "tests")]

mod channel;
mod fill;
mod outlive;
mod reach;
mod shared;
mod world;
