//! How a long run is followed and stopped from outside.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A flag that stops a run at its next chunk; clones share it.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.is_cancelled() {
            return Err(Error::Cancelled);
        }
        Ok(())
    }
}

/// How far a run is. Totals are there when they are known beforehand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub bytes: u64,
    pub files: u64,
    pub total_bytes: Option<u64>,
    pub total_files: Option<u64>,
}

/// Cancel flag and progress callback together. The callback is called once a chunk and once a
/// file: it must be cheap, and throttle by itself.
pub struct Watch<'a> {
    pub cancel: Cancel,
    pub progress: Box<dyn FnMut(Progress) + 'a>,
}

impl Default for Watch<'_> {
    fn default() -> Self {
        Self { cancel: Cancel::default(), progress: Box::new(|_| {}) }
    }
}

impl fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("cancel", &self.cancel).finish_non_exhaustive()
    }
}
