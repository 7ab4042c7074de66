//! The real init as PID 1 of a real PID namespace, under an ordinary uid without any capability,
//! with an agent's side of the channel played by the test. Needs root, as `unshare` does.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one word among all")]
#![expect(clippy::disallowed_methods, reason = "the limits of waiting, and the clocks of real files")]

mod guest;

mod door;
mod egress;
mod ending;
mod output;
mod program;
mod stopping;
