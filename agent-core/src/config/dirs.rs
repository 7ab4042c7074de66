//! The folders and the socket of one agent.

use std::env;
use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// Overrides of the two places, for scripts and for a second agent on one machine.
pub const ENV_DATA: &str = "GPUNION_DATA";
pub const ENV_SOCKET: &str = "GPUNION_SOCKET";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirs {
    /// Everything that lasts; 0700.
    pub data: PathBuf,
    /// The local API.
    pub socket: PathBuf,
}

/// What decides, apart from what was said on the command line.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    pub gpunion_data: Option<PathBuf>,
    pub gpunion_socket: Option<PathBuf>,
    pub xdg_data_home: Option<PathBuf>,
    pub xdg_runtime_dir: Option<PathBuf>,
    pub home: Option<PathBuf>,
}

impl Surroundings {
    pub fn of_process() -> Self {
        let path = |name| env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        Self {
            gpunion_data: env::var_os(ENV_DATA).map(PathBuf::from),
            gpunion_socket: env::var_os(ENV_SOCKET).map(PathBuf::from),
            xdg_data_home: path("XDG_DATA_HOME"),
            xdg_runtime_dir: path("XDG_RUNTIME_DIR"),
            home: path("HOME"),
        }
    }
}

impl Dirs {
    /// What was said wins, then the environment, then the XDG places. A data folder of one's own
    /// brings its socket along, so that two agents never meet at one.
    pub fn find(
        data: Option<PathBuf>,
        socket: Option<PathBuf>,
        around: &Surroundings,
    ) -> anyhow::Result<Self> {
        let chosen = data.or_else(|| around.gpunion_data.clone());
        let runtime = around.xdg_runtime_dir.as_ref().filter(|folder| chosen.is_none() && folder.is_dir());
        let data = match (&chosen, &around.xdg_data_home, &around.home) {
            (Some(data), _, _) => std::path::absolute(data).context("the data folder's path")?,
            (None, Some(share), _) => share.join("gpunion"),
            (None, None, Some(home)) => home.join(".local/share/gpunion"),
            (None, None, None) => {
                anyhow::bail!("there is no HOME to keep data in; name a folder with --data or {ENV_DATA}")
            }
        };
        let socket = match (socket.or_else(|| around.gpunion_socket.clone()), runtime) {
            (Some(socket), _) => std::path::absolute(socket).context("the socket's path")?,
            (None, Some(runtime)) => runtime.join("gpunion/agent.sock"),
            (None, None) => data.join("run/agent.sock"),
        };
        Ok(Self { data, socket })
    }

    /// Where the agent of this data folder listens: it may have been started in other surroundings
    /// (at boot, over ssh) than whoever looks for it, and so wrote it down.
    pub fn find_agent(
        data: Option<PathBuf>,
        socket: Option<PathBuf>,
        around: &Surroundings,
    ) -> anyhow::Result<Self> {
        let said = socket.is_some() || around.gpunion_socket.is_some();
        let mut dirs = Self::find(data, socket, around)?;
        if !said && let Ok(path) = fs::read_to_string(dirs.pointer()) {
            dirs.socket = PathBuf::from(path.trim_end_matches('\n'));
        }
        Ok(dirs)
    }

    /// Holds the path of the socket that the agent listens at.
    pub fn pointer(&self) -> PathBuf {
        self.data.join("agent.socket")
    }

    /// Makes the data folder, or takes it over; it must be ours and closed to others.
    pub fn make_data(&self) -> anyhow::Result<()> {
        private_folder(&self.data, 0o700)
    }

    pub fn lock(&self) -> PathBuf {
        self.data.join("agent.lock")
    }

    pub fn settings(&self) -> PathBuf {
        self.data.join("settings.toml")
    }

    pub fn group(&self) -> PathBuf {
        self.data.join("group.json")
    }

    pub fn identity(&self) -> PathBuf {
        self.data.join("identity.json")
    }

    /// Folder of the consumer half: what was sent of which folder.
    pub fn sent(&self) -> PathBuf {
        self.data.join("sent")
    }

    pub fn guests(&self) -> PathBuf {
        self.data.join("guests")
    }

    /// Holds the socket of the second way to end guests.
    pub fn second_way(&self) -> PathBuf {
        self.data.join("second-way")
    }

    /// Written by `gpunion reclaim` when no agent answers; the agent takes it as the owner's wish.
    pub fn reclaimed(&self) -> PathBuf {
        self.data.join("reclaimed")
    }
}

/// Makes a folder and what leads to it, closed to others, and checks who owns it.
pub fn private_folder(path: &Path, mode: u32) -> anyhow::Result<()> {
    let shown = path.display();
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .with_context(|| format!("the folder {shown} can't be made"))?;
    let meta =
        fs::symlink_metadata(path).with_context(|| format!("the folder {shown} can't be looked at"))?;
    let own = rustix::process::geteuid().as_raw();
    let owner = std::os::unix::fs::MetadataExt::uid(&meta);
    anyhow::ensure!(meta.is_dir(), "{shown} is not a folder; move it away or name another with --data");
    anyhow::ensure!(
        owner == own,
        "{shown} belongs to uid {owner}, and this is uid {own}; name a folder of your own with --data"
    );
    fs::set_permissions(path, Permissions::from_mode(mode))
        .with_context(|| format!("the folder {shown} can't be closed to others"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_wins_over_the_environment_and_that_over_xdg() {
        let run = tempfile::tempdir().unwrap();
        let mut around = Surroundings {
            home: Some("/home/a".into()),
            xdg_runtime_dir: Some(run.path().to_owned()),
            ..Surroundings::default()
        };
        let dirs = Dirs::find(None, None, &around).unwrap();
        assert_eq!(dirs.data, Path::new("/home/a/.local/share/gpunion"));
        assert_eq!(dirs.socket, run.path().join("gpunion/agent.sock"));
        around.gpunion_data = Some("/srv/one".into());
        let dirs = Dirs::find(None, None, &around).unwrap();
        assert_eq!(
            (dirs.data.as_path(), dirs.socket),
            (Path::new("/srv/one"), "/srv/one/run/agent.sock".into())
        );
        let dirs = Dirs::find(Some("/srv/two".into()), Some("/tmp/s".into()), &around).unwrap();
        assert_eq!((dirs.data, dirs.socket), ("/srv/two".into(), "/tmp/s".into()));
        assert!(Dirs::find(None, None, &Surroundings::default()).is_err());
    }

    #[test]
    fn an_agent_that_was_started_elsewhere_is_found() {
        let home = tempfile::tempdir().unwrap();
        let around = Surroundings { gpunion_data: Some(home.path().to_owned()), ..Surroundings::default() };
        let dirs = Dirs::find(None, None, &around).unwrap();
        assert_eq!(Dirs::find_agent(None, None, &around).unwrap(), dirs);
        fs::write(dirs.pointer(), "/run/user/7/gpunion/agent.sock\n").unwrap();
        let found = Dirs::find_agent(None, None, &around).unwrap();
        assert_eq!(found.socket, Path::new("/run/user/7/gpunion/agent.sock"));
        let said = Dirs::find_agent(None, Some("/tmp/s".into()), &around).unwrap();
        assert_eq!(said.socket, Path::new("/tmp/s"));
    }

    #[test]
    fn the_data_folder_is_closed_to_others() {
        let home = tempfile::tempdir().unwrap();
        let dirs = Dirs { data: home.path().join("a/b"), socket: "/tmp/none".into() };
        dirs.make_data().unwrap();
        fs::set_permissions(&dirs.data, Permissions::from_mode(0o755)).unwrap();
        dirs.make_data().unwrap();
        assert_eq!(fs::metadata(&dirs.data).unwrap().permissions().mode() & 0o777, 0o700);
    }
}
