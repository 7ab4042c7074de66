//! Salvage: what a reclaimed guest left in its workspace is kept for its job, once the owner has the
//! GPU.
//!
//! The reclaim is over by then, and waits for none of this. Until it is done the attempt is `saving`
//! and its job waits; so it is done only while it costs the job less time than it saves work, and
//! only if the owner allows. Any trouble ends it: the job then goes on from the checkpoint before.

use gpunion_protocol::ids::AttemptRef;
use gpunion_protocol::job::EndCause;
use gpunion_protocol::time::{Millis, Now};

use super::Provider;
use super::attempt::Attempt;
use super::effect::{Effect, Operation};
use super::record::Phase;

/// To read a workspace takes some hundred milliseconds at least: for less work than this it is left.
const AT_STAKE_LEAST: Millis = Millis(2_000);
/// However much work there is to save: what was reclaimed is gone within a day.
const AT_MOST: Millis = Millis::from_secs(24 * 3600);
/// Bytes a second that an upload is taken to make until one was measured: an old office network.
const RATE: u64 = 10 << 20;
/// After a restart of the agent it is not known any more when the newest checkpoint was taken.
const UNKNOWN: Millis = Millis::from_secs(60);

/// How fast this machine's uploads were of late.
#[derive(Debug, Default)]
pub(super) struct Pace {
    bytes_a_second: Option<u64>,
}

impl Pace {
    pub(super) fn sent(&mut self, bytes: u64, took: Millis) {
        // A few packs tell of latency and not of the link.
        if bytes >= 8 << 20 && took.0 > 0 {
            self.bytes_a_second = Some((bytes.saturating_mul(1_000) / took.0).max(1));
        }
    }

    fn time_for(&self, bytes: u64) -> Millis {
        Millis(bytes.saturating_mul(1_000) / self.bytes_a_second.unwrap_or(RATE))
    }
}

/// Waiting costs the job what the rest of the upload takes; not waiting costs it the work since the
/// checkpoint that it would go on from.
pub(super) fn is_worth_it(at_stake: Millis, rest: Millis) -> bool {
    rest <= at_stake
}

impl Attempt {
    /// It was reclaimed, and what it left is being saved.
    pub(super) fn is_salvaged(&self) -> bool {
        matches!(self.record.phase, Phase::Leaving { reclaimed: true, .. })
    }

    /// Work that is lost unless its workspace is salvaged, at most.
    pub(super) fn at_stake(&self, now: Now) -> Millis {
        let began = self.record.started.unwrap_or(now.wall);
        let last = self.last_checkpoint();
        let since = last.map_or(began, |(at, _)| at.max(began));
        let work = Millis(u64::try_from(now.wall.0.saturating_sub(since.0)).unwrap_or(0));
        let forgotten = last.is_none() && self.record.published.is_some();
        if forgotten { work.min(UNKNOWN) } else { work.min(AT_MOST) }
    }
}

impl Provider {
    /// Its guest was reclaimed and is gone. True when what it left is salvaged.
    pub(super) fn begins_salvage(&mut self, name: &AttemptRef, now: Now, out: &mut Vec<Effect>) -> bool {
        let may = self.wish.salvage && self.may_operate();
        let Some(attempt) = self.attempts.get_mut(name).filter(|_| may) else { return false };
        let at_stake = attempt.at_stake(now);
        let reclaimed = attempt.record.phase == Phase::Ending { cause: EndCause::Reclaimed };
        let began = attempt.record.started.is_some();
        if !reclaimed || !began || attempt.record.orphaned || at_stake < AT_STAKE_LEAST {
            return false;
        }
        attempt.leave.salvage_until(now.boot + at_stake, at_stake);
        self.set_leaving(name, Phase::Leaving { exited: false, reclaimed: true }, now, out);
        true
    }

    /// Something did not work. True when that ends it.
    pub(super) fn salvage_troubled(
        &mut self,
        name: &AttemptRef,
        what: Operation,
        now: Now,
        out: &mut Vec<Effect>,
    ) -> bool {
        let waits_for_relay = matches!(what, Operation::Upload { .. }) && !self.link.is_up();
        if waits_for_relay || !self.attempts.get(name).is_some_and(Attempt::is_salvaged) {
            return false;
        }
        out.push(Effect::GiveUp { attempt: name.clone() });
        self.has_left(name, now, out);
        true
    }

    /// It has been read: is it worth what the upload still takes?
    pub(super) fn is_worth_sending(&self, at_stake: Option<Millis>, bytes: u64) -> bool {
        at_stake.is_none_or(|at_stake| is_worth_it(at_stake, self.pace.time_for(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_salvage_that_takes_longer_than_it_saves_is_left() {
        let pace = Pace::default();
        assert!(is_worth_it(Millis(60_000), pace.time_for(256 << 20)));
        assert!(!is_worth_it(Millis(20_000), pace.time_for(256 << 20)));
        assert!(is_worth_it(Millis(0), pace.time_for(0)));
    }

    #[test]
    fn the_pace_is_that_of_the_last_upload_that_tells_of_the_link() {
        let time = |sent: &[(u64, u64)]| {
            let mut pace = Pace::default();
            for (bytes, took) in sent {
                pace.sent(*bytes, Millis(*took));
            }
            pace.time_for(80 << 20)
        };
        assert_eq!(time(&[]), Millis(8_000), "10 MiB a second until one was measured");
        assert_eq!(time(&[(8 << 20, 500)]), Millis(5_000));
        assert_eq!(time(&[((8 << 20) - 1, 500)]), Millis(8_000), "a small one says nothing of the link");
        assert_eq!(time(&[(80 << 20, 4_000), (1 << 10, 1)]), Millis(4_000), "nor after a large one");
        assert_eq!(time(&[(80 << 20, 0)]), Millis(8_000), "it took no time that could be told");
    }
}
