//! The agent's hands on a real engine: guests with the real init, helpers, images.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

mod cgroup2;
mod guests;
mod harness;
mod images;
mod provider;
mod registry;
mod second_way;
mod workspace;
