//! The tests of the snapshot crate through its public face, one file a promise.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;
mod damage;
mod escape;
mod format;
mod incremental;
mod keys;
mod race;
mod resume;
mod round_trip;
mod tend;
mod trees;
mod update;
mod wire;
