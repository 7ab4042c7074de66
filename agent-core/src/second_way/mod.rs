//! The second way: what ends a guest whose init does not answer, while the engine may be away too.
//!
//! A container of our own program, started while the machine lends, sees the cgroups of this
//! device's guests and a folder of the owner's with its socket, and nothing else. Here is where
//! those cgroups are (`cgroups`, pure), that the container is there (`keeper`), and how it is
//! told (`talk`, which needs no agent: `gpunion reclaim` uses it too). It decides nothing about
//! guests; the provider's machine and the owner do.

mod cgroups;
mod keeper;
mod talk;

pub use cgroups::{CgroupDriver, Cgroups, Rights};
pub use keeper::cgroups_with;
pub(crate) use keeper::{Kept, keep};
pub use talk::{Told, ask};
