//! Disks that fill up and disks that hang, for a folder of somebody's.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::User;

/// Its name in the lab's folder.
pub(super) const FILE: &str = "disk.ext4";

/// Mounted at `folder`; dropping it thaws and unmounts.
#[derive(Debug)]
pub struct Disk {
    folder: PathBuf,
    hangs: bool,
}

impl Disk {
    /// One of so many bytes, in memory.
    pub fn small(folder: &Path, user: &User, bytes: u64) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let size = format!("size={bytes}");
        mount(Some("tmpfs"), folder, Some("tmpfs"), MsFlags::empty(), Some(size.as_str()))
            .context("mounting a small disk")?;
        Self::given_to(folder, user)
    }

    /// One that can be made to hang: a file system of its own, in a file.
    pub fn in_a_file(folder: &Path, user: &User, lab: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let file = &lab.join(FILE);
        File::create(file)?.set_len(64 << 20)?;
        run(Command::new("mkfs.ext4").arg("-q").arg(file))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(file).arg(folder))?;
        Self::given_to(folder, user)
    }

    fn given_to(folder: &Path, user: &User) -> Result<Self> {
        let disk = Self { folder: folder.to_owned(), hangs: false };
        chown(folder, Some(user.uid()), Some(user.gid()))?;
        Ok(disk)
    }

    /// Nothing can be written to it any more.
    pub fn fill(&self) -> Result<()> {
        let mut file = File::create(self.filler())?;
        let block = vec![0; 4096];
        // Until it is full.
        while file.write_all(&block).is_ok() {}
        Ok(())
    }

    pub fn make_room(&self) -> Result<()> {
        Ok(fs::remove_file(self.filler())?)
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("of-somebody-else")
    }

    /// Whoever writes to it waits, unkillable, until it goes on. What was read is still readable.
    pub fn hang(&mut self) -> Result<()> {
        run(Command::new("fsfreeze").arg("--freeze").arg(&self.folder))?;
        self.hangs = true;
        Ok(())
    }

    pub fn go_on(&mut self) -> Result<()> {
        run(Command::new("fsfreeze").arg("--unfreeze").arg(&self.folder))?;
        self.hangs = false;
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.hangs {
            let _ = self.go_on();
        }
        let _ = umount2(&self.folder, MntFlags::MNT_DETACH);
    }
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("starting {program}"))?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
