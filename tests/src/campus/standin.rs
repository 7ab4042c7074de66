//! Stand-in GPUs of one machine: the library, its script, and the folders that stand for devices.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use gpunion_agent_core::gpu::Reader;
use gpunion_protocol::gpu::GpuSample;
use serde_json::{Value, json};

use crate::lab::Lab;

/// Bytes that every stand-in GPU holds while nobody uses it, as a desktop does.
pub(super) const BASELINE: u64 = 300 << 20;

#[derive(Debug)]
pub struct StandIn {
    pub library: PathBuf,
    /// One folder per GPU, by UUID.
    pub folders: PathBuf,
    script: PathBuf,
}

impl StandIn {
    pub(super) fn make(lab: &Lab, library: &Path, machine: &str, gpus: &[(&str, u64)]) -> Result<Self> {
        let root = lab.shared_folder(&format!("gpu-{machine}"))?;
        let copy = root.join("libnvidia-ml-stand-in.so");
        fs::copy(library, &copy).with_context(|| format!("copying {}", library.display()))?;
        let folders = root.join("devices");
        fs::create_dir_all(&folders)?;
        fs::set_permissions(&folders, fs::Permissions::from_mode(0o755))?;
        let mut listed = Vec::new();
        for (uuid, memory) in gpus {
            let folder = folders.join(uuid);
            fs::create_dir_all(&folder)?;
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777))?;
            listed.push(json!({
                "uuid": uuid, "name": format!("stand-in GPU of {machine}"), "memory_total": memory,
                "memory_baseline": BASELINE, "folder": folder, "temperature": 41, "power": 25_000,
                "power_limit": 250_000, "utilisation": { "idle": 0, "busy": 97 },
            }));
        }
        let standin = Self { library: copy, folders, script: root.join("standin.json") };
        standin.write(&json!({ "gpus": listed }))?;
        Ok(standin)
    }

    fn write(&self, script: &Value) -> Result<()> {
        let new = self.script.with_extension("new");
        fs::write(&new, script.to_string())?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644))?;
        fs::rename(&new, &self.script).context("replacing the stand-in's script")
    }

    /// What the GPUs say to anybody who asks; needs no agent.
    pub fn read(&self) -> Result<Vec<GpuSample>> {
        Ok(Reader::open(Some(&self.library)).context("the stand-in library")?.read())
    }

    /// Changes what the library says, while it is loaded.
    pub fn edit(&self, change: impl FnOnce(&mut Value)) -> Result<()> {
        let mut script = serde_json::from_slice(&fs::read(&self.script)?)?;
        change(&mut script);
        self.write(&script)
    }
}
