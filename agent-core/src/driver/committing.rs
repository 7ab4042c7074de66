//! From a change to the disk, and from there to what waits for it.
//!
//! One commit at a time: what is decided meanwhile goes into the next. A commit that fails is tried
//! again and nothing of it is acted upon, but for the owner's receipt, which waits for no disk and
//! says so.

use std::time::Duration;

use gpunion_protocol::time::{BootMs, Millis};

use super::store::Store;
use super::{Driver, crash};
use crate::config::clock;
use crate::provider::effect::Effect;
use crate::provider::record::Change;
use crate::provider::wish_not_saved;

const COMMIT_RETRY: Duration = Duration::from_secs(1);
/// A commit takes milliseconds; after so long its disk is taken to hang.
const COMMIT_STUCK: Millis = Millis(500);

pub(super) struct Committing {
    effects: Vec<Effect>,
    since: BootMs,
    pub(super) done: tokio::task::JoinHandle<(Store, Vec<Change>, anyhow::Result<()>)>,
}

impl Driver {
    /// Starts a commit of what changed, unless one is under way; its effects wait for it.
    pub(super) fn commit(&mut self) {
        if self.committing.is_some() {
            return;
        }
        let Some(mut store) = self.store.take() else { return };
        let changes = self.parts.provider.take_changes();
        if changes.is_empty() {
            self.store = Some(store);
            for effect in std::mem::take(&mut self.held) {
                self.execute(effect);
            }
            return;
        }
        let effects = std::mem::take(&mut self.held);
        crash::before(|| "Commit".to_owned());
        let done = tokio::task::spawn_blocking(move || {
            let result = store.commit(&changes);
            (store, changes, result)
        });
        self.committing = Some(Committing { effects, since: clock::boot(), done });
    }

    pub(super) fn committed(&mut self, done: Option<(Store, Vec<Change>, anyhow::Result<()>)>) {
        // What the disk has may not be wanted any more.
        self.look_for_word();
        let Some(committing) = self.committing.take() else { return };
        let Some((store, changes, result)) = done else {
            tracing::error!("the writer of the agent's records is gone; the agent can't go on");
            return;
        };
        match result {
            Ok(()) => {
                crash::before(|| "Committed".to_owned());
                self.store = Some(store);
                for effect in committing.effects {
                    self.execute(effect);
                }
                self.commit();
            }
            Err(error) => {
                tracing::error!("{error:#}; nothing of it is acted upon, trying again");
                self.parts.provider.wish_not_saved();
                self.retry_commit(store, changes, committing.effects);
            }
        }
        self.publish();
    }

    /// The owner's answers do not wait for a disk that is full; all else does.
    fn retry_commit(&mut self, mut store: Store, changes: Vec<Change>, effects: Vec<Effect>) {
        let (now, later): (Vec<Effect>, Vec<Effect>) = effects
            .into_iter()
            .chain(std::mem::take(&mut self.held))
            .partition(|effect| matches!(effect, Effect::ReclaimAnswer { .. }));
        for effect in now {
            self.execute(effect.ahead_of_disk());
        }
        let done = tokio::task::spawn_blocking(move || {
            std::thread::sleep(COMMIT_RETRY);
            let result = store.commit(&changes);
            (store, changes, result)
        });
        self.committing = Some(Committing { effects: later, since: clock::boot(), done });
    }

    /// A disk that hangs fails nothing and answers nobody: the owner's receipt does not wait for it,
    /// and says that the wish is not on disk.
    pub(super) fn answer_past_a_stuck_disk(&mut self) {
        let Some(committing) = &mut self.committing else { return };
        if clock::boot() - committing.since < COMMIT_STUCK {
            return;
        }
        self.parts.provider.wish_not_saved();
        let waiting = committing.effects.iter_mut().chain(self.held.iter_mut());
        let mut calls = Vec::new();
        for effect in waiting {
            if let Effect::ReclaimAnswer { call, answer } = effect {
                if let Ok(receipt) = answer {
                    wish_not_saved(receipt);
                }
                calls.push((*call, answer.clone()));
            }
        }
        for (call, answer) in calls {
            // The effect that waits finds nobody any more who is to be answered.
            self.execute(Effect::ReclaimAnswer { call, answer });
        }
    }
}
