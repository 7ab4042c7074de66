//! The group's meeting point: who may do what, what is queued, who holds which lease, where
//! packs are. It runs no jobs and reads no data of theirs.
//!
//! `broker` decides and is pure; `driver` owns it, commits what it changed (`store`) and only
//! then does what it wants done. `http` and `session` are the doors for devices, `admin` the one
//! for whoever can read the state folder. `packs` and `logs` keep bytes that need no decision.

pub mod admin;
pub mod broker;
mod clock;
pub mod config;
mod driver;
mod error;
mod feed;
mod http;
mod identity;
mod invites;
mod launch;
mod linger;
mod lock;
mod logs;
mod packs;
mod random;
mod room;
mod server;
mod session;
pub mod store;
mod strangers;
mod sweeping;

pub use config::{Config, Limits};
pub use error::Error;
pub use http::routes;
pub use launch::{OperatorInvite, Started, launch};
