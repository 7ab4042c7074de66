//! `agent install` and `relay install`, as they are said.

use std::path::PathBuf;

use clap::Subcommand;

use super::{Agent, RelayServe};

#[derive(Debug, clap::Args)]
pub(crate) struct AgentRun {
    #[command(flatten)]
    pub(crate) agent: Agent,
    #[command(subcommand)]
    pub(crate) what: Option<AgentWhat>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AgentWhat {
    /// Start the agent with the machine, by a systemd unit, with nobody logged in
    #[command(
        after_help = "Examples:\n  gpunion agent install                       a unit of yours, that outlives your login\n  sudo \
                            gpunion agent install --system --user ada\n  gpunion agent install --uninstall\n\nThe other options are \
                            saved in the agent's settings. The device's token goes into a 0600 file, since a keyring is locked at \
                            boot. Without a systemd the unit is printed, and what to do instead."
    )]
    Install(AgentInstall),
}

#[derive(Debug, clap::Args)]
pub(crate) struct AgentInstall {
    #[command(flatten)]
    pub(crate) agent: Agent,
    #[command(flatten)]
    pub(crate) unit: UnitChoice,
    /// Only save the settings and move the token into its file; write no unit
    #[arg(long, conflicts_with = "uninstall")]
    pub(crate) prepare: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RelayInstall {
    #[command(flatten)]
    pub(crate) serve: RelayServe,
    #[command(flatten)]
    pub(crate) unit: UnitChoice,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct UnitChoice {
    /// A unit of the system, in place of one of yours
    #[arg(long)]
    pub(crate) system: bool,
    /// Whom a unit of the system runs as [default: whoever calls sudo]
    #[arg(long, value_name = "NAME", requires = "system")]
    pub(crate) user: Option<String>,
    /// Undo it
    #[arg(long)]
    pub(crate) uninstall: bool,
}

impl Agent {
    /// The same, as it is said.
    pub(crate) fn words(&self) -> Vec<std::ffi::OsString> {
        let mut words: Vec<std::ffi::OsString> = Vec::new();
        let mut say = |option: &str, value: Option<std::ffi::OsString>| {
            if let Some(value) = value {
                words.extend([option.into(), value]);
            }
        };
        let absolute = |path: &Option<PathBuf>| {
            path.as_ref()
                .map(|path| std::path::absolute(path).unwrap_or_else(|_| path.clone()).into_os_string())
        };
        say("--device-name", self.device_name.clone().map(Into::into));
        say("--engine", absolute(&self.engine));
        say("--nvml-library", absolute(&self.nvml_library));
        say("--standin", absolute(&self.standin));
        say("--egress", self.egress.as_ref().map(|rule| rule.to_string().into()));
        say("--socket-group", self.socket_group.clone().map(Into::into));
        if self.token_file {
            words.push("--token-file".into());
        }
        words
    }
}
