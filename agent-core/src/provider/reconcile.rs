//! What exists on the machine compared with what should: after a start of the agent, and each
//! time the engine comes back.
//!
//! A running attempt is adopted, what has no right to run is ended, all else is left alone. The
//! engine's silence means unknown (F63, F74); only a list that it gave says that a container is
//! not there (F78).

use std::collections::BTreeMap;

use gpunion_protocol::gpu::{GpuState, GpuView, SAMPLE_LASTS};
use gpunion_protocol::ids::AttemptRef;
use gpunion_protocol::time::{BootMs, Millis, Now};

use super::Provider;
use super::attempt::Life;
use super::effect::{Effect, Operation};
use super::event::{Engine, Found, Inventory};
use super::record::Phase;

/// What an operation that was given up, or one of an earlier run of the agent, still brings about
/// in the engine is there after so long.
const LIST_SOON: Millis = Millis(30_000);
/// And what takes the engine longer is found by this.
const LIST_EACH: Millis = Millis(300_000);

impl Provider {
    /// What an earlier run of the agent started is listened to and watched at once: neither needs
    /// the engine, and a reclaim must not wait for it. Only an idle init that was started while its
    /// workspace was filled is not on the books by name: of that one the engine's list tells.
    pub(super) fn adopt(&mut self, out: &mut Vec<Effect>) {
        if !std::mem::take(&mut self.to_adopt) {
            return;
        }
        for attempt in self.attempts.values().filter(|attempt| attempt.may_live()) {
            if let (Some(container), Some(process)) = (&attempt.record.container, attempt.record.process) {
                let (attempt, container) = (attempt.name().clone(), container.clone());
                out.push(Effect::Attach { attempt, container, process });
            }
        }
    }

    pub(super) fn engine_says(&mut self, engine: Engine, now: Now, out: &mut Vec<Effect>) {
        let was_known = self.engine_known();
        self.engine = engine;
        if !self.engine_known() {
            self.reconciled = false;
            self.list_at = None;
        } else if !was_known {
            out.push(Effect::ListOurs);
        }
        let names: Vec<AttemptRef> = self.attempts.keys().cloned().collect();
        for name in names {
            self.advance(&name, now, out);
        }
    }

    pub(super) fn found(&mut self, found: &Inventory, now: Now, out: &mut Vec<Effect>) {
        if !self.engine_known() {
            return;
        }
        let wait = if self.reconciled { LIST_EACH } else { LIST_SOON };
        self.reconciled = true;
        self.list_by(now.boot + wait);
        let mut by_attempt: BTreeMap<&AttemptRef, &Found> = BTreeMap::new();
        for one in &found.containers {
            if self.may_stay(one) && !by_attempt.contains_key(&one.attempt) {
                by_attempt.insert(&one.attempt, one);
            } else {
                out.push(Effect::RemoveContainer { container: one.container.clone() });
            }
        }
        // Held against the books as they are now: the list is older than what has begun since.
        let left: Vec<&AttemptRef> =
            found.left.iter().filter(|attempt| !self.attempts.contains_key(attempt)).collect();
        if !left.is_empty() {
            // A container may still hold one.
            self.list_by(now.boot + LIST_SOON);
        }
        out.extend(left.into_iter().map(|attempt| Effect::RemoveLeft { attempt: attempt.clone() }));
        let names: Vec<AttemptRef> = self.attempts.keys().cloned().collect();
        for name in &names {
            self.compare(name, by_attempt.get(name).copied(), now, out);
            self.advance(name, now, out);
        }
    }

    pub(super) fn list_soon(&mut self, now: Now) {
        if self.may_operate() {
            self.list_by(now.boot + LIST_SOON);
        }
    }

    fn list_by(&mut self, latest: BootMs) {
        self.list_at = Some(self.list_at.map_or(latest, |at| at.min(latest)));
    }

    pub(super) fn list_if_due(&mut self, now: Now, out: &mut Vec<Effect>) {
        if self.list_at.take_if(|at| *at <= now.boot).is_some() {
            out.push(Effect::ListOurs);
        }
    }

    /// Its attempt is on our books and may still have a container.
    fn may_stay(&self, one: &Found) -> bool {
        self.attempts.get(&one.attempt).is_some_and(|attempt| match &attempt.record.phase {
            // Made while its workspace was filled, or by a run of ours that crashed before it could write
            // the container's name down; the operation that makes it finds it by its own name.
            Phase::Stage | Phase::Create => true,
            Phase::Start
            | Phase::Running
            | Phase::Finishing { .. }
            | Phase::Leaving { .. }
            | Phase::Ending { .. } => {
                attempt.record.container.as_ref().is_none_or(|container| *container == one.container)
            }
            // The operation that cleans up takes it along.
            Phase::Over { cleaned, .. } => !cleaned,
            Phase::Pull => false,
        })
    }

    fn compare(&mut self, name: &AttemptRef, found: Option<&Found>, now: Now, out: &mut Vec<Effect>) {
        let Some(attempt) = self.attempts.get_mut(name) else { return };
        if attempt.life != Life::MayLive || attempt.op() == Some(Operation::Start) {
            return;
        }
        let is_to_end =
            matches!(attempt.record.phase, Phase::Ending { .. } | Phase::Leaving { exited: false, .. });
        // Its init is watched by this run of ours, which tells its end. The list is older than what
        // was done since it was asked for: it may not show what has just been started.
        if attempt.attached {
            if is_to_end {
                attempt.next_kill.get_or_insert(now.boot);
            }
            return;
        }
        let runs = found.is_some_and(|one| one.process.is_some());
        // One that waits for its word must not wait with an init that is gone: it is made anew.
        if attempt.waits_for_go() && found.is_some() && !runs {
            attempt.life = Life::Unborn;
            return self.set_phase(name, Phase::Create, out);
        }
        // A container that was never started waits for the operation that starts it.
        if attempt.record.phase == Phase::Start && found.is_some() && !attempt.waits_for_go() {
            return;
        }
        match found.and_then(|one| one.process.map(|process| (one, process))) {
            Some((one, process)) if attempt.record.process.is_none_or(|known| known == process) => {
                attempt.record.process = Some(process);
                let container = one.container.clone();
                out.push(Effect::Attach { attempt: name.clone(), container, process });
                if is_to_end {
                    attempt.next_kill.get_or_insert(now.boot);
                }
            }
            // Not running, or another process than the one we started: ours is gone.
            Some(_) | None => self.guest_gone(name, false, now, out),
        }
    }

    pub(super) fn gpus_say(&mut self, view: GpuView, now: Now, out: &mut Vec<Effect>) {
        self.gpus = view.aged(now.boot);
        self.gpus_read = true;
        let mut learnt = Vec::new();
        for (name, attempt) in &mut self.attempts {
            if !attempt.may_live() {
                continue;
            }
            let record = &mut attempt.record;
            let on_its_gpus = self.gpus.gpus.values().filter(|s| record.assignment.gpus.contains(&s.uuid));
            let new = record.traces.learn(on_its_gpus);
            if new {
                learnt.push(name.clone());
            }
        }
        for name in learnt {
            self.save_attempt(&name);
        }
        self.watch_gpus(now, out);
        self.reclaim_sees_gpus(now, out);
    }

    /// A driver that hangs tells nothing new: its last figures say nothing about now (F06).
    pub(super) fn age_gpus(&mut self, now: Now) {
        let view = std::mem::replace(&mut self.gpus, GpuView::none(""));
        self.gpus = view.aged(now.boot);
    }

    /// When the first of the figures gets too old.
    pub(super) fn gpus_age(&self) -> Option<BootMs> {
        let well = self.gpus.gpus.values().filter(|sample| sample.state == GpuState::Ok);
        well.map(|sample| sample.taken_at + SAMPLE_LASTS + Millis(1)).min()
    }
}
