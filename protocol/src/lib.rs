//! What crosses a wire: ids, spec, states, messages, problems.
//!
//! Only data and its text forms. No I/O, no clock, no randomness, no async runtime: every
//! other crate depends on this one, so it must stay small and dull. The wire is forgiving
//! (unknown fields are ignored; a relay serves agents one version older); the spec is not
//! (an unknown field is an error that names its nearest neighbour).

pub mod egress;
pub mod gpu;
pub mod guest;
pub mod http;
pub mod ids;
pub mod invite;
pub mod job;
pub mod local;
pub mod offer;
pub mod problem;
pub mod receipt;
pub mod rules;
pub mod second_way;
pub mod session;
pub mod spec;
pub mod tables;
pub mod time;
pub mod units;

/// The version of the wire between agent and relay; a relay serves this one and the one before.
pub const WIRE_VERSION: u32 = 2;
