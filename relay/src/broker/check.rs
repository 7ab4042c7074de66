//! What must hold at every step. Simulation and property tests ask after each one.

use std::collections::{BTreeMap, BTreeSet};

use gpunion_protocol::ids::{DeviceId, JobId, MemberId};

use super::Broker;
use super::record::Attempt;

impl Broker {
    /// Holds at every step, whatever happened; the sentence names what does not.
    pub fn check_invariants(&self) -> Result<(), String> {
        for job in self.jobs.keys() {
            self.check_job(job)?;
        }
        self.check_gpus()?;
        self.check_live()?;
        self.check_finished()?;
        self.check_indices()
    }

    /// Invariants 4, 5, 7 and 8 for one job.
    fn check_job(&self, job: &JobId) -> Result<(), String> {
        let course = self.courses.get(job).ok_or(format!("{job} has no course"))?;
        let state = self.job_state(job).ok_or(format!("{job} has no state"))?;
        if state.is_final() != course.end.is_some() || state.is_final() == self.open.contains(job) {
            return Err(format!("{job} is {} and its course says otherwise", state.word()));
        }
        let attempts: Vec<_> = self.attempts.get(job).into_iter().flat_map(|all| all.values()).collect();
        for pair in attempts.windows(2) {
            if pair[0].token >= pair[1].token {
                return Err(format!("{job}: attempt {} is not newer than the one before", pair[1].token));
            }
            if !pair[0].state.is_ended() && !pair[1].ahead {
                return Err(format!("{job}: attempt {} exists beside a newer one", pair[0].token));
            }
        }
        if course.end.is_some() && attempts.iter().any(|a| self.is_forgotten(a)) {
            return Err(format!("{job} is final, and nobody will ever end its attempt"));
        }
        let unended: Vec<_> = attempts.iter().filter(|a| !a.state.is_ended()).collect();
        if unended.iter().filter(|a| a.ahead).any(|a| self.is_past_ready(a)) {
            return Err(format!("{job}: what is only prepared runs"));
        }
        if unended.iter().filter(|a| a.ahead).count() > 1 {
            return Err(format!("{job}: more than one attempt is prepared ahead"));
        }
        if course.held.is_some() && unended.iter().any(|a| !a.ahead) {
            return Err(format!("{job} is held, but an attempt runs"));
        }
        if course.chain.len() > 2 || course.chain.windows(2).any(|pair| pair[0].token > pair[1].token) {
            return Err(format!("{job}: the chain is too long or out of order"));
        }
        let counting = attempts.iter().filter(|a| self.counts(&a.named())).count();
        if counting > 1 {
            return Err(format!("{job}: {counting} attempts count"));
        }
        if !state.is_final() && course.held.is_none() && !self.is_waiting(job) && counting == 0 {
            return Err(format!("{job} neither waits nor runs"));
        }
        Ok(())
    }

    fn is_past_ready(&self, attempt: &Attempt) -> bool {
        attempt.ran || !attempt.state.is_before_running()
    }

    /// It has not ended, and neither its lease nor its device will end it.
    fn is_forgotten(&self, attempt: &Attempt) -> bool {
        !attempt.state.is_ended() && self.live.get(&attempt.named()).is_none_or(|live| live.lapsed)
    }

    /// A GPU is lent whole, to one attempt at a time. (A device may claim to still have what it
    /// said had ended; that is its word, not a decision of this side.)
    fn check_gpus(&self) -> Result<(), String> {
        let mut used: BTreeSet<(&DeviceId, &str)> = BTreeSet::new();
        for attempt in self.all_attempts().filter(|a| !a.state.is_ended()) {
            for gpu in &attempt.gpus {
                if !used.insert((&attempt.device, &gpu.0)) {
                    return Err(format!("{gpu} of {} is lent twice", attempt.device));
                }
            }
        }
        Ok(())
    }

    /// Each attempt that its device may still have is watched, and no other.
    fn check_live(&self) -> Result<(), String> {
        for attempt in self.all_attempts() {
            let live = self.live.contains_key(&attempt.named());
            if live == attempt.released {
                return Err(format!("{}: released is {}", attempt.named(), attempt.released));
            }
            if attempt.released && !attempt.state.is_ended() {
                return Err(format!("{} is released, but has not ended", attempt.named()));
            }
        }
        match self.live.keys().find(|named| self.attempt(&named.job, named.token.attempt).is_none()) {
            Some(named) => Err(format!("{named} is watched, but unknown")),
            None => Ok(()),
        }
    }

    fn check_indices(&self) -> Result<(), String> {
        let usable = self.devices.values().filter(|d| !d.revoked).count();
        if self.tokens.len() != usable {
            return Err(format!("{} tokens for {usable} devices", self.tokens.len()));
        }
        if self.submits.len() != self.jobs.len() {
            return Err(format!("{} idempotency keys for {} jobs", self.submits.len(), self.jobs.len()));
        }
        let mut open: BTreeMap<MemberId, usize> = BTreeMap::new();
        for member in self.open.iter().filter_map(|job| self.job_member(job)) {
            *open.entry(member.clone()).or_default() += 1;
        }
        if open != self.open_of {
            return Err("open jobs are not counted right".to_owned());
        }
        let members: Vec<_> = self.members.values().filter(|m| !m.removed).collect();
        if !members.is_empty() && !members.iter().any(|m| self.is_operator(&m.id)) && self.had_operator() {
            return Err("the group has no operator any more".to_owned());
        }
        Ok(())
    }

    fn had_operator(&self) -> bool {
        self.members.values().any(|m| m.role == gpunion_protocol::http::Role::Operator)
    }
}
