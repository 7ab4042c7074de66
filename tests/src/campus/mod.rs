//! A small campus on one machine: a relay, machines with an engine and stand-in GPUs of their
//! own, people with devices. Everything of the product runs as an ordinary user and is used by
//! its command line alone; what a person could not do is not done here.
//!
//! The demo and the system tests stand on it.

pub mod crash;
mod device;
mod digits;
mod guests;
pub mod login;
mod luck;
mod nginx;
mod pair;
mod relay;
mod solo;
mod standin;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

pub use device::{Device, Ran};
pub use digits::{Files, Pace};
pub use guests::processes_of;
pub use luck::{Luck, say};
pub use nginx::{Nginx, ROOTS};
pub use pair::{GPU_MEMORY, PATIENCE, Pair};
pub use relay::{Relay, Setup, free_address};
pub use solo::{Caught, Solo};
pub use standin::StandIn;

use crate::lab::{Lab, User};

/// Name of the group that all campuses found.
pub const GROUP: &str = "campus";

/// A lab with the product installed where every user of it may run it.
#[derive(Debug)]
pub struct Campus {
    pub lab: Lab,
    gpunion: PathBuf,
    /// The library that takes NVML's place.
    nvml: PathBuf,
}

impl Campus {
    pub fn new() -> Result<Self> {
        let lab = Lab::new(crate::lab::DEFAULT_BASE)?;
        let built = built()?;
        let gpunion = lab.install(&built.join("gpunion"))?;
        for beside in ["gpunion-init", "gpunion-helper"] {
            lab.install(&built.join(beside))?;
        }
        Ok(Self { lab, gpunion, nvml: built.join("libnvml_standin.so") })
    }

    /// A relay, run by an operator who is nobody special.
    pub fn relay(&self, operator: User) -> Result<Relay> {
        self.relay_with(operator, Setup::default())
    }

    pub fn relay_with(&self, operator: User, setup: Setup) -> Result<Relay> {
        Relay::start(&self.gpunion, operator, setup)
    }

    /// A device with an agent that runs: `engine` is where it finds containers.
    pub fn device(&self, name: &str, user: User, engine: &Path, gpus: Option<StandIn>) -> Result<Device> {
        Device::start(&self.gpunion, name, user, engine, gpus)
    }

    /// Stand-in GPUs for one machine.
    pub fn stand_in(&self, machine: &str, gpus: &[(&str, u64)]) -> Result<StandIn> {
        StandIn::make(&self.lab, &self.nvml, machine, gpus)
    }

    /// UUID of a stand-in GPU that no other campus has: a GPU has one lender on a machine, and
    /// campuses run side by side.
    pub fn gpu(&self, name: &str) -> String {
        let lab = self.lab.dir().file_name().unwrap_or_default();
        format!("GPU-stand-in-{name}-{}", lab.to_string_lossy())
    }

    /// Makes `digits:latest`, FROM scratch, in one engine.
    pub fn digits_image(&self, engine: &crate::lab::Engine) -> Result<String> {
        let tar = self.lab.dir().join("digits.tar");
        crate::lab::scratch_rootfs(&built()?.join("digits"), &tar)?;
        engine.import(&tar, "digits:latest")
    }

    /// Makes `digits-python:latest`, a small system with Python and numpy, in one engine.
    pub fn python_image(&self, engine: &crate::lab::Engine) -> Result<String> {
        let rootfs = crate::lab::python_rootfs(&built()?.join("../lab-cache"))?;
        engine.import(&rootfs, "digits-python:latest")
    }

    /// Makes `busybox:latest` in one engine: a shell for jobs that are no training.
    pub fn busybox_image(&self, engine: &crate::lab::Engine) -> Result<String> {
        let tar = self.lab.dir().join("busybox.tar");
        crate::lab::scratch_rootfs(Path::new("/bin/busybox"), &tar)?;
        engine.import(&tar, "busybox:latest")
    }

    /// Makes `hostile:latest`, FROM scratch: a program that means harm.
    pub fn hostile_image(&self, engine: &crate::lab::Engine) -> Result<String> {
        let tar = self.lab.dir().join("hostile.tar");
        crate::lab::scratch_rootfs(&built()?.join("hostile-guest"), &tar)?;
        engine.import(&tar, "hostile:latest")
    }

    /// Makes `odd-jobs:latest`, FROM scratch: programs that do not do what a good one does.
    pub fn odd_jobs_image(&self, engine: &crate::lab::Engine) -> Result<String> {
        let tar = self.lab.dir().join("odd-jobs.tar");
        crate::lab::scratch_rootfs(&built()?.join("odd-jobs"), &tar)?;
        engine.import(&tar, "odd-jobs:latest")
    }

    pub fn program(&self) -> &Path {
        &self.gpunion
    }
}

/// The folder with the programs that were built together with this one.
pub fn built() -> Result<PathBuf> {
    let own = std::env::current_exe().context("where this program lies")?;
    let folder = own.parent().context("it lies somewhere")?;
    // Test programs lie one folder deeper.
    let folder =
        if folder.ends_with("deps") { folder.parent().context("deps has a parent")? } else { folder };
    Ok(folder.to_owned())
}

/// The repository, for the examples.
pub fn repository() -> Result<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(own.parent().context("the tests lie in the repository")?.to_owned())
}
