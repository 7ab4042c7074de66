//! The container of the second way: what it is shown and may, and the calls that keep it there.
//!
//! It is shown the cgroups of this device's guests and the folder of its socket. On cgroup v2 it
//! has no capability. Where only signals end a process it gets CAP_KILL and the host's process
//! ids, and nothing else.

use std::path::PathBuf;

use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{CreateContainerOptions, InspectContainerOptions, StartContainerOptions};
use gpunion_protocol::ids::DeviceId;
use gpunion_protocol::second_way::SECOND_WAY_SOCKET;

use super::calls::{Engine, LONG, SHORT, within, within_optional};
use super::error::EngineError;
use super::helper::{HelperImage, PROGRAM};
use super::labels::{self, Kind};
use super::plan::{bind, hardened};
use crate::second_way::{Cgroups, Rights};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecondWayPlan {
    pub cgroups: Cgroups,
    /// The folder of its socket.
    pub talk: PathBuf,
    /// The user that may ask.
    pub owner: u32,
}

/// Where things are in its container.
const CGROUPS: &str = "/cgroup";
const CPU: &str = "/cgroup-cpu";
const TALK: &str = "/talk";
/// Bytes; it needs a hundredth.
const MEMORY: i64 = 32 << 20;

impl SecondWayPlan {
    fn body(&self, device: &DeviceId, image: &HelperImage) -> ContainerCreateBody {
        let guests = self.cgroups.guests();
        let command = [
            "second-way".to_owned(),
            format!("{CGROUPS}/{guests}"),
            format!("{CPU}/{guests}"),
            format!("{TALK}/{SECOND_WAY_SOCKET}"),
            self.owner.to_string(),
        ];
        let on_host = self.cgroups.rights() == Rights::KillOnHost;
        let host = HostConfig {
            cgroup_parent: Some(self.cgroups.parent()),
            // In this form the engine makes what is not there yet: in a cgroup tree, a cgroup.
            binds: Some(vec![
                format!("{}:{CGROUPS}:rw", self.cgroups.freezer().display()),
                format!("{}:{CPU}:rw", self.cgroups.cpu().display()),
            ]),
            mounts: Some(vec![bind(&self.talk, TALK, false)]),
            memory: Some(MEMORY),
            memory_swap: Some(MEMORY),
            pids_limit: Some(16),
            ..hardened(false, None, None)
        };
        let host = if on_host {
            let cap_add = Some(vec!["KILL".to_owned()]);
            HostConfig { cap_add, pid_mode: Some("host".to_owned()), ..host }
        } else {
            host
        };
        ContainerCreateBody {
            image: Some(image.id.clone()),
            entrypoint: Some(vec![format!("/{PROGRAM}")]),
            cmd: Some(command.to_vec()),
            user: Some("0:0".to_owned()),
            // It has nothing to put in order, and an engine that stops waits for nobody's end.
            stop_signal: Some("SIGKILL".to_owned()),
            labels: Some(labels::of_device(device, Kind::SecondWay.word())),
            host_config: Some(host),
            ..ContainerCreateBody::default()
        }
    }

    /// The body with the mark of its own content, by which one that runs is known again.
    fn marked(&self, device: &DeviceId, image: &HelperImage) -> (ContainerCreateBody, String) {
        let mut body = self.body(device, image);
        let text = serde_json::to_value(&body).unwrap_or_default().to_string();
        let shape = blake3::hash(text.as_bytes()).to_hex()[..32].to_owned();
        if let Some(labels) = &mut body.labels {
            labels.insert(labels::SHAPE.to_owned(), shape.clone());
        }
        (body, shape)
    }
}

impl Engine {
    fn second_way_name(&self) -> String {
        format!("gpunion-{}-second-way", self.device())
    }

    /// It runs, and is what this plan would make.
    pub async fn has_second_way(
        &self,
        image: &HelperImage,
        plan: &SecondWayPlan,
    ) -> Result<bool, EngineError> {
        const DOING: &str = "looking for the second way";
        let name = self.second_way_name();
        let client = self.client(DOING).await?;
        let call = client.inspect_container(&name, None::<InspectContainerOptions>);
        let Some(found) = within_optional(DOING, SHORT, call).await? else { return Ok(false) };
        let running = found.state.and_then(|state| state.running).unwrap_or(false);
        let labels = found.config.and_then(|config| config.labels).unwrap_or_default();
        let (_, shape) = plan.marked(self.device(), image);
        let same = labels.get(labels::SHAPE) == Some(&shape);
        Ok(running && same && labels::are_ours(self.device(), &labels))
    }

    /// In the place of any that is there.
    pub async fn start_second_way(
        &self,
        image: &HelperImage,
        plan: &SecondWayPlan,
    ) -> Result<(), EngineError> {
        const DOING: &str = "starting the second way";
        self.remove_second_way().await?;
        let (body, _) = plan.marked(self.device(), image);
        let name = Some(self.second_way_name());
        let options = CreateContainerOptions { name, ..CreateContainerOptions::default() };
        let client = self.client(DOING).await?;
        let made = within(DOING, LONG, client.create_container(Some(options), body)).await?;
        within(DOING, LONG, client.start_container(&made.id, None::<StartContainerOptions>)).await
    }

    /// Nothing to remove is no error.
    pub async fn remove_second_way(&self) -> Result<(), EngineError> {
        self.remove_guest(&self.second_way_name()).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::second_way::CgroupDriver;

    fn asked(version: u8) -> Value {
        let device = DeviceId::new(1, [1; 10]);
        let cgroups = Cgroups::of(&device, CgroupDriver::Cgroupfs, version, "6.1.0");
        let plan = SecondWayPlan { cgroups, talk: "/home/a/second-way".into(), owner: 1000 };
        let image = HelperImage { id: format!("sha256:{}", "a".repeat(64)) };
        serde_json::to_value(plan.marked(&device, &image).0).unwrap()
    }

    #[test]
    fn it_sees_the_guests_cgroups_and_its_socket_and_nothing_else() {
        for version in [1, 2] {
            let asked = asked(version);
            let host = &asked["HostConfig"];
            assert_eq!(host["NetworkMode"], "none");
            assert_eq!(host["CapDrop"], json!(["ALL"]));
            assert_eq!(host["ReadonlyRootfs"], true);
            assert_eq!(host["Privileged"], false);
            let binds = host["Binds"].as_array().unwrap();
            assert!(binds.iter().all(|bind| bind.as_str().unwrap().contains("/gpunion-dev_")), "{binds:?}");
            let mounts = host["Mounts"].as_array().unwrap();
            assert_eq!((mounts.len(), &mounts[0]["Source"]), (1, &json!("/home/a/second-way")));
            assert!(host["Devices"].is_null() && host["VolumesFrom"].is_null());
        }
    }

    #[test]
    fn only_where_signals_are_the_only_way_it_may_signal() {
        let (v1, v2) = (asked(1), asked(2));
        assert_eq!(v1["HostConfig"]["CapAdd"], json!(["KILL"]));
        assert_eq!(v1["HostConfig"]["PidMode"], "host");
        assert!(v2["HostConfig"]["CapAdd"].is_null());
        assert_eq!(v2["HostConfig"]["PidMode"], "");
    }
}
