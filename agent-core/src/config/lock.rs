//! One agent per data folder: a lock that the kernel lets go when the agent ends, however it ends.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use anyhow::Context as _;
use rustix::fs::FlockOperation;

use super::dirs::Dirs;

/// Held for the agent's life.
#[derive(Debug)]
pub struct AgentLock {
    _file: File,
}

impl AgentLock {
    /// Refused with the pid and the name of the agent that is there.
    pub fn take(dirs: &Dirs, name: &str) -> anyhow::Result<Self> {
        let path = dirs.lock();
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .with_context(|| format!("{} can't be opened", path.display()))?;
        if let Err(error) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            anyhow::ensure!(
                error == rustix::io::Errno::WOULDBLOCK,
                "{} can't be locked ({error}); is the data folder on a network drive? Name a local one with --data",
                path.display()
            );
            let mut who = String::new();
            file.take(256).read_to_string(&mut who).unwrap_or_default();
            anyhow::bail!(
                "another agent has this data folder: {}; stop it, or give this one a folder of its own with --data",
                who.trim()
            );
        }
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{name:?} with pid {}", std::process::id())?;
        Ok(Self { _file: file })
    }
}

/// The process that has the data folder, as it wrote itself down; it may have ended since.
pub fn holder(dirs: &Dirs) -> Option<u32> {
    let text = std::fs::read_to_string(dirs.lock()).ok()?;
    text.trim_end().rsplit_once(" with pid ")?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_agent_is_told_the_name_of_the_first() {
        let home = tempfile::tempdir().unwrap();
        let dirs = Dirs { data: home.path().to_owned(), socket: home.path().join("s") };
        let first = AgentLock::take(&dirs, "lab-3").unwrap();
        let refused = AgentLock::take(&dirs, "other").unwrap_err().to_string();
        assert_eq!(holder(&dirs), Some(std::process::id()));
        assert!(refused.contains("lab-3") && refused.contains(&std::process::id().to_string()), "{refused}");
        drop(first);
        AgentLock::take(&dirs, "other").unwrap();
    }
}
