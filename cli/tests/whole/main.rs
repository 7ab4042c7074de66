//! The consumer's side, from the command line to a real relay and back. One program, so that it is
//! linked once.
#![expect(clippy::unwrap_used, reason = "tests")]

mod asking;
mod contract;
mod following;
mod hostile;
mod link;
mod local;
mod program;
mod support;
mod transfer;
