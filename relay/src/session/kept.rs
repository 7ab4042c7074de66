//! How much of each attempt's output is kept, on its way to the agent. Only the newest word on
//! each counts, so a slow agent costs one entry an attempt and never its session.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use gpunion_protocol::ids::AttemptRef;
use gpunion_protocol::session::ToAgent;
use tokio::sync::Notify;

#[derive(Default)]
pub(super) struct Kept {
    words: Mutex<BTreeMap<AttemptRef, u64>>,
    news: Notify,
}

impl Kept {
    pub(super) fn set(&self, attempt: AttemptRef, offset: u64) {
        self.words.lock().unwrap_or_else(PoisonError::into_inner).insert(attempt, offset);
        self.news.notify_one();
    }

    /// Waits for words, and takes them.
    pub(super) async fn take(&self) -> Vec<ToAgent> {
        loop {
            let words = std::mem::take(&mut *self.words.lock().unwrap_or_else(PoisonError::into_inner));
            if !words.is_empty() {
                let message = |(attempt, offset)| ToAgent::LogKept { attempt, offset };
                return words.into_iter().map(message).collect();
            }
            self.news.notified().await;
        }
    }
}
