//! Providers where nothing starts, as the relay's disk tells: when the third job in a row, not all
//! of one member, could not start on one and nothing else did, none is placed there for five
//! minutes, whatever else fits.
//!
//! One commit may hold what happened in any order: what can't be told apart is taken for a start.

use std::collections::{BTreeMap, BTreeSet};

use gpunion_protocol::ids::{AttemptRef, DeviceId, JobId, MemberId};
use gpunion_protocol::job::{AttemptState, EndCause};
use gpunion_relay::broker::record::Attempt;

/// Less the clocks' drift, milliseconds.
const LENGTH: u64 = 299_000;

#[derive(Debug, Default)]
pub(super) struct Asides {
    failed: BTreeMap<DeviceId, BTreeSet<(JobId, MemberId)>>,
    until: BTreeMap<DeviceId, u64>,
    /// Of the commit that is looked at.
    failing: Vec<(DeviceId, JobId, MemberId)>,
    started: BTreeSet<DeviceId>,
    placed: Vec<(DeviceId, AttemptRef)>,
}

impl Asides {
    /// An attempt as it was and as it is. One of a job that is final may have started before that, and
    /// says nothing else.
    pub(super) fn changed(
        &mut self,
        before: Option<&Attempt>,
        attempt: &Attempt,
        member: &MemberId,
        job_is_final: bool,
    ) {
        let device = attempt.device.clone();
        if before.is_none() {
            self.placed.push((device.clone(), attempt.named()));
        }
        let had_run = before.is_some_and(|before| before.ran);
        let had_ended = before.is_some_and(|before| before.state.is_ended());
        if attempt.ran && !had_run {
            self.started.insert(device);
        } else if !job_is_final && !attempt.ran && !had_ended && could_not_start(&attempt.state) {
            self.failing.push((device, attempt.job.clone(), member.clone()));
        }
    }

    /// True when a provider was put aside in this commit.
    pub(super) fn committed(&mut self, at: u64) -> Result<bool, String> {
        for (device, name) in std::mem::take(&mut self.placed) {
            let barred = self.until.get(&device).is_some_and(|until| at < *until);
            if barred && !self.started.contains(&device) {
                return Err(format!("{name} is placed where nothing starts"));
            }
        }
        let mut any = false;
        for (device, job, member) in std::mem::take(&mut self.failing) {
            let failed = self.failed.entry(device.clone()).or_default();
            let was_enough = is_enough(failed);
            failed.insert((job, member));
            if is_enough(failed) && !was_enough {
                self.until.insert(device, at + LENGTH);
                any = true;
            }
        }
        for device in std::mem::take(&mut self.started) {
            self.failed.remove(&device);
            self.until.remove(&device);
        }
        Ok(any)
    }

    /// A relay that starts anew knows of none.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

fn is_enough(failed: &BTreeSet<(JobId, MemberId)>) -> bool {
    let members: BTreeSet<&MemberId> = failed.iter().map(|(_, member)| member).collect();
    failed.len() >= 3 && members.len() > 1
}

fn could_not_start(state: &AttemptState) -> bool {
    match state {
        AttemptState::Ended { cause: EndCause::CouldNotStart { .. } | EndCause::Broken { .. } } => true,
        AttemptState::Ended { .. }
        | AttemptState::Reserved
        | AttemptState::Preparing { .. }
        | AttemptState::Ready
        | AttemptState::Running
        | AttemptState::Stopped { .. }
        | AttemptState::Saving => false,
    }
}
