//! One relay at a time on a state folder: a lock that the kernel lets go when the process ends.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use crate::error::Error;

/// Held as long as it lives.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Makes the folder (0700) when it is not there, and closes one that others could look into:
    /// it holds the relay's key.
    pub(crate) fn take(state_dir: &Path) -> Result<Self, Error> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(state_dir)
            .map_err(Error::io("make the state folder", state_dir))?;
        close_to_others(state_dir)?;
        let path = state_dir.join("lock");
        let failed = |e| Error::io("open", &path)(e);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut holder = String::new();
            // Only for the message: a holder that can't be read is still a holder.
            let _ = file.read_to_string(&mut holder);
            let holder = format!("process {}", holder.trim());
            return Err(Error::StateInUse { path: state_dir.to_owned(), holder });
        }
        let write = |file: &mut File| {
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            writeln!(file, "{}", std::process::id())
        };
        write(&mut file).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

/// A folder that existed already may be somebody else's, or open to all.
fn close_to_others(state_dir: &Path) -> Result<(), Error> {
    let meta = std::fs::metadata(state_dir).map_err(Error::io("look at the state folder", state_dir))?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(Error::NotOwned { path: state_dir.to_owned() });
    }
    if meta.mode() & 0o077 == 0 {
        return Ok(());
    }
    let private = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(state_dir, private).map_err(Error::io("close to others", state_dir))?;
    tracing::warn!(path = %state_dir.display(), "the state folder was open to others; it is 0700 now");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_was_open_to_others_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let mode = || std::fs::metadata(dir.path()).unwrap().mode() & 0o777;
        for open in [0o755, 0o777, 0o750] {
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(open)).unwrap();
            let lock = Lock::take(dir.path()).unwrap();
            assert_eq!(mode(), 0o700);
            drop(lock);
        }
    }

    #[test]
    fn a_folder_of_somebody_else_s_is_refused() {
        // Of root, as most of a system is; when root itself asks, of the first user that is not.
        let dir = tempfile::tempdir().unwrap();
        let path = if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(dir.path(), Some(65_534), None).unwrap();
            dir.path()
        } else {
            Path::new("/")
        };
        let refused = Lock::take(path).unwrap_err();
        assert!(matches!(refused, Error::NotOwned { .. }), "{refused}");
    }
}
