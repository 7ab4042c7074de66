//! Guests with egress: init stops such a guest by itself when the deadline that it was told last
//! has passed, and lets it go on when it is told a later one. No agent is asked.

use gpunion_protocol::guest::FromInit;
use gpunion_protocol::ids::AttemptRef;
use gpunion_protocol::time::BootMs;

use super::world::{Due, World};

impl World {
    pub(super) fn has_egress(&self, attempt: &AttemptRef) -> bool {
        self.by_id.get(&attempt.job).is_some_and(|job| self.jobs[*job].has_egress())
    }

    /// Init is told until when its guest may run.
    pub(super) fn deadline_told(&mut self, host: usize, attempt: &AttemptRef, at: BootMs) {
        let machine = &mut self.hosts[host].machine;
        let (now, due) = (machine.clock.now(self.at).boot, machine.clock.world(at));
        let Some(guest) = machine.guest_mut(attempt) else { return };
        guest.deadline = Some(at);
        if at <= now {
            return self.deadline_passes(host, attempt, at);
        }
        let goes_on = std::mem::take(&mut guest.lease_over) && !guest.stopped;
        guest.since = if goes_on { self.at } else { guest.since };
        self.at_time(due, Due::Deadline { host, attempt: attempt.clone(), at });
        if goes_on {
            self.let_go(host, attempt);
        }
    }

    /// Its init looks at the clock before anything of it runs, also after a sleep.
    pub(super) fn is_past_its_deadline(&mut self, host: usize, attempt: &AttemptRef) -> bool {
        let machine = &self.hosts[host].machine;
        let now = machine.clock.now(self.at).boot;
        let Some(guest) = machine.guest(attempt).filter(|guest| !guest.deaf) else { return false };
        let Some(at) = guest.deadline.filter(|at| *at <= now) else { return false };
        self.deadline_passes(host, attempt, at);
        true
    }

    pub(super) fn deadline_passes(&mut self, host: usize, attempt: &AttemptRef, at: BootMs) {
        let now = self.at;
        let Some(guest) = self.hosts[host].machine.guest_mut(attempt) else { return };
        if guest.deadline != Some(at) || guest.lease_over || guest.deaf {
            return;
        }
        if guest.runs() {
            guest.done += now.saturating_sub(guest.since);
        }
        guest.lease_over = true;
        guest.plan += 1;
        self.stats.leases_over += 1;
        self.init_says(host, attempt, FromInit::DeadlinePassed);
    }

    /// Whoever has effects outside counts: no newer attempt exists. A guest whose init hears
    /// nothing is held by the agent's proxy alone, which this world does not have.
    pub(super) fn has_effects(&mut self, host: usize, attempt: &AttemptRef) {
        if self.has_egress(attempt)
            && self.hosts[host].machine.guest(attempt).is_some_and(|guest| guest.runs() && !guest.deaf)
            && let Some(newer) = self.reference.newer_than(attempt)
        {
            self.fail(format!("{attempt} has effects outside, and {newer} is placed"));
        }
    }

    pub(super) fn nobody_else_has_effects(&mut self) {
        let awake = |(_, seat): &(usize, &super::agent_host::Host)| seat.asleep_until <= self.at;
        let running = |(host, seat): (usize, &super::agent_host::Host)| {
            seat.machine.living().map(|(attempt, ..)| (host, attempt.clone())).collect::<Vec<_>>()
        };
        let all: Vec<_> = self.hosts.iter().enumerate().filter(awake).flat_map(running).collect();
        for (host, attempt) in all {
            self.has_effects(host, &attempt);
        }
    }
}
