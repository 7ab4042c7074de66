//! What each member used of late, in GPU-milliseconds that halve each half-life.
//!
//! Kept by boot time while the relay runs; a restart only stops the halving for as long as the
//! relay was away. An attempt is added when it ends; what still runs is counted when asked.

use std::collections::BTreeMap;

use gpunion_protocol::ids::{AttemptRef, MemberId};
use gpunion_protocol::time::{BootMs, Millis, Now};

use super::record::Usage;
use super::{Broker, Key};

/// A GPU that is held now weighs as much as this much use: else a member who submits ten jobs at
/// once would get ten GPUs before anybody's use is seen.
const HELD_WEIGHS: Millis = Millis::from_secs(600);

/// A job without a GPU counts as a tenth of one.
const CPU_JOB_TENTHS: u64 = 1;

#[derive(Debug, Clone, Copy)]
pub(super) struct Ledger {
    gpu_ms: u64,
    settled: BootMs,
}

impl Ledger {
    pub(super) fn new(gpu_ms: u64, now: Now) -> Self {
        Self { gpu_ms, settled: now.boot }
    }

    pub(super) fn record(self, member: MemberId) -> Usage {
        Usage { member, gpu_ms: self.gpu_ms }
    }

    fn at(self, now: Now, half_life: Millis) -> u64 {
        let halvings = (now.boot - self.settled).0 as f64 / half_life.0.max(1) as f64;
        (self.gpu_ms as f64 * (-halvings).exp2()) as u64
    }
}

/// GPU-milliseconds of so long on so many GPUs.
pub(super) fn weigh(gpus: usize, length: Millis) -> u64 {
    let tenths = if gpus == 0 { CPU_JOB_TENTHS } else { (gpus as u64).saturating_mul(10) };
    length.0.saturating_mul(tenths) / 10
}

/// What a newly placed job adds to its member's share.
pub(super) fn weigh_held(gpus: usize) -> u64 {
    weigh(gpus, HELD_WEIGHS)
}

impl Broker {
    /// Each member's recent use, with what they hold now.
    pub(super) fn shares(&self, now: Now) -> BTreeMap<MemberId, u64> {
        let half_life = self.config.half_life;
        let mut shares: BTreeMap<MemberId, u64> =
            self.usage.iter().map(|(id, ledger)| (id.clone(), ledger.at(now, half_life))).collect();
        for (named, live) in &self.live {
            let (Some(attempt), Some(job)) =
                (self.attempt(&named.job, named.token.attempt), self.jobs.get(&named.job))
            else {
                continue;
            };
            if !attempt.state.is_ended() && !live.lapsed {
                let gpus = attempt.gpus.len();
                let share = shares.entry(job.member.clone()).or_default();
                *share = share
                    .saturating_add(weigh(gpus, now.boot - live.used_from))
                    .saturating_add(weigh_held(gpus));
            }
        }
        shares
    }

    /// Adds an attempt that ends now, or whose lease ran out, to its member's use: what a provider
    /// does not answer for is charged to nobody.
    pub(super) fn settle(&mut self, named: &AttemptRef, now: Now) {
        let live = self.live.get(named).filter(|live| !live.lapsed);
        let (Some(live), Some(job)) = (live, self.jobs.get(&named.job)) else { return };
        let gpus = self.attempt(&named.job, named.token.attempt).map_or(0, |a| a.gpus.len());
        let used = weigh(gpus, now.boot - live.used_from);
        let member = job.member.clone();
        let before = self.usage.get(&member).map_or(0, |ledger| ledger.at(now, self.config.half_life));
        self.usage.insert(member.clone(), Ledger::new(before.saturating_add(used), now));
        self.touched.insert(Key::Usage(member));
    }
}

#[cfg(test)]
mod tests {
    use gpunion_protocol::time::WallMs;

    use super::*;

    #[test]
    fn use_halves_each_half_life_and_a_job_without_a_gpu_is_a_tenth() {
        let at = |boot| Now { boot: BootMs(boot), wall: WallMs(0) };
        let ledger = Ledger::new(800, at(1_000));
        let left = |boot| ledger.at(at(boot), Millis(500));
        assert_eq!((left(1_000), left(1_500), left(2_500), left(0)), (800, 400, 100, 800));
        assert_eq!((weigh(0, Millis(50)), weigh(1, Millis(50)), weigh(3, Millis(50))), (5, 50, 150));
        assert_eq!((weigh_held(0), weigh_held(2)), (60_000, 1_200_000));
    }
}
