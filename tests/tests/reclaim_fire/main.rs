//! Reclaim under fire: whatever is broken from before the click until after the receipt, the owner
//! has the GPU back, and the receipt says how.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

mod alone;
mod disk;
mod engine;
