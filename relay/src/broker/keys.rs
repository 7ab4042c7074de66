//! Who gets a job's key. The relay never sees one: it only asks those who hold it to wrap it for
//! one device more.

use std::collections::BTreeSet;

use gpunion_protocol::ids::{DeviceId, JobId};
use gpunion_protocol::job::WrappedKey;
use gpunion_protocol::session::ToAgent;
use gpunion_protocol::time::{Millis, Now};

use super::{Broker, Key};

/// Bytes of one wrapped key.
pub(super) const WRAPPED_MAX: usize = 1 << 10;
/// So many of a member's newest jobs are opened for a new device of theirs.
const JOBS_SHARED: usize = 64;

impl Broker {
    /// Asks every holder that is here; the first answer counts, and silence is asked again.
    pub(super) fn ask_for_keys(&mut self, wanted: BTreeSet<(JobId, DeviceId)>, now: Now) {
        self.wraps.retain(|pair, _| wanted.contains(pair));
        for (job, device) in wanted {
            let holders: Vec<DeviceId> = self
                .presence
                .keys()
                .filter(|d| self.is_reachable(d) && self.is_holder(d, &job))
                .cloned()
                .collect();
            let pair = (job.clone(), device.clone());
            if holders.is_empty() {
                self.wraps.remove(&pair);
                continue;
            }
            if self.wraps.get(&pair).is_some_and(|at| *at > now.boot) {
                continue;
            }
            self.wraps.insert(pair, now.boot + self.config.repeat.max(Millis(1)));
            let Some(public_key) = self.devices.get(&device).map(|d| d.public_key.clone()) else { continue };
            for holder in holders {
                let (job, device, public_key) = (job.clone(), device.clone(), public_key.clone());
                self.send(&holder, ToAgent::WrapFor { job, device, public_key });
            }
        }
    }

    /// A device of a member came: the member's devices give each other the keys of the newest jobs,
    /// so that a later one can fetch what an earlier one submitted.
    pub(super) fn share_keys(&mut self, came: &DeviceId) {
        let Some(member) = self.devices.get(came).map(|d| d.member.clone()) else { return };
        let own: Vec<DeviceId> = self
            .devices
            .values()
            .filter(|d| d.member == member && !d.revoked)
            .map(|d| d.id.clone())
            .collect();
        if own.len() < 2 {
            return;
        }
        let mut jobs: Vec<_> = self.jobs.values().filter(|job| job.member == member).collect();
        jobs.sort_by_key(|job| std::cmp::Reverse(job.number));
        let mut words = Vec::new();
        for job in jobs.into_iter().take(JOBS_SHARED) {
            let (have, lack): (Vec<&DeviceId>, Vec<&DeviceId>) =
                own.iter().partition(|device| job.keys.iter().any(|k| k.device == **device));
            let Some(holder) = have.into_iter().find(|device| self.is_reachable(device)) else { continue };
            for device in lack {
                let Some(row) = self.devices.get(device) else { continue };
                let (job, device, public_key) = (job.id.clone(), device.clone(), row.public_key.clone());
                words.push((holder.clone(), ToAgent::WrapFor { job, device, public_key }));
            }
        }
        for (holder, word) in words {
            self.send(&holder, word);
        }
    }

    /// The answer to `WrapFor`. The first key for a device stays: a holder that turned bad can't
    /// take it away from the others.
    pub(super) fn wrapped(&mut self, device: &DeviceId, job: &JobId, key: WrappedKey) {
        let of_use = self.open.contains(job) || self.is_of_member(&key.device, job);
        let fits = key.wrapped.0.len() <= WRAPPED_MAX
            && of_use
            && self.is_usable(&key.device)
            && self.is_holder(device, job);
        let Some(row) = self.jobs.get_mut(job).filter(|_| fits) else { return };
        if row.keys.iter().all(|k| k.device != key.device) {
            row.keys.push(key);
            self.touched.insert(Key::Job(job.clone()));
            self.queue_changed = true;
        }
    }

    /// Somebody may still hand it on, here or away.
    pub(super) fn has_a_holder(&self, job: &JobId) -> bool {
        self.jobs.get(job).is_some_and(|row| row.keys.iter().any(|key| self.is_holder(&key.device, job)))
    }

    /// It has the job's key and may hand it on: a device of its member, or the provider of the
    /// attempt that counts.
    fn is_holder(&self, device: &DeviceId, job: &JobId) -> bool {
        let Some(row) = self.jobs.get(job) else { return false };
        let has = row.keys.iter().any(|k| k.device == *device);
        let runs = self.newest(job).is_some_and(|a| a.device == *device && self.counts(&a.named()));
        has && self.is_usable(device) && (self.is_of_member(device, job) || runs)
    }
}
