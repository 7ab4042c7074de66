//! kill -9 of agent, relay, init and engine at the boundaries that a traced run passes: the job
//! ends once, with the bytes of an undisturbed run, and nothing of it is left.
//!
//! A boundary is a pass of a kind of effect, commit, operation or word, as `driver/crash.rs` of
//! agent and relay name them. Agent and relay end by themselves just before they pass it; init
//! and engine are ended by the test, the moment that the agent has passed it. Each test goes
//! through one pass of each kind, in an order that its seed decides, for as long as it may take;
//! with `GPUNION_CRASH_ALL=1` through all passes of all kinds.

#![expect(clippy::unwrap_used, reason = "tests")]

mod agent;
mod course;
mod engine;
mod init;
mod points;
mod reached;
mod relay;
mod traced;
