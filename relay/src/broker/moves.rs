//! What a move costs a job: how long nobody computed, and how much work is lost at most.
//!
//! All times are the relay's own: a provider says how old a checkpoint's content is when it tells
//! it, never at what time it was taken. Told in words to the job's member, once a move.

use gpunion_protocol::ids::AttemptRef;
use gpunion_protocol::job::{AttemptState, Checkpoint, EndCause, Moved, Quality, StopWhy};
use gpunion_protocol::time::{Millis, Now, WallMs};

use super::Broker;
use super::record::{Attempt, Course};

impl Broker {
    /// The program stands still for good, or is ending: what it computes after this counts nowhere.
    pub(super) fn quits(&mut self, named: &AttemptRef, state: &AttemptState, now: Now) {
        let quits = match state {
            AttemptState::Saving | AttemptState::Stopped { why: StopWhy::Reclaim } => true,
            AttemptState::Stopped {
                why: StopWhy::Checkpoint | StopWhy::LeaseOver | StopWhy::Suspended | StopWhy::Away,
            }
            | AttemptState::Reserved
            | AttemptState::Preparing { .. }
            | AttemptState::Ready
            | AttemptState::Running
            | AttemptState::Ended { .. } => false,
        };
        if let Some(attempt) = self.attempt_mut(named).filter(|_| quits) {
            attempt.quit.get_or_insert(now.wall);
        }
    }

    /// When an attempt that is over computed last, as far as anybody knows: one that vanished may
    /// have gone on, but nothing of it counts since its last word.
    pub(super) fn quit_at(&self, named: &AttemptRef, cause: &EndCause, now: Now) -> WallMs {
        let lease = self.config.terms.lease + self.config.terms.margin;
        let silent = self.live.get(named).filter(|_| *cause == EndCause::Lost).map(|live| {
            let left = (live.lease_until - now.boot).0;
            Millis(lease.0.saturating_sub(left)) + (now.boot - live.lease_until)
        });
        WallMs(now.wall.0.saturating_sub(i64::try_from(silent.unwrap_or_default().0).unwrap_or(0)))
    }

    /// The attempt runs now: what came before it, and what that cost.
    pub(super) fn has_moved(&mut self, named: &AttemptRef, now: Now) {
        let Some((before, cost)) = self.cost_of(named, now) else { return };
        let name = |device| self.device_name(device).unwrap_or("a provider").to_owned();
        let to = self.attempt(&named.job, named.token.attempt).map(|attempt| name(&attempt.device));
        let text = sentence(&name(&before.device), &to.unwrap_or_default(), &cost);
        if let Some(attempt) = self.attempt_mut(named) {
            attempt.moved = Some(cost);
        }
        self.moves = self.moves.saturating_add(1);
        self.note(&named.job, text, now);
    }

    fn cost_of(&self, named: &AttemptRef, now: Now) -> Option<(Attempt, Moved)> {
        let all = self.attempts.get(&named.job)?;
        let this = all.get(&named.token.attempt)?;
        let before = all.range(..named.token.attempt).map(|(_, a)| a).rev().find(|a| a.ran)?;
        let quit = before.quit.or(before.ended)?;
        let began = before.started.unwrap_or(quit);
        let saved = self.courses.get(&named.job).and_then(|course| counted(course, this));
        // What an earlier attempt left is no younger than this one's begin, whatever the clock said then.
        let saved = saved.filter(|c| c.token == before.token).and_then(|c| c.taken.or(c.at));
        let moved = Moved {
            from: before.device.clone(),
            idle: between(quit, now.wall),
            lost: between(saved.map_or(began, |saved| saved.max(began)), quit),
        };
        Some((before.clone(), moved))
    }
}

/// Since which checkpoint work is lost: the last quiet one, since the program itself said so; else the
/// one that the attempt goes on from.
fn counted<'a>(course: &'a Course, attempt: &Attempt) -> Option<&'a Checkpoint> {
    let at = course.chain.iter().position(|c| Some(c.snapshot) == attempt.from)?;
    let usable: &[Checkpoint] = course.chain.get(..=at)?;
    let quiet = usable.iter().rev().find(|c| c.quality == Quality::Quiet);
    quiet.or(usable.last())
}

fn between(from: WallMs, to: WallMs) -> Millis {
    Millis(u64::try_from(to.0.saturating_sub(from.0)).unwrap_or(0))
}

fn sentence(from: &str, to: &str, moved: &Moved) -> String {
    let seconds = |time: Millis| time.0.div_ceil(1_000);
    let place =
        if from == to { format!("Started again on {to}") } else { format!("Moved from {from} to {to}") };
    format!(
        "{place}, {} s without computing, at most {} s of work lost",
        seconds(moved.idle),
        seconds(moved.lost)
    )
}

#[cfg(test)]
mod tests {
    use gpunion_protocol::ids::DeviceId;

    use super::*;

    #[test]
    fn a_move_reads_as_people_say_it() {
        let from = DeviceId::new(1, [1; 10]);
        let moved = Moved { from, idle: Millis(11_200), lost: Millis(40_000) };
        assert_eq!(
            sentence("lab-7", "lab-3", &moved),
            "Moved from lab-7 to lab-3, 12 s without computing, at most 40 s of work lost"
        );
        assert!(sentence("lab-7", "lab-7", &moved).starts_with("Started again on lab-7, "));
    }
}
