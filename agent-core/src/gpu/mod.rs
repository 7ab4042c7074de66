//! This machine's GPUs: who they are, what they say, who is on them, and whether one is free.
//!
//! All of it is NVML in-process, on one thread that keeps its handles (F26, F27); nothing here
//! starts a program, decides about lending, or ends a process. GPUs are named by UUID, never by
//! index (F28). A figure that the driver can't give, or that can't be true, is absent and never
//! zero. `verify` and `plausible` are pure; `attribution` parses; `open`, `read` and `sampler`
//! do the talking.

mod attribution;
mod history;
mod open;
mod pace;
mod plausible;
mod power;
mod read;
mod sampler;
pub mod verify;
mod watch;

#[cfg(test)]
mod standin_tests;

pub use attribution::{container_of, process_identity, start_time};
pub use open::{NoGpus, Reader};
pub use verify::{BeforeGuest, GuestTraces, NotYet, ProcessId, Verdict, Verification};
pub use watch::{FastPoll, Gpus};
