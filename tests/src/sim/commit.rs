//! How an agent's driver saves: urgent effects ran already; one commit is under way at a time, what
//! happens meanwhile waits for the next; a commit that fails is tried again each second, and only
//! the owner's receipts do not wait for it. The agent may be killed between any two of these.

use gpunion_agent_core::provider::effect::Effect;
use gpunion_agent_core::provider::record::Change;

use super::script::Small;
use super::stats::Crash;
use super::world::{Due, World};

#[derive(Debug)]
pub(super) struct Committing {
    changes: Vec<Change>,
    effects: Vec<Effect>,
}

/// The product waits so long before it tries again, milliseconds.
const RETRY: u64 = 1_000;

impl World {
    /// Begins a commit of what changed, unless one is under way; its effects wait for it.
    pub(super) fn commit(&mut self, host: usize) {
        let seat = &mut self.hosts[host];
        let Some(agent) = seat.agent.as_mut().filter(|_| seat.committing.is_none()) else { return };
        let changes = agent.take_changes();
        let effects = std::mem::take(&mut seat.held);
        if changes.is_empty() {
            return self.effects(host, effects);
        }
        self.reference.agent_commits(host);
        let run = seat.run;
        seat.committing = Some(Committing { changes, effects });
        if self.small(Small::SlowDisk, 8) {
            let takes = self.chance.mostly_short(1, 2_000);
            return self.after(takes, Due::Commits { host, run });
        }
        self.commit_ends(host, run);
    }

    pub(super) fn commit_ends(&mut self, host: usize, run: u64) {
        if self.hosts[host].is_current(run) {
            self.look_for_word(host);
        }
        if !self.hosts[host].is_current(run) || self.dies_here(host, Crash::BeforeCommit) {
            return;
        }
        let seat = &mut self.hosts[host];
        let Some(Committing { changes, effects }) = seat.committing.take() else { return };
        if seat.disk_full {
            return self.commit_fails(host, changes, effects);
        }
        if let Err(what) = seat.write(changes) {
            return self.fail(what);
        }
        self.reference.agent_committed(host);
        if self.dies_here(host, Crash::AfterCommit) {
            return;
        }
        self.effects(host, effects);
        self.commit(host);
    }

    /// The owner's answers do not wait for a disk that is full; all else does.
    fn commit_fails(&mut self, host: usize, changes: Vec<Change>, effects: Vec<Effect>) {
        self.stats.commits_failed += 1;
        let seat = &mut self.hosts[host];
        if let Some(agent) = seat.agent.as_mut() {
            agent.wish_not_saved();
        }
        let (now, later): (Vec<Effect>, Vec<Effect>) = effects
            .into_iter()
            .chain(std::mem::take(&mut seat.held))
            .partition(|effect| matches!(effect, Effect::ReclaimAnswer { .. }));
        let run = seat.run;
        seat.committing = Some(Committing { changes, effects: later });
        self.after(RETRY, Due::Commits { host, run });
        self.effects(host, now.into_iter().map(Effect::ahead_of_disk).collect());
    }

    fn effects(&mut self, host: usize, effects: Vec<Effect>) {
        for effect in effects {
            if self.dies_here(host, Crash::BetweenEffects) {
                return;
            }
            self.effect(host, effect);
        }
    }
}
