//! A relay whose disk is replaced by an older state of itself. What was accepted since is lost, and
//! its members hand it in again; nothing else may go wrong by it.

use std::collections::BTreeMap;

use gpunion_relay::broker::Key;

use super::reference::Reference;
use super::world::{Due, World};

pub(super) struct Backup {
    pub(super) disk: BTreeMap<Key, Vec<u8>>,
    pub(super) reference: Reference,
}

impl World {
    /// The operator keeps a copy of the disk, or puts back the one that is kept.
    pub(super) fn relay_is_restored(&mut self) {
        match self.relay.backup.take() {
            None => {
                let (disk, reference) = (self.relay.disk().clone(), self.reference.jobs_alone());
                self.relay.backup = Some(Backup { disk, reference });
            }
            Some(backup) => {
                self.stats.restores += 1;
                if self.relay.broker.is_some() {
                    self.relay_dies();
                }
                self.trace.say(self.at, || "the relay's disk is that of a backup".to_owned());
                self.relay.put_back(backup.disk);
                self.reference.goes_back(backup.reference);
                self.work.relay_goes_back();
                self.hand_in_again();
                self.revoke_again();
            }
        }
    }

    fn hand_in_again(&mut self) {
        for job in 0..self.jobs.len() {
            let planned = &mut self.jobs[job];
            if !self.reference.knows(&planned.id) {
                (planned.answered, planned.cancel) = (false, false);
            }
            if !self.reference.is_final(&planned.id) {
                planned.cancel_answered = false;
            }
            self.after(1, Due::Client { job });
        }
    }
}
