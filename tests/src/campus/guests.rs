//! What an outsider sees of guests: their containers, their processes, what is left of them.

use anyhow::{Context as _, Result};
use gpunion_agent_core::gpu::container_of;
use serde_json::Value;

use crate::lab::Engine;

/// Every container and volume of ours carries it.
const LABEL: &str = "gpunion.device";
const KIND: &str = "gpunion.kind";
const GUEST: &str = "guest";
const SECOND_WAY: &str = "second-way";

impl Engine {
    /// Ids of containers that carry our label and are there for a job.
    pub fn guests(&self) -> Result<Vec<String>> {
        self.ours(|kind| kind != SECOND_WAY)
    }

    /// Id of the guest, where there is one; a helper that comes and goes beside it is none.
    pub fn guest(&self) -> Result<String> {
        self.ours(|kind| kind == GUEST)?.pop().context("the engine has no guest")
    }

    /// Ids of the second ways: one for each device that lends here.
    pub fn second_ways(&self) -> Result<Vec<String>> {
        self.ours(|kind| kind == SECOND_WAY)
    }

    fn ours(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>> {
        let listed = self.call("GET", "/containers/json?all=1", None)?.ok()?.json()?;
        let listed = listed.as_array().context("the engine lists containers")?;
        let ours = listed.iter().filter(|one| one["Labels"].get(LABEL).is_some());
        let ours = ours.filter(|one| wanted(one["Labels"][KIND].as_str().unwrap_or_default()));
        Ok(ours.filter_map(|one| Some(one["Id"].as_str()?.to_owned())).collect())
    }

    /// Names of containers and volumes that carry our label.
    pub fn left_of_guests(&self) -> Result<Vec<String>> {
        let mut left = self.guests()?;
        let volumes = self.call("GET", "/volumes", None)?.ok()?.json()?;
        let volumes = volumes["Volumes"].as_array().cloned().unwrap_or_default();
        let ours = volumes.iter().filter(|volume| volume["Labels"].get(LABEL).is_some());
        left.extend(ours.filter_map(|volume| Some(volume["Name"].as_str()?.to_owned())));
        Ok(left)
    }

    /// All that `docker inspect` tells of a container.
    pub fn inspect(&self, container: &str) -> Result<Value> {
        self.call("GET", &format!("/containers/{container}/json"), None)?.ok()?.json()
    }
}

/// Host pids of a container's processes, as the kernel knows them; needs no engine. A zombie is
/// no process: it does nothing and holds nothing.
pub fn processes_of(container: &str) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| container_of(*pid).as_deref() == Some(container) && lives(*pid)).collect()
}

fn lives(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains(['Z', 'X']))
}
