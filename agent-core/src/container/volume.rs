//! The volumes of this device: workspaces and read-only inputs. Nothing here opens one: what is
//! in them is a guest's, and only the helper container looks inside.

use std::collections::HashMap;

use bollard::models::{Volume, VolumeCreateRequest};
use bollard::query_parameters::{ListVolumesOptions, RemoveVolumeOptions};
use gpunion_protocol::ids::{AttemptRef, SnapshotId};

use super::calls::{Engine, LONG, SHORT, within, within_optional};
use super::error::EngineError;
use super::labels::{self, Labels};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OurVolume {
    pub name: String,
    /// Of a workspace.
    pub attempt: Option<AttemptRef>,
    /// Of a read-only input.
    pub data: Option<SnapshotId>,
}

const WORKSPACE_KIND: &str = "workspace";
const DATA_KIND: &str = "data";

impl Engine {
    /// Answers its name. One that is there stays as it is.
    pub async fn create_workspace(&self, attempt: &AttemptRef) -> Result<String, EngineError> {
        let name = labels::workspace_name(self.device(), attempt);
        self.create(name, labels::of_attempt(self.device(), WORKSPACE_KIND, attempt)).await
    }

    /// The workspace that an attempt has here. It is never made in passing: an empty one must not
    /// pass for what a job has left.
    pub async fn workspace(&self, attempt: &AttemptRef) -> Result<Option<String>, EngineError> {
        const DOING: &str = "looking for the workspace";
        let name = labels::workspace_name(self.device(), attempt);
        let client = self.client(DOING).await?;
        let Some(found) = within_optional(DOING, SHORT, client.inspect_volume(&name)).await? else {
            return Ok(None);
        };
        self.volume_must_be_ours(DOING, &found)?;
        Ok(Some(name))
    }

    pub async fn remove_workspace(&self, attempt: &AttemptRef) -> Result<(), EngineError> {
        self.remove_volume(&labels::workspace_name(self.device(), attempt)).await
    }

    /// The volume of an input, empty. Where one is half filled it is made anew; one that a container
    /// still has mounted stays as it is, and that is a matter of waiting.
    pub async fn fresh_data(&self, snapshot: &SnapshotId) -> Result<String, EngineError> {
        match self.remove_data(snapshot).await {
            Err(EngineError::Refused { doing, reason }) if reason.contains("in use") => {
                return Err(EngineError::away(doing, format!("a guest still reads it ({reason})")));
            }
            removed => removed?,
        }
        self.create_data(snapshot).await
    }

    pub async fn create_data(&self, snapshot: &SnapshotId) -> Result<String, EngineError> {
        let mut marks = labels::of_device(self.device(), DATA_KIND);
        marks.insert(labels::SNAPSHOT.to_owned(), snapshot.to_string());
        self.create(labels::data_name(self.device(), snapshot), marks).await
    }

    pub async fn remove_data(&self, snapshot: &SnapshotId) -> Result<(), EngineError> {
        self.remove_volume(&labels::data_name(self.device(), snapshot)).await
    }

    /// Nothing to remove is no error; one without our label is refused.
    pub async fn remove_volume(&self, name: &str) -> Result<(), EngineError> {
        const DOING: &str = "removing a volume";
        let client = self.client(DOING).await?;
        let Some(found) = within_optional(DOING, SHORT, client.inspect_volume(name)).await? else {
            return Ok(());
        };
        self.volume_must_be_ours(DOING, &found)?;
        let call = client.remove_volume(name, None::<RemoveVolumeOptions>);
        within_optional(DOING, LONG, call).await.map(drop)
    }

    pub async fn list_volumes(&self) -> Result<Vec<OurVolume>, EngineError> {
        const DOING: &str = "listing our volumes";
        let options = ListVolumesOptions { filters: Some(self.our_label()) };
        let listed = within(DOING, SHORT, self.client(DOING).await?.list_volumes(Some(options))).await?;
        Ok(listed
            .volumes
            .unwrap_or_default()
            .into_iter()
            .filter(|volume| labels::are_ours(self.device(), &volume.labels))
            .map(|volume| OurVolume {
                attempt: labels::attempt(&volume.labels),
                data: volume.labels.get(labels::SNAPSHOT).and_then(|id| id.parse().ok()),
                name: volume.name,
            })
            .collect())
    }

    async fn create(&self, name: String, marks: Labels) -> Result<String, EngineError> {
        const DOING: &str = "making a volume";
        let request = VolumeCreateRequest {
            name: Some(name),
            driver: Some("local".to_owned()),
            driver_opts: Some(HashMap::new()),
            labels: Some(marks),
            cluster_volume_spec: None,
        };
        // An engine answers with the volume of that name when there is one, whoever's it is.
        let volume = within(DOING, LONG, self.client(DOING).await?.create_volume(request)).await?;
        self.volume_must_be_ours(DOING, &volume)?;
        Ok(volume.name)
    }

    fn volume_must_be_ours(&self, doing: &'static str, volume: &Volume) -> Result<(), EngineError> {
        if labels::are_ours(self.device(), &volume.labels) {
            return Ok(());
        }
        Err(EngineError::refused(
            doing,
            format!("the volume {} is not this device's; it stays as it is", volume.name),
        ))
    }
}
