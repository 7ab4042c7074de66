//! A whole relay over real TLS on loopback, as devices and operators meet it.
#![expect(clippy::unwrap_used, reason = "tests")]

mod common;
mod group;
mod hostile;
mod jobs;
mod objects;
mod operating;
mod sessions;
mod sweep;
