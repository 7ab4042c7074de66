//! A lab of real machines on one: container engines with their own roots and sockets, and
//! ordinary users in the engines' group.
//!
//! System tests and the demo stand on it. It needs root, for engines and users alone; what is
//! tested runs as those users. It must leave nothing behind, so everything it makes stands below
//! one folder and in one record (`record.rs`), from which the next lab cleans up after one that
//! was killed. It ends only what it recorded.

mod cgroup2;
mod disk;
mod engine;
mod http;
mod image;
mod processes;
mod proxy;
mod record;
mod user;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

pub use disk::Disk;
pub use engine::{Engine, EngineOptions};
pub use http::EngineReply;
pub use image::{python_rootfs, scratch_rootfs};
pub use proxy::{EngineProxy, Mood};
pub use record::clean_leftovers;
pub use user::User;

/// Where labs stand when the caller has no wish: short, since a socket's path has at most 107
/// bytes.
pub const DEFAULT_BASE: &str = "/tmp/gpunion-lab";

/// One lab: a folder below the base. Dropping it ends and removes all that was made in it.
#[derive(Debug)]
pub struct Lab {
    dir: PathBuf,
}

impl Lab {
    /// Cleans what labs that were killed left below `base`, then makes a new one there.
    pub fn new(base: impl AsRef<Path>) -> Result<Self> {
        ensure!(
            nix::unistd::geteuid().is_root(),
            "the lab starts engines and makes users, which takes root: run it by `sudo -E`"
        );
        let base = base.as_ref();
        clean_leftovers(base)?;
        static LABS: AtomicU32 = AtomicU32::new(0);
        let name = format!("{}-{}", std::process::id(), LABS.fetch_add(1, Ordering::Relaxed));
        let dir = base.join(name);
        fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
        let lab = Lab { dir };
        record::own(&lab.dir)?;
        user::ensure_group()?;
        Ok(lab)
    }

    /// Below it stands all of this lab. Everybody may enter.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts an engine, "a machine", and waits until it answers.
    pub fn engine(&self, name: &str) -> Result<Engine> {
        self.engine_with(name, EngineOptions::default())
    }

    pub fn engine_with(&self, name: &str, options: EngineOptions) -> Result<Engine> {
        let mut engine = Engine::launch(&self.dir, name, options)?;
        engine.wait_ready()?;
        Ok(engine)
    }

    /// Starts several at once, which takes the time of one.
    pub fn engines<const N: usize>(&self, names: [&str; N]) -> Result<[Engine; N]> {
        let mut engines = Vec::with_capacity(N);
        for name in names {
            engines.push(Engine::launch(&self.dir, name, EngineOptions::default())?);
        }
        for engine in &mut engines {
            engine.wait_ready()?;
        }
        match engines.try_into() {
            Ok(engines) => Ok(engines),
            Err(_) => bail!("not one engine for each name"),
        }
    }

    /// Makes an ordinary user, a member of the engines' group, for this lab alone.
    pub fn user(&self, name: &str) -> Result<User> {
        User::make(&self.dir, name)
    }

    /// Copies a program to where every user of the lab may run it (a checkout may stand below a
    /// closed home).
    pub fn install(&self, program: &Path) -> Result<PathBuf> {
        let bin = self.dir.join("bin");
        fs::create_dir_all(&bin)?;
        let name = program.file_name().context("a program has a file name")?;
        let to = bin.join(name);
        // A program that runs can't be written over, but replaced.
        let beside = bin.join(format!("{}.new", name.to_string_lossy()));
        fs::copy(program, &beside).with_context(|| format!("installing {}", program.display()))?;
        fs::set_permissions(&beside, fs::Permissions::from_mode(0o755))?;
        fs::rename(&beside, &to)?;
        Ok(to)
    }

    /// A folder with the mode of /tmp, e.g. one that stands for a GPU and is mounted into guests
    /// of any user.
    pub fn shared_folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.dir.join(name);
        fs::create_dir_all(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o1777))?;
        Ok(folder)
    }

    /// Leaves the lab's folder as it is when this process ends (its engines and users have a
    /// `keep` too). The next lab on the same base removes it all, and so does `lab clean`.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(error) = record::remove(&self.dir) {
            record::complain(&format!("cleaning up {}: {error:#}", self.dir.display()));
        }
    }
}

/// What a server on a unix socket answers to a GET, for programs of the product that speak HTTP.
pub fn get_over_socket(socket: &Path, path: &str) -> Result<String> {
    let limit = Duration::from_secs(10);
    Ok(http::call(socket, "GET", path, http::Body::None, limit)?.ok()?.body)
}

/// The same for a POST.
pub fn post_over_socket(
    socket: &Path,
    path: &str,
    body: Option<&serde_json::Value>,
    limit: Duration,
) -> Result<String> {
    let body = body.map_or(http::Body::None, http::Body::Json);
    Ok(http::call(socket, "POST", path, body, limit)?.ok()?.body)
}

/// Asks again and again until the answer is `Some`; says what it waited for when the time is up.
#[expect(clippy::disallowed_methods, reason = "real engines are waited for in real time")]
pub fn wait_for<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(answer) = ask().with_context(|| format!("waiting for {what}"))? {
            return Ok(answer);
        }
        if started.elapsed() > limit {
            bail!("waited {} s for {what}", limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
