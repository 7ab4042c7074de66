//! Arbitrary and altered bytes into everything of this crate that reads what another machine, a
//! guest or a person wrote: no panic, no overflow of the stack, and memory in proportion to what
//! really came, whatever it declares.
//!
//! Sealed forms (packs, manifests, records) have their own such tests in `snapshot/tests`, image
//! archives in `agent-core/src/container/archive.rs`, stored logs in `relay/src/logs`.

#![expect(clippy::unwrap_used, reason = "tests")]

mod alter;
mod decoders;
mod lengths;
mod memory;
mod samples;
mod texts;

#[global_allocator]
static COUNTED: memory::Counted = memory::Counted;
