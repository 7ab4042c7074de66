//! Whether the system has switched a GPU off to save power (F25).
//!
//! On a laptop with two GPUs a question wakes the big one; the kernel knows without asking it.

use std::fs;
use std::path::{Path, PathBuf};

/// Where the kernel tells the power state of the PCI device that NVML calls `bus_id`.
pub(super) fn status_file(bus_id: &str) -> Option<PathBuf> {
    Some(Path::new("/sys/bus/pci/devices").join(sysfs_name(bus_id)?).join("power/runtime_status"))
}

pub(super) fn suspended(status_file: &Path) -> bool {
    fs::read_to_string(status_file).is_ok_and(|status| status.trim() == "suspended")
}

/// NVML writes the domain with eight digits (`00000000:01:00.0`), the kernel with four.
fn sysfs_name(bus_id: &str) -> Option<String> {
    let (domain, rest) = bus_id.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let plain = rest.bytes().all(|b| b.is_ascii_hexdigit() || b == b':' || b == b'.');
    plain.then(|| format!("{domain:04x}:{}", rest.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f25_reads_the_kernels_word_for_a_sleeping_gpu() {
        assert_eq!(sysfs_name("00000000:0A:00.0").as_deref(), Some("0000:0a:00.0"));
        assert_eq!(sysfs_name("../../etc"), None);
        assert_eq!(sysfs_name("0:../x"), None);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("runtime_status");
        assert!(!suspended(&file));
        fs::write(&file, "suspended\n").unwrap();
        assert!(suspended(&file));
        fs::write(&file, "active\n").unwrap();
        assert!(!suspended(&file));
    }
}
