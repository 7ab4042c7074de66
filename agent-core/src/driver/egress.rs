//! Where the proxy of a guest with egress stands, and what it is opened with.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::operations::Operations;
use super::workspace::folder;
use crate::channel::Peer;
use crate::egress::Egress;
use crate::provider::record::AttemptRecord;

/// The folder of its socket, in the guest's folder: mounted into the guest, read-only.
pub(super) const FOLDER: &str = "egress";

impl Operations {
    /// `None`: the guest has no egress, and no folder for it either.
    pub(super) fn egress_folder(&self, record: &AttemptRecord) -> Option<PathBuf> {
        let at = folder(&self.fixed.guests, &record.assignment.attempt);
        record.has_egress().then(|| at.join(FOLDER))
    }

    pub(super) fn open_egress(
        &self,
        record: &AttemptRecord,
        container: &str,
    ) -> io::Result<Option<Arc<Egress>>> {
        let Some(folder) = self.egress_folder(record) else { return Ok(None) };
        let asked = record.assignment.spec.network.names().map_err(io::Error::other)?;
        let egress = Egress::open(
            &folder,
            &record.assignment.attempt,
            Peer::Container(container.to_owned()),
            (asked, self.fixed.egress.clone()),
            record.contacts.clone().unwrap_or_default(),
            self.fixed.places.clone(),
            self.events.clone(),
        )?;
        Ok(Some(Arc::new(egress)))
    }
}
