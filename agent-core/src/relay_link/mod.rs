//! The session with the relay, and its HTTP interface. Dials out only.
//!
//! Moves bytes and messages; decides nothing about attempts or jobs. Silence is not death: a call
//! fails when it stalls, and a session that breaks is dialled again, for days if need be.

pub mod backoff;
pub mod client;
pub mod jobs;
pub mod pairing;
mod parts;
pub mod session;
pub mod sse;
pub mod tls;
pub mod transfer;
mod trust;

pub use client::RelayClient;
pub use session::{LinkStatus, SessionEvent, SessionHandle};
