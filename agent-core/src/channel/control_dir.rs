//! The folder that a guest sees read-only at `/run/gpunion-ctl`: the socket, and the file `end`.
//!
//! Only the guest's mount shows it to the guest; on the host it lies below a folder that is the
//! agent's alone, so its open modes (which the guest's foreign uid needs) open nothing to others.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use gpunion_protocol::guest::{CONTROL_SOCKET, END_FILE};
use gpunion_protocol::ids::AttemptRef;
use rustix::fs::{AtFlags, Mode, OFlags};

/// The file `end` until its day comes.
const ARMED: &str = "not-yet";

#[derive(Debug)]
pub struct ControlDir {
    path: PathBuf,
    folder: OwnedFd,
}

impl ControlDir {
    /// Makes the attempt's folder, or opens the one that an earlier run of the agent made.
    pub fn create(base: &Path, attempt: &AttemptRef) -> io::Result<Self> {
        Self::at(Self::path_for(base, attempt))
    }

    /// The same at a place of the caller's choice.
    pub fn at(path: PathBuf) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        match rustix::fs::mkdir(&path, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let folder = rustix::fs::open(&path, flags, Mode::empty())?;
        // Whatever the umask took away: the guest's uid must get in.
        rustix::fs::fchmod(&folder, Mode::from_raw_mode(0o755))?;
        let dir = Self { path, folder };
        dir.arm()?;
        Ok(dir)
    }

    pub fn path_for(base: &Path, attempt: &AttemptRef) -> PathBuf {
        base.join(format!("{}-{}-{}", attempt.job, attempt.token.epoch.0, attempt.token.attempt))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the file `end` while there is room, under another name.
    fn arm(&self) -> io::Result<()> {
        match rustix::fs::statat(&self.folder, END_FILE, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(()),
            Err(rustix::io::Errno::NOENT) => make(&self.folder, ARMED),
            Err(error) => Err(error.into()),
        }
    }

    /// Tells init to end everything when no channel reaches it.
    pub fn write_end_file(&self) -> io::Result<()> {
        write_end_file_in(&self.folder)
    }

    /// Removes the folder with what it holds. One that is gone is no error.
    pub fn remove(self) -> io::Result<()> {
        match fs::remove_dir_all(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Binds the socket anew. Through the open folder, since a socket's path has room for 107
    /// bytes only and the folder's own may be longer.
    pub(super) fn bind(&self) -> io::Result<UnixListener> {
        self.bind_as(CONTROL_SOCKET)
    }

    /// The same for another socket that a guest's init connects to, in a folder of its own.
    pub(crate) fn bind_as(&self, name: &str) -> io::Result<UnixListener> {
        match rustix::fs::unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let short = format!("/proc/self/fd/{}/{name}", self.folder.as_fd().as_raw_fd());
        let listener = UnixListener::bind(short)?;
        listener.set_nonblocking(true)?;
        rustix::fs::chmodat(&self.folder, name, Mode::from_raw_mode(0o666), AtFlags::empty())?;
        Ok(listener)
    }
}

/// For whoever must end a guest while no agent runs.
pub fn write_end_file(folder: &Path) -> io::Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    write_end_file_in(&rustix::fs::open(folder, flags, Mode::empty())?)
}

/// What was made beforehand only gets its name: a disk that is full has room for that.
fn write_end_file_in(folder: &OwnedFd) -> io::Result<()> {
    match rustix::fs::renameat(folder, ARMED, folder, END_FILE) {
        Ok(()) => Ok(()),
        Err(_) => make(folder, END_FILE),
    }
}

fn make(folder: &OwnedFd, name: &str) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::openat(folder, name, flags, Mode::from_raw_mode(0o644))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_made_beforehand_and_named_once() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("ctl");
        let dir = ControlDir::at(path.clone()).unwrap();
        assert!(!path.join(END_FILE).exists() && path.join(ARMED).exists());
        dir.write_end_file().unwrap();
        assert!(path.join(END_FILE).exists() && !path.join(ARMED).exists());
        // An agent that comes back takes nothing back; and who says it twice is not refused.
        ControlDir::at(path.clone()).unwrap();
        write_end_file(&path).unwrap();
        assert!(path.join(END_FILE).exists() && !path.join(ARMED).exists());
    }
}
