//! What guests really computed, and how much of it no accepted checkpoint holds: in the world's own
//! time, from what the guests did. It reads of the relay's records what they say of states, checkpoints
//! and moves, and asks no machine how it reckons; what a member is told of a move must not be less than
//! what the job has lost.
//!
//! What counts of an attempt ends with its last word that reached the relay, and begins with its first:
//! before and after that nobody can know of it. A checkpoint that its program did not say it saved is
//! taken to hold all work until the guest stood still, since nobody can tell what is not in its files.

use std::collections::{BTreeMap, BTreeSet};

use gpunion_protocol::ids::{AttemptRef, JobId, SnapshotId, Token};
use gpunion_protocol::job::{AttemptState, EndCause, Quality, StopWhy};
use gpunion_relay::broker::record::{Attempt, Course};

use super::machine::Guest;
use super::world::World;

/// What the clocks of relay and agents may differ in a span: 400 parts in a million, and what is rounded.
const DRIFT_PART: u64 = 2_000;
const ROUNDED: u64 = 20;

#[derive(Debug, Default)]
pub(super) struct Work {
    lines: BTreeMap<JobId, BTreeMap<Token, Line>>,
    running: BTreeSet<AttemptRef>,
    taken: BTreeMap<SnapshotId, Taken>,
    /// When somebody set a wall clock last: no figure that spans it can be held against anything.
    clock_set: u64,
    totals: Totals,
}

/// Milliseconds of the world.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Totals {
    pub(super) moves: u64,
    pub(super) checked: u64,
    pub(super) lost: u64,
    /// Left with notice, and nothing was amiss meanwhile.
    pub(super) left_in_peace: u64,
}

/// One attempt.
#[derive(Debug, Default)]
struct Line {
    /// When its program went on or stood still, and how long it had computed by then.
    points: Vec<Point>,
    begun_from: u64,
    steps: u64,
    /// Work when its program said last that it saved, and that word.
    saved: Option<u64>,
    saved_ns: Option<i64>,
    exited: bool,
    notice: Option<Notice>,
    relay: AtRelay,
}

#[derive(Debug, Clone, Copy)]
struct Point {
    at: u64,
    work: u64,
    runs: bool,
}

/// What reached the relay, by world time.
#[derive(Debug, Default)]
struct AtRelay {
    heard: Option<u64>,
    quit: Option<u64>,
    cause: Option<EndCause>,
    /// Of the checkpoint that holds most: work, steps, and how long it was on its way.
    held: Option<Held>,
    told: bool,
    /// A restored relay has forgotten what it knew.
    forgotten: bool,
}

#[derive(Debug, Clone, Copy)]
struct Held {
    work: u64,
    steps: u64,
    late: u64,
}

/// The owner said that it must leave: how many troubles there had been by then.
#[derive(Debug, Clone, Copy)]
struct Notice {
    troubles: u64,
    healthy: bool,
}

#[derive(Debug)]
struct Taken {
    work: u64,
    /// What the program's last word holds, unless it had ended.
    saved: Option<u64>,
    steps: u64,
}

/// What the world knows when a move is told.
struct Seen<'a> {
    doubtful: bool,
    from_steps: Option<u64>,
    attempt: &'a Attempt,
}

impl Line {
    fn work_at(&self, at: u64) -> u64 {
        let before = self.points.iter().rev().find(|point| point.at <= at);
        before.map_or(0, |point| point.work + if point.runs { at - point.at } else { 0 })
    }

    fn runs(&mut self, runs: bool, at: u64) {
        if self.points.last().map(|point| point.runs) != Some(runs) {
            let work = self.work_at(at);
            self.points.push(Point { at, work, runs });
        }
    }

    /// What the relay can't have told as less: work from its first to its last word that no checkpoint
    /// holds, but for what was on its way.
    fn lost_at_least(&self) -> Option<(u64, u64)> {
        let (heard, quit) = (self.relay.heard?, self.relay.quit?);
        let (work, unheard) = (self.work_at(quit), self.work_at(heard));
        let span = quit.saturating_sub(heard);
        let slack = ROUNDED + span / DRIFT_PART;
        let (held, late) = self.relay.held.map_or((0, 0), |held| (held.work, held.late));
        let lost = work.saturating_sub(held.max(unheard));
        Some((lost, slack + late))
    }
}

impl Work {
    fn line(&mut self, name: &AttemptRef) -> &mut Line {
        self.lines.entry(name.job.clone()).or_default().entry(name.token).or_default()
    }

    fn known(&self, name: &AttemptRef) -> Option<&Line> {
        self.lines.get(&name.job)?.get(&name.token)
    }

    pub(super) fn clock_is_set(&mut self, at: u64) {
        self.clock_set = at;
    }

    /// The relay knows again what it knew once, and nothing of what came since.
    pub(super) fn relay_goes_back(&mut self) {
        self.lines.values_mut().flat_map(BTreeMap::values_mut).for_each(|line| line.relay.forgotten = true);
    }

    fn guest(&mut self, name: &AttemptRef, guest: &Guest, awake: bool, at: u64) {
        let runs = guest.runs() && awake;
        let is_known = self.running.contains(name);
        // Most steps change nothing of a guest.
        let line = self.line(name);
        if line.points.is_empty() {
            line.begun_from = guest.begun_from;
        }
        line.runs(runs, at);
        line.steps = guest.content.steps;
        line.exited |= guest.end.is_some();
        if guest.saved_ns != line.saved_ns {
            line.saved_ns = guest.saved_ns;
            line.saved = Some(line.work_at(at));
        }
        if runs && !is_known {
            self.running.insert(name.clone());
        }
    }

    fn taken(&mut self, name: &AttemptRef, snapshot: SnapshotId, steps: u64, at: u64) {
        let line = self.line(name);
        let (work, saved) = (line.work_at(at), line.saved.filter(|_| !line.exited));
        self.taken.insert(snapshot, Taken { work, saved, steps });
    }

    fn accepted(&mut self, course: &Course, sent: &BTreeMap<SnapshotId, u64>, at: u64) {
        for checkpoint in &course.chain {
            let Some(taken) = self.taken.remove(&checkpoint.snapshot) else { continue };
            let late = at.saturating_sub(sent.get(&checkpoint.snapshot).copied().unwrap_or(at));
            let quiet = taken.saved.filter(|_| checkpoint.quality == Quality::Quiet);
            let held = Held { work: quiet.unwrap_or(taken.work), steps: taken.steps, late };
            let name = AttemptRef { job: course.job.clone(), token: checkpoint.token };
            let line = self.line(&name);
            // One that its program did not say so of counts for nothing after one that it did.
            let counts = line.relay.held.is_none_or(|before| before.work <= held.work);
            line.relay.held = if counts { Some(held) } else { line.relay.held };
        }
    }

    fn attempt(&mut self, attempt: &Attempt, contact: u64, troubles: u64, at: u64) {
        let name = attempt.named();
        let line = self.line(&name);
        if attempt.ran {
            line.relay.heard.get_or_insert(at);
        }
        match &attempt.state {
            AttemptState::Ended { cause } => {
                if line.relay.cause.is_none() {
                    line.relay.cause = Some(cause.clone());
                    // Nothing may have gone wrong until here.
                    line.notice.take_if(|notice| notice.troubles != troubles);
                }
                let last = if *cause == EndCause::Lost { contact.min(at) } else { at };
                line.relay.quit.get_or_insert(last);
            }
            AttemptState::Saving | AttemptState::Stopped { why: StopWhy::Reclaim } => {
                line.relay.quit.get_or_insert(at);
            }
            AttemptState::Stopped {
                why: StopWhy::Checkpoint | StopWhy::LeaseOver | StopWhy::Suspended | StopWhy::Away,
            }
            | AttemptState::Reserved
            | AttemptState::Preparing { .. }
            | AttemptState::Ready
            | AttemptState::Running => {}
        }
    }

    /// The member is told what the move cost.
    fn moved(&mut self, seen: &Seen<'_>) -> Result<(), String> {
        let Some(told) = &seen.attempt.moved else { return Ok(()) };
        let clock_set = self.clock_set;
        let Some(lines) = self.lines.get_mut(&seen.attempt.job) else { return Ok(()) };
        let Some(here) = lines.get_mut(&seen.attempt.token) else { return Ok(()) };
        if std::mem::replace(&mut here.relay.told, true) {
            return Ok(());
        }
        self.totals.moves += 1;
        let before = lines.range(..seen.attempt.token).rev().find(|(_, line)| line.relay.heard.is_some());
        let Some((token, before)) = before else {
            return Err(format!("{} has moved and ran nowhere before", seen.attempt.named()));
        };
        let Some((lost, slack)) = before.lost_at_least() else { return Ok(()) };
        self.totals.lost += lost;
        let began = before.points.first().map_or(0, |point| point.at).min(before.relay.heard.unwrap_or(0));
        if seen.doubtful || before.relay.forgotten || clock_set >= began {
            return Ok(());
        }
        self.totals.checked += 1;
        // People read whole seconds, rounded up; what a word was on its way is less than that.
        if told.lost.0.next_multiple_of(1_000) + slack < lost {
            return Err(format!(
                "{} is said to have cost {} ms of work, and {token} had computed {lost} ms more than is kept",
                seen.attempt.named(),
                told.lost.0,
            ));
        }
        let noticed = before.notice.filter(|notice| notice.healthy);
        if noticed.is_some() && before.relay.cause == Some(EndCause::Left) && before.saved.is_some() {
            self.totals.left_in_peace += 1;
            if seen.from_steps != Some(before.steps) {
                return Err(format!(
                    "{token} of {} had saved step {}, left in peace, and is gone on from {:?}",
                    seen.attempt.job, before.steps, seen.from_steps
                ));
            }
        }
        Ok(())
    }

    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    /// All that guests computed.
    pub(super) fn done(&self, at: u64) -> u64 {
        self.lines.values().flat_map(BTreeMap::values).map(|line| line.work_at(at)).sum()
    }

    /// What each attempt that is over computed in all, its end, and how many of its steps are kept.
    pub(super) fn over(&self, at: u64) -> impl Iterator<Item = Over<'_>> {
        let all = self.lines.iter().flat_map(|(job, lines)| lines.values().map(move |line| (job, line)));
        all.filter_map(move |(job, line)| {
            let kept = line.relay.held.map_or(0, |held| held.steps.saturating_sub(line.begun_from));
            Some(Over { job, work: line.work_at(at), kept, cause: line.relay.cause.as_ref()? })
        })
    }
}

#[derive(Debug)]
pub(super) struct Over<'a> {
    pub(super) job: &'a JobId,
    pub(super) work: u64,
    pub(super) kept: u64,
    pub(super) cause: &'a EndCause,
}

impl World {
    /// After each step: which guests compute from now on.
    pub(super) fn watch_work(&mut self) {
        let at = self.at;
        for seat in &self.hosts {
            let awake = seat.asleep_until <= at;
            for (name, _, guest) in seat.machine.living().filter(|(_, _, guest)| guest.begun) {
                self.work.guest(name, guest, awake, at);
            }
        }
        let lives = |name: &AttemptRef| self.hosts.iter().any(|seat| seat.machine.guest(name).is_some());
        let gone: Vec<AttemptRef> = self.work.running.iter().filter(|name| !lives(name)).cloned().collect();
        for name in gone {
            self.work.line(&name).runs(false, at);
            self.work.running.remove(&name);
        }
    }

    pub(super) fn work_taken(&mut self, attempt: &AttemptRef, snapshot: SnapshotId, steps: u64) {
        self.work.taken(attempt, snapshot, steps, self.at);
    }

    pub(super) fn work_must_leave(&mut self, host: usize, attempts: &[AttemptRef]) {
        let seat = &self.hosts[host];
        let healthy = seat.session.is_some() && seat.net && seat.machine.engine && !seat.disk_full;
        let relay = self.relay.broker.is_some() && !self.relay.disk_full && self.relay.hung_until <= self.at;
        let notice = Notice { troubles: self.troubles(), healthy: healthy && relay };
        for attempt in attempts {
            self.work.line(attempt).notice.get_or_insert(notice);
        }
    }

    pub(super) fn work_accepted(&mut self, course: &Course, at: u64) {
        self.work.accepted(course, &self.sent, at);
    }

    pub(super) fn work_of(&mut self, attempt: &Attempt, at: u64) -> Result<(), String> {
        let name = attempt.named();
        let (contact, troubles) = (self.reference.contact_with(&name), self.troubles());
        self.work.attempt(attempt, contact, troubles, at);
        if attempt.moved.is_none() || self.work.known(&name).is_some_and(|line| line.relay.told) {
            return Ok(());
        }
        let from = attempt.from.and_then(|from| self.store.get(&from));
        let doubtful = self.reference.is_doubtful(&attempt.job);
        let seen = Seen { doubtful, from_steps: from.map(|content| content.steps), attempt };
        self.work.moved(&seen)
    }

    pub(super) fn count_work(&mut self) {
        let Totals { moves, checked, lost, left_in_peace } = self.work.totals();
        self.stats.work_done_ms = self.work.done(self.at);
        (self.stats.work_lost_ms, self.stats.moves) = (lost, moves);
        (self.stats.moves_checked, self.stats.left_in_peace) = (checked, left_in_peace);
    }

    /// How much has gone wrong so far.
    fn troubles(&self) -> u64 {
        let stats = &self.stats;
        let messages = stats.lost + stats.reordered + stats.cuts;
        let all = stats.agent_crashes + stats.relay_crashes + stats.reboots + stats.engine_outages;
        let people = stats.leavings + stats.revoked + stats.stops + stats.reclaims + stats.guests_killed;
        let still = stats.sleeps + stats.hangs + stats.deaf_inits + stats.leases_over + stats.ambushes;
        messages + all + people + still + stats.commits_failed + stats.operations_in_trouble + self.faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes from 1,000 to 5,000 and from 6,000 on; the relay hears of it from 2,000 to 9,000.
    fn line() -> Line {
        let mut line = Line::default();
        line.runs(true, 1_000);
        line.runs(true, 3_000);
        line.runs(false, 5_000);
        line.runs(true, 6_000);
        (line.relay.heard, line.relay.quit) = (Some(2_000), Some(9_000));
        line
    }

    #[test]
    fn work_is_the_time_in_which_a_guest_computed() {
        let line = line();
        let at = [500, 1_000, 4_000, 5_000, 5_900, 6_000, 9_000].map(|at| line.work_at(at));
        assert_eq!(at, [0, 0, 3_000, 4_000, 4_000, 4_000, 7_000]);
        assert_eq!(line.points.len(), 3, "what goes on as it did is no point");
    }

    #[test]
    fn what_no_checkpoint_holds_is_lost_between_the_first_word_and_the_last() {
        let mut line = line();
        assert_eq!(line.lost_at_least(), Some((6_000, ROUNDED + 3)));
        line.relay.held = Some(Held { work: 5_500, steps: 5, late: 40 });
        assert_eq!(line.lost_at_least(), Some((1_500, ROUNDED + 3 + 40)));
        line.relay.quit = None;
        assert_eq!(line.lost_at_least(), None, "while it may still compute");
    }
}
