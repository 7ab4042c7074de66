//! A GPU has one lender at a time, also when two agents run on one machine: a lock by its UUID,
//! held while the owner shares it or a guest is on it.
//!
//! In a folder that every user of the machine may write; the lock is the kernel's (flock), so a
//! dead agent holds none and a file that is left behind means nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use gpunion_protocol::gpu::{GpuState, GpuView};
use gpunion_protocol::ids::GpuUuid;
use gpunion_protocol::time::BootMs;
use rustix::fs::{FlockOperation, OFlags};

const OPEN_TRIES: usize = 3;

#[derive(Debug)]
pub(super) struct Locks {
    folder: PathBuf,
    name: String,
    held: BTreeMap<GpuUuid, File>,
    /// Who else lends it.
    taken: BTreeMap<GpuUuid, String>,
}

impl Locks {
    pub(super) fn new(name: String) -> Self {
        let folder = ["/run/lock", "/tmp"]
            .into_iter()
            .map(Path::new)
            .find(|folder| rustix::fs::access(*folder, rustix::fs::Access::WRITE_OK).is_ok());
        Self {
            folder: folder.unwrap_or(Path::new("/tmp")).to_owned(),
            name,
            held: BTreeMap::new(),
            taken: BTreeMap::new(),
        }
    }

    /// Holds exactly what is wanted, as far as nobody else does. True when that changed what can
    /// be lent.
    pub(super) fn want(&mut self, wanted: &BTreeSet<GpuUuid>) -> bool {
        self.held.retain(|gpu, _| wanted.contains(gpu));
        let before = std::mem::take(&mut self.taken);
        for gpu in wanted {
            if self.held.contains_key(gpu) {
                continue;
            }
            match self.take(gpu) {
                Ok(file) => {
                    self.held.insert(gpu.clone(), file);
                }
                Err(who) => {
                    self.taken.insert(gpu.clone(), who);
                }
            }
        }
        before != self.taken
    }

    fn take(&self, gpu: &GpuUuid) -> Result<File, String> {
        let plain: String = gpu.0.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let path = self.folder.join(format!("gpunion-{plain}.lock"));
        let mut file = open(|create| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(create);
            options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(&path)
        })
        .map_err(|e| format!("its lock {} can't be opened: {e}", path.display()))?;
        // Every user's agent must be able to try; one that made the file under a strict umask
        // would else shut all others out.
        let _ = file.set_permissions(std::fs::Permissions::from_mode(0o666));
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut who = String::new();
            let _ = (&mut file).take(200).read_to_string(&mut who);
            return Err(format!("another agent of this machine lends it ({})", who.trim()));
        }
        let _ = file.set_len(0);
        let _ = file.rewind();
        let _ = writeln!(file, "{:?} with pid {}", self.name, std::process::id());
        Ok(file)
    }

    /// What the machine may see: a GPU that another agent lends is not known here.
    pub(super) fn mask(&self, mut view: GpuView, now: BootMs) -> GpuView {
        for (gpu, who) in &self.taken {
            if let Some(sample) = view.gpus.get_mut(gpu) {
                sample.state = GpuState::Unknown { since: now, why: who.clone() };
            }
        }
        view
    }
}

/// Opens the lock's file, or makes it. Never both in one call: in a folder like /run/lock the kernel
/// (fs.protected_regular) refuses `O_CREAT` on another user's file, though it may be opened.
fn open<T>(mut with: impl FnMut(bool) -> io::Result<T>) -> io::Result<T> {
    for _ in 0..OPEN_TRIES {
        match with(false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        match with(true) {
            // Another agent was quicker; its file can be opened now.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made,
        }
    }
    Err(io::Error::other("it comes and goes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locks(folder: &Path, name: &str) -> Locks {
        Locks { folder: folder.to_owned(), ..Locks::new(name.to_owned()) }
    }

    #[test]
    fn a_gpu_has_one_lender_at_a_time_and_a_dead_one_holds_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let gpu = BTreeSet::from([GpuUuid("GPU-1/../x".to_owned())]);
        let mut first = locks(folder.path(), "first");
        let mut second = locks(folder.path(), "second");
        assert!(!first.want(&gpu) && first.held.len() == 1);
        assert!(second.want(&gpu) && second.held.is_empty());
        let who = second.taken.values().next().unwrap();
        assert!(who.contains("first"), "{who}");
        first.want(&BTreeSet::new());
        assert!(second.want(&gpu) && second.held.len() == 1);
        drop(second);
        assert!(!first.want(&gpu) && first.held.len() == 1);
    }

    /// As the kernel has it in a sticky folder where fs.protected_regular is on.
    #[test]
    fn another_user_s_lock_is_opened_and_never_made_over() {
        let exists = std::cell::Cell::new(true);
        let kernel = |create: bool| match (exists.get(), create) {
            (true, true) => Err(io::ErrorKind::PermissionDenied.into()),
            (true, false) => Ok("theirs"),
            (false, true) => Ok("mine"),
            (false, false) => Err(io::ErrorKind::NotFound.into()),
        };
        assert_eq!(open(kernel).unwrap(), "theirs");
        exists.set(false);
        assert_eq!(open(kernel).unwrap(), "mine");
        // It comes between our two tries.
        let quicker = |create: bool| match (exists.get(), create) {
            (false, true) => {
                exists.set(true);
                Err(io::ErrorKind::AlreadyExists.into())
            }
            (there, create) => {
                kernel(create).map_err(|e| if there { e } else { io::ErrorKind::NotFound.into() })
            }
        };
        assert_eq!(open(quicker).unwrap(), "theirs");
    }
}
