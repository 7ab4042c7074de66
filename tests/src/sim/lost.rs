//! How much work owners' departures cost, and what the same departures would have cost others.
//!
//! The world's own relay, agents and programs, without its faults: what happens are departures of
//! `owners` and long jobs, one after the other, as many at a time as there are machines. What is lost of
//! an attempt is what its guest computed and no accepted checkpoint holds in whole steps of its program,
//! by `work`, which asks no machine. The rivals are reckoned on the very attempts that a departure ended:
//! requeue from scratch loses all that the attempt computed, and a checkpoint each ten minutes all
//! since the last, its content taken to be whole at any moment and to travel at once, which favours it. What
//! standing still for checkpoints costs is in none of the figures.
//! Disks and networks are this world's: to read and to send a workspace takes it a second or so, and the
//! interval that the product chooses by itself is as short as that allows. Larger ones lose more.

use gpunion_protocol::job::EndCause;

use super::owners::{Class, Departure, How, departures};
use super::people::Owner;
use super::script::Script;
use super::world::{Due, World};

const CLASSES: [Class; 3] = [Class::Office, Class::Bursts, Class::Laptop];
const HOUR: u64 = 3_600_000;
/// A rival's interval, milliseconds.
const FIXED: u64 = 600_000;
/// Members look for room so often.
const LOOKS: u64 = 60_000;

/// Milliseconds of work.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct LostWork {
    /// All that was computed, whatever became of it.
    pub done: u64,
    pub departures: u64,
    /// Attempts that a departure ended while, or after, they computed.
    pub ended: u64,
    pub ours: u64,
    pub scratch: u64,
    pub fixed: u64,
    /// Of ours, by how the attempt ended.
    pub ours_reclaimed: u64,
    pub ours_left: u64,
    pub ours_vanished: u64,
}

impl LostWork {
    /// An attempt that ended so had computed this much, of which so much is kept.
    fn ends(&mut self, cause: &EndCause, work: u64, kept: u64) {
        let ours = work.saturating_sub(kept);
        match cause {
            EndCause::Reclaimed => self.ours_reclaimed += ours,
            EndCause::Left => self.ours_left += ours,
            // A machine that comes back soon tells itself that its guest is gone.
            EndCause::Lost | EndCause::Stale | EndCause::Broken { .. } => self.ours_vanished += ours,
            EndCause::CouldNotStart { .. }
            | EndCause::Exited { .. }
            | EndCause::Signalled { .. }
            | EndCause::MemoryLimit
            | EndCause::DiskLimit
            | EndCause::Cancelled => return,
        }
        self.ended += u64::from(work > 0);
        self.ours += ours;
        self.scratch += work;
        self.fixed += work % FIXED;
    }

    /// Of both together.
    pub fn add(&mut self, other: &Self) {
        let Self { done, departures, ended, ours, scratch, fixed, .. } = other;
        self.done += done;
        self.departures += departures;
        self.ended += ended;
        self.ours += ours;
        self.scratch += scratch;
        self.fixed += fixed;
        self.ours_reclaimed += other.ours_reclaimed;
        self.ours_left += other.ours_left;
        self.ours_vanished += other.ours_vanished;
    }
}

/// So many hours of three machines from this seed, from a Monday at midnight on; an error is an invariant that did not hold.
pub fn lost_work(seed: u64, hours: u64) -> Result<LostWork, String> {
    let mut world = World::new(seed, Script::of([]), false);
    world.calm = true;
    let mut lost = LostWork::default();
    for (host, class) in (0..world.hosts.len()).zip(CLASSES) {
        for departure in departures(class, seed, host as u64, hours) {
            lost.departures += 1;
            world.will_depart(host, departure);
        }
    }
    let mut looks = LOOKS;
    while world.at < hours * HOUR {
        world.step();
        if let Some(what) = world.failure.take() {
            return Err(format!("seed {seed}: {what}"));
        }
        if world.at >= looks {
            looks = world.at + LOOKS;
            world.keeps_busy();
        }
    }
    lost.done = world.work.done(world.at);
    for over in world.work.over(world.at) {
        let pace = world.by_id.get(over.job).map_or(0, |job| world.jobs[*job].program.pace);
        lost.ends(over.cause, over.work, over.kept * pace);
    }
    Ok(lost)
}

impl World {
    fn will_depart(&mut self, host: usize, Departure { at, lasts, how }: Departure) {
        let what = match how {
            How::Notice => Owner::Share { on: false, gpu: None, for_ms: None },
            How::Reclaim => Owner::Reclaim { gpu: None },
            How::Away => Owner::Sleeps { for_ms: lasts },
            How::Lost => Owner::PowerGoes { for_ms: lasts },
        };
        self.at_time(at, Due::Owner { host, what });
        match how {
            How::Notice | How::Reclaim => {
                let again = Owner::Share { on: true, gpu: None, for_ms: None };
                self.at_time(at + lasts, Due::Owner { host, what: again });
            }
            // Its wish is on its disk.
            How::Away | How::Lost => {}
        }
    }

    /// As many jobs as machines.
    fn keeps_busy(&mut self) {
        let open = self.jobs.iter().filter(|job| !self.reference.is_final(&job.id)).count();
        for _ in open..self.hosts.len() {
            let job = self.long_job();
            self.after(1, Due::Client { job });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nothing_is_kept_of_is_lost_as_from_scratch() {
        let mut lost = LostWork::default();
        lost.ends(&EndCause::Lost, 1_500_000, 0);
        assert_eq!((lost.ours, lost.scratch, lost.fixed), (1_500_000, 1_500_000, 300_000));
        lost.ends(&EndCause::Reclaimed, 900_000, 890_000);
        assert_eq!((lost.ours, lost.scratch, lost.fixed), (1_510_000, 2_400_000, 600_000));
        assert_eq!((lost.ours_vanished, lost.ours_reclaimed, lost.ended), (1_500_000, 10_000, 2));
    }

    #[test]
    fn what_ended_by_itself_lost_nothing() {
        let mut lost = LostWork::default();
        lost.ends(&EndCause::Exited { code: 0 }, 1_500_000, 0);
        assert_eq!(lost, LostWork::default());
    }

    #[test]
    fn a_morning_has_departures_and_is_the_same_each_time() {
        let morning = lost_work(1, 11).unwrap();
        assert!(
            morning.departures > 0 && morning.ended > 0 && morning.scratch > 0 && morning.done > HOUR,
            "{morning:?}"
        );
        assert_eq!(lost_work(1, 11), Ok(morning));
    }
}
