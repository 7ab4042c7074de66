//! Opening NVML, and saying in plain words why it can't be.

use std::path::{Path, PathBuf};

use gpunion_protocol::gpu::GpuSample;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::read;

/// Why there are no GPUs to lend. The text is a sentence for the owner; CPU jobs go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoGpus {
    #[error("No NVIDIA driver on this machine: CPU jobs can still be lent")]
    NoDriver,
    #[error(
        "The NVIDIA driver is installed but not loaded (try: sudo modprobe nvidia, or reboot): CPU jobs can still be lent"
    )]
    NotLoaded,
    #[error(
        "The NVIDIA driver was updated and the old one still runs: reboot, or reload the nvidia modules, before GPUs can be lent"
    )]
    VersionMismatch,
    #[error("This user may not talk to the NVIDIA driver: check who may open /dev/nvidiactl")]
    NoPermission,
    #[error("The NVML library {path} can't be loaded: {why}")]
    BadLibrary { path: PathBuf, why: String },
    #[error("The NVIDIA driver does not answer as it should ({why}): CPU jobs can still be lent")]
    Other { why: String },
}

impl NoGpus {
    /// What mends it, where there is a driver that fails. `sentence` is one of ours: the picture of
    /// the machine carries no more.
    pub fn fix_of(sentence: &str) -> Option<&'static str> {
        let same = |known: &Self| known.to_string() == sentence;
        if same(&Self::NoDriver) {
            return None;
        }
        Some(if same(&Self::NotLoaded) {
            "sudo modprobe nvidia"
        } else if same(&Self::VersionMismatch) {
            "sudo reboot"
        } else if same(&Self::NoPermission) {
            "ls -l /dev/nvidiactl names the group that may: sudo usermod -aG GROUP $USER, then log out and in again"
        } else if sentence.starts_with("The NVML library ") {
            "name another with --nvml-library, or leave it out"
        } else if sentence.starts_with("The NVIDIA driver does not answer") {
            "nvidia-smi says more; sudo reboot usually helps"
        } else {
            return None;
        })
    }
}

/// Reads all GPUs when asked, on the calling thread: for a command that lives a moment, such as
/// a reclaim without an agent. An agent uses `Gpus`.
#[derive(Debug)]
pub struct Reader {
    nvml: Nvml,
}

impl Reader {
    pub fn open(library: Option<&Path>) -> Result<Self, NoGpus> {
        open(library).map(|nvml| Self { nvml })
    }

    /// Every GPU that answers to its UUID now. Blocks for as long as the driver does.
    pub fn read(&self) -> Vec<GpuSample> {
        let (cards, _) = read::cards(&self.nvml).unwrap_or_default();
        cards.iter().filter_map(|card| card.sample(super::watch::boot_now()).ok()).collect()
    }
}

/// `library` takes the place of the driver's own; it goes through the same `dlopen`.
pub(super) fn open(library: Option<&Path>) -> Result<Nvml, NoGpus> {
    let mut builder = Nvml::builder();
    if let Some(path) = library {
        builder.lib_path(path.as_os_str());
    }
    builder.init().map_err(|error| why(&error, library))
}

/// Whether this error means that the driver itself has gone, and NVML must be opened afresh.
pub(super) fn driver_gone(error: &NvmlError) -> bool {
    matches!(error, NvmlError::Uninitialized | NvmlError::DriverNotLoaded | NvmlError::LibRmVersionMismatch)
}

pub(super) fn why(error: &NvmlError, library: Option<&Path>) -> NoGpus {
    if let (NvmlError::LibloadingError(_), Some(path)) = (error, library) {
        // The loader says all of it, and begins with the path.
        let said = root(error).to_string();
        let why = said.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&said).to_owned();
        return NoGpus::BadLibrary { path: path.to_owned(), why };
    }
    #[expect(clippy::wildcard_enum_match_arm, reason = "NVML's errors, not ours: the rest have one answer")]
    match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => NoGpus::NoDriver,
        NvmlError::DriverNotLoaded => NoGpus::NotLoaded,
        NvmlError::LibRmVersionMismatch => NoGpus::VersionMismatch,
        NvmlError::NoPermission => NoGpus::NoPermission,
        other => NoGpus::Other { why: chain(other) },
    }
}

fn root(error: &NvmlError) -> &dyn std::error::Error {
    let mut last: &dyn std::error::Error = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last
}

/// The error and everything beneath it, on one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
