//! The consumer half: shows what a folder would send, sends it as a job, fetches what came of it.
//!
//! Works for the one member whose device this is, with the rights of the agent's user. Everything
//! that leaves the machine is sealed here first.

pub mod fetch;
mod image_archive;
pub mod images;
pub mod keys;
mod memory;
pub mod plan;
mod progress;
pub mod submit;
pub mod suggest;
pub mod tree;
mod upload;

use std::fmt;
use std::sync::Arc;

use crate::config::Dirs;
use crate::relay_link::pairing::Pairing;
use images::ImageStore;

/// Cheap to clone.
#[derive(Clone)]
pub struct Consumer {
    dirs: Dirs,
    pairing: Arc<Pairing>,
    images: Arc<dyn ImageStore>,
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("dirs", &self.dirs).finish_non_exhaustive()
    }
}

impl Consumer {
    pub fn new(dirs: Dirs, pairing: Arc<Pairing>, images: Arc<dyn ImageStore>) -> Self {
        Self { dirs, pairing, images }
    }

    pub fn pairing(&self) -> &Arc<Pairing> {
        &self.pairing
    }
}
