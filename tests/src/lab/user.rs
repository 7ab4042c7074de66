//! An ordinary user of the machine, made for a lab: in the engines' group, without rights beyond.
//!
//! Whatever runs as it was started by the lab, so that its end is the end of all its processes.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};

use super::processes;
use super::record::{self, Made};

/// The group that may speak with an engine, as Docker's packages name it.
pub(super) const GROUP: &str = "docker";

/// Dropping it ends its processes and removes it; its home goes with the lab.
#[derive(Debug)]
pub struct User {
    name: String,
    uid: u32,
    gid: u32,
    home: PathBuf,
    runtime: PathBuf,
}

impl User {
    pub(super) fn make(dir: &Path, name: &str) -> Result<Self> {
        let plain = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        ensure!(plain && name.len() <= 12, "\"{name}\": a short name of small letters and digits");
        let lab = dir.file_name().context("the lab has a folder")?.to_string_lossy();
        // Two labs may run at once, so the account carries the lab's name.
        let account = format!("gpl{lab}-{name}");
        let home = dir.join("home").join(name);
        let lock = account_lock()?;
        run("useradd", |command| {
            command
                .args(["--system", "--no-create-home", "--shell", "/usr/sbin/nologin"])
                .args(["--user-group", "--groups", GROUP, "--home-dir"])
                .arg(&home)
                .arg(&account)
        })?;
        drop(lock);
        let entry =
            nix::unistd::User::from_name(&account)?.with_context(|| format!("useradd made no {account}"))?;
        let (uid, gid) = (entry.uid.as_raw(), entry.gid.as_raw());
        record::add(dir, &Made::User { name: account.clone(), uid })?;
        let runtime = dir.join("run").join(name);
        let user = User { name: account, uid, gid, home, runtime };
        for folder in [&user.home, &user.runtime] {
            fs::create_dir_all(folder)?;
            chown(folder, Some(uid), Some(gid))?;
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        }
        Ok(user)
    }

    /// The account's name in /etc/passwd.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn uid(&self) -> u32 {
        self.uid
    }

    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// 0700.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// What a login would make XDG_RUNTIME_DIR; 0700.
    pub fn runtime(&self) -> &Path {
        &self.runtime
    }

    /// A command that runs as this user, with its groups and a login's plain environment, in its
    /// home. The child's process id is the program's own (setpriv replaces itself).
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command
            .args([format!("--reuid={}", self.uid), format!("--regid={}", self.gid)])
            .args(["--init-groups", "--inh-caps=-all", "--"])
            .arg(program)
            .env_clear()
            .env("HOME", &self.home)
            .env("USER", &self.name)
            .env("LOGNAME", &self.name)
            .env("XDG_RUNTIME_DIR", &self.runtime)
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
            .env("LANG", "C.UTF-8")
            .current_dir(&self.home);
        command
    }

    /// Copies a folder into the home, owned by the user; for what a member would have there.
    pub fn copy_in(&self, folder: &Path, to: &str) -> Result<PathBuf> {
        let target = self.home.join(to);
        copy_tree(folder, &target, self.uid, self.gid)?;
        Ok(target)
    }

    /// Leaves it, and what runs as it, when this process ends; see `Lab::keep`.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.name, self.uid) {
            record::complain(&format!("removing user {}: {error:#}", self.name));
        }
    }
}

/// Ends all that runs as it, then removes the account. Doing it twice does no harm.
pub(super) fn remove(name: &str, uid: u32) -> Result<()> {
    let Some(entry) = nix::unistd::User::from_name(name)? else { return Ok(()) };
    ensure!(entry.uid.as_raw() == uid && uid != 0, "user {name} is another one now");
    // One that forks while it is ended may leave a child: until none is seen.
    for _ in 0..10 {
        let running = processes::of_user(uid);
        if running.is_empty() {
            break;
        }
        for process in running {
            process.end()?;
        }
    }
    let _lock = account_lock()?;
    run("userdel", |command| command.arg(name))
}

/// `docker` comes with Docker's packages; an engine from elsewhere may lack it.
pub(super) fn ensure_group() -> Result<()> {
    let _lock = account_lock()?;
    run("groupadd", |command| command.args(["--force", "--system", GROUP]))
}

/// useradd and its kin give up when another one holds their lock, so ours take turns.
fn account_lock() -> Result<Flock<File>> {
    let path = "/run/gpunion-lab-accounts.lock";
    let file = File::create(path).with_context(|| format!("opening {path}"))?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, e)| e).context("locking accounts")
}

fn run(program: &str, arguments: impl FnOnce(&mut Command) -> &mut Command) -> Result<()> {
    let mut command = Command::new(program);
    arguments(&mut command);
    let output = command.output().with_context(|| format!("starting {program}"))?;
    if !output.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn copy_tree(from: &Path, to: &Path, uid: u32, gid: u32) -> Result<()> {
    let copying = || format!("copying {} to {}", from.display(), to.display());
    if from.is_dir() {
        fs::create_dir_all(to).with_context(copying)?;
        for entry in fs::read_dir(from).with_context(copying)? {
            let entry = entry?;
            copy_tree(&entry.path(), &to.join(entry.file_name()), uid, gid)?;
        }
    } else {
        fs::copy(from, to).with_context(copying)?;
    }
    chown(to, Some(uid), Some(gid)).with_context(copying)
}
