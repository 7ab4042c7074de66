//! Departures seconds apart (F91): a lab that is switched off, an owner who needs all machines.
//!
//! The first costs its jobs no delay, but they avoid what else is its owner's. When another one
//! follows within seconds, those that lost their provider wait a moment until it is seen who stays:
//! a job that goes to one that goes as well has been moved for nothing.

use std::collections::BTreeMap;

use gpunion_protocol::ids::{DeviceId, JobId};
use gpunion_protocol::job::{AttemptState, EndCause};
use gpunion_protocol::time::{BootMs, Millis, Now};

use super::Broker;

/// So close together they may have one cause.
const TOGETHER: Millis = Millis::from_secs(5);
/// So long after the last of them everybody who goes along has gone.
const PAUSE: Millis = Millis::from_secs(3);
/// However many follow, nobody waits longer.
const PAUSE_MOST: Millis = Millis::from_secs(15);

#[derive(Debug, Clone, Default)]
pub(super) struct Departures {
    /// Who went of late, and when last.
    recent: BTreeMap<DeviceId, BootMs>,
    /// Those that went along with others wait meanwhile.
    pause: Option<Pause>,
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    since: BootMs,
    until: BootMs,
}

impl Broker {
    /// Its owner stopped lending, or took a GPU back.
    pub(super) fn departs(&mut self, device: &DeviceId, now: Now) {
        let departures = &mut self.departures;
        departures.recent.retain(|_, at| *at + TOGETHER > now.boot);
        let alone = departures.recent.keys().all(|other| other == device);
        departures.recent.insert(device.clone(), now.boot);
        if !alone {
            let paused = departures.pause.filter(|pause| pause.until > now.boot);
            let since = paused.map_or(now.boot, |pause| pause.since);
            let until = (now.boot + PAUSE).min(since + PAUSE_MOST);
            departures.pause = Some(Pause { since, until });
        }
    }

    pub(super) fn end_pause(&mut self, now: Now) {
        let before = self.departures.recent.len();
        self.departures.recent.retain(|_, at| *at + TOGETHER > now.boot);
        if self.departures.recent.len() < before {
            self.queue_changed = true;
        }
        if self.departures.pause.take_if(|pause| pause.until <= now.boot).is_some() {
            self.queue_changed = true;
        }
    }

    pub(super) fn pause_ends(&self) -> Option<BootMs> {
        let recent = self.departures.recent.values().map(|at| *at + TOGETHER);
        recent.chain(self.departures.pause.map(|pause| pause.until)).min()
    }

    /// Another machine of its owner's has just gone.
    pub(super) fn may_go_too(&self, device: &DeviceId) -> bool {
        let owner = |device| self.devices.get(device).map(|device| &device.member);
        self.departures.recent.keys().any(|gone| gone != device && owner(gone) == owner(device))
    }

    /// The job has just lost its provider, as others have.
    pub(super) fn waits_to_see(&self, job: &JobId) -> Option<String> {
        self.departures.pause?;
        let left = self.newest(job).is_some_and(|attempt| match &attempt.state {
            AttemptState::Ended { cause: EndCause::Left | EndCause::Reclaimed } => true,
            AttemptState::Ended { .. }
            | AttemptState::Reserved
            | AttemptState::Preparing { .. }
            | AttemptState::Ready
            | AttemptState::Running
            | AttemptState::Stopped { .. }
            | AttemptState::Saving => false,
        });
        left.then(|| "Several providers left within seconds; it waits a moment to see who stays".to_owned())
    }
}
