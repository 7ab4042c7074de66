//! The agent's settings: `settings.toml` in the data folder, all of it optional.

use std::path::PathBuf;

use anyhow::Context as _;
use gpunion_protocol::egress::EgressRule;
use gpunion_protocol::units::Bytes;
use serde::{Deserialize, Serialize};

use super::dirs::Dirs;
use super::files;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// How this machine is called in the group; the host's name when absent.
    #[serde(default)]
    pub device_name: Option<String>,
    /// Another libnvidia-ml than the system's.
    #[serde(default)]
    pub nvml_library: Option<PathBuf>,
    /// The container engine's socket; `/var/run/docker.sock` when absent.
    #[serde(default)]
    pub engine: Option<PathBuf>,
    /// Folder of the stand-in device, mounted in place of a GPU.
    #[serde(default)]
    pub standin: Option<PathBuf>,
    #[serde(default)]
    pub token_store: TokenStoreChoice,
    /// Unix group whose members may look and reclaim.
    #[serde(default)]
    pub socket_group: Option<String>,
    /// What jobs may reach: "off" (when absent), "asked" (what their specs name), or a list of names.
    #[serde(default)]
    pub egress: Option<EgressRule>,
    #[serde(default)]
    pub caps: CapsChoice,
    /// What ends a guest whose init does not answer while the engine is away too.
    #[serde(default)]
    pub second_way: SecondWayChoice,
}

/// Where the device's secrets go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenStoreChoice {
    /// The keyring when one answers, else a file.
    #[default]
    Auto,
    /// A 0600 file: for a machine that starts with nobody logged in.
    File,
}

/// On cgroup v1 the second way may end any process of this machine, as the engine may; whoever does
/// not want that turns it off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecondWayChoice {
    #[default]
    On,
    Off,
}

/// The most that all guests together may use; what is absent is worked out from the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CapsChoice {
    #[serde(default)]
    pub cpus: Option<u32>,
    #[serde(default)]
    pub memory: Option<Bytes>,
    #[serde(default)]
    pub disk: Option<Bytes>,
}

pub const ENGINE_SOCKET: &str = "/var/run/docker.sock";

impl Settings {
    pub fn load(dirs: &Dirs) -> anyhow::Result<Self> {
        let path = dirs.settings();
        let Some(bytes) =
            files::read_whole(&path).with_context(|| format!("{} can't be read", path.display()))?
        else {
            return Ok(Self::default());
        };
        let text = String::from_utf8(bytes).with_context(|| format!("{} is no text", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} makes no sense", path.display()))
    }

    pub fn save(&self, dirs: &Dirs) -> anyhow::Result<()> {
        let text = toml::to_string_pretty(self).context("the settings have no text form")?;
        files::write_whole(&dirs.settings(), text.as_bytes())
            .with_context(|| format!("{} can't be written", dirs.settings().display()))
    }

    /// What the command line said wins over the file.
    #[must_use]
    pub fn with(mut self, said: Self) -> Self {
        self.device_name = said.device_name.or(self.device_name);
        self.nvml_library = said.nvml_library.or(self.nvml_library);
        self.engine = said.engine.or(self.engine);
        self.standin = said.standin.or(self.standin);
        self.socket_group = said.socket_group.or(self.socket_group);
        self.egress = said.egress.or(self.egress);
        if said.token_store != TokenStoreChoice::Auto {
            self.token_store = said.token_store;
        }
        self.caps.cpus = said.caps.cpus.or(self.caps.cpus);
        self.caps.memory = said.caps.memory.or(self.caps.memory);
        self.caps.disk = said.caps.disk.or(self.caps.disk);
        self
    }

    pub fn engine_socket(&self) -> PathBuf {
        self.engine.clone().unwrap_or_else(|| PathBuf::from(ENGINE_SOCKET))
    }

    pub fn device(&self) -> String {
        self.device_name.clone().unwrap_or_else(|| {
            let name = nix::unistd::gethostname().unwrap_or_default().to_string_lossy().into_owned();
            if name.is_empty() { "this machine".to_owned() } else { name }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_read_back_and_name_what_is_unknown() {
        let home = tempfile::tempdir().unwrap();
        let dirs = Dirs { data: home.path().to_owned(), socket: home.path().join("s") };
        assert_eq!(Settings::load(&dirs).unwrap(), Settings::default());
        let said = Settings {
            device_name: Some("lab-3".to_owned()),
            egress: Some("github.com,*.pypi.org".parse().unwrap()),
            caps: CapsChoice { memory: Some(Bytes(8 << 30)), ..CapsChoice::default() },
            ..Settings::default()
        };
        said.save(&dirs).unwrap();
        assert_eq!(Settings::load(&dirs).unwrap(), said);
        std::fs::write(dirs.settings(), "egress = \"on\"").unwrap();
        assert!(format!("{:#}", Settings::load(&dirs).unwrap_err()).contains("\"asked\""));
        std::fs::write(dirs.settings(), "divice_name = \"x\"").unwrap();
        assert!(format!("{:#}", Settings::load(&dirs).unwrap_err()).contains("divice_name"));
    }
}
