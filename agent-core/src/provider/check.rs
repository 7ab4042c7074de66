//! What must hold between any two events; the simulation asks at every step.

use std::collections::BTreeSet;

use gpunion_protocol::local::Wish;

use super::Provider;
use super::record::Phase;

impl Provider {
    /// The first thing that does not hold, in a sentence.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut held = BTreeSet::new();
        for attempt in self.attempts.values().filter(|a| !a.record.phase.is_over()) {
            for gpu in &attempt.record.assignment.gpus {
                if !held.insert(gpu) {
                    return Err(format!("{gpu} is lent to two attempts at a time"));
                }
            }
        }
        for attempt in self.attempts.values() {
            if attempt.record.phase.is_over() && attempt.may_live() {
                return Err(format!("{} is over and its guest may live", attempt.name()));
            }
            if attempt.may_live() && attempt.record.phase == Phase::Pull {
                return Err(format!("{} runs before it was prepared", attempt.name()));
            }
            let done = matches!(attempt.record.phase, Phase::Over { told: true, cleaned: true, .. });
            if done && !self.has_vestige(attempt) {
                return Err(format!("{} is done with and still on the books", attempt.name()));
            }
        }
        if self.is_open() && !self.reclaims.is_empty() {
            return Err("attempts are taken while a reclaim is under way".to_owned());
        }
        if self.is_open() && self.ruled_out().is_some() {
            return Err("attempts are taken against the owner's rules".to_owned());
        }
        if self.is_open() && !self.wishes_now().any(|wish| matches!(wish, Wish::Sharing { .. })) {
            return Err("attempts are taken against the owner's wish".to_owned());
        }
        Ok(())
    }
}
