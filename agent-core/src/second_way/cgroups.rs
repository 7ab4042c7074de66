//! Where the cgroups of one device's guests are, by the engine's driver and the kernel's version.
//!
//! Guests have a parent of their own, so that a program can be shown them and nobody else. The
//! second way itself lies beside that parent and not in it: what is done to all guests at once
//! must not reach it, and with systemd it keeps the slice above both alive.

use std::path::{Path, PathBuf};

use gpunion_protocol::ids::DeviceId;

/// Who makes the cgroups of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupDriver {
    Cgroupfs,
    Systemd,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroups {
    device: DeviceId,
    driver: CgroupDriver,
    rights: Rights,
    v2: bool,
}

/// What ending a cgroup takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rights {
    /// `cgroup.kill`: no capability, no other process in sight.
    None,
    /// Only signals end a process: CAP_KILL, and the host's process ids.
    KillOnHost,
}

/// Where engines and systemd have the cgroups of a machine.
const ROOT: &str = "/sys/fs/cgroup";
/// The first kernel with `cgroup.kill`.
const KILL_SINCE: (u32, u32) = (5, 14);

impl Cgroups {
    /// `kernel`: as `uname -r` has it.
    pub fn of(device: &DeviceId, driver: CgroupDriver, version: u8, kernel: &str) -> Self {
        let v2 = version == 2;
        let rights = if v2 && at_least(kernel, KILL_SINCE) { Rights::None } else { Rights::KillOnHost };
        Self { device: device.clone(), driver, rights, v2 }
    }

    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// What the engine is told as the parent of each guest.
    pub fn parent_of_guests(&self) -> String {
        match self.driver {
            CgroupDriver::Cgroupfs => format!("{}/{}", self.parent(), self.guests()),
            CgroupDriver::Systemd => self.guests(),
        }
    }

    /// The same for the second way.
    pub fn parent(&self) -> String {
        match self.driver {
            CgroupDriver::Cgroupfs => format!("/gpunion-{}", self.device),
            CgroupDriver::Systemd => format!("gpunion-{}.slice", self.device),
        }
    }

    /// The guests' folder in that of `parent`.
    pub fn guests(&self) -> String {
        match self.driver {
            CgroupDriver::Cgroupfs => "guests".to_owned(),
            CgroupDriver::Systemd => format!("gpunion-{}-guests.slice", self.device),
        }
    }

    /// Where guests are frozen.
    pub fn freezer(&self) -> PathBuf {
        self.below(if self.v2 { "" } else { "freezer" })
    }

    /// Where their CPU time is weighed; on v2 that is the same folder.
    pub fn cpu(&self) -> PathBuf {
        self.below(if self.v2 { "" } else { "cpu" })
    }

    fn below(&self, hierarchy: &str) -> PathBuf {
        let hierarchy = Path::new(ROOT).join(hierarchy);
        match self.driver {
            CgroupDriver::Cgroupfs => hierarchy.join(self.parent().trim_start_matches('/')),
            // A dash in the name of a slice is a level above it.
            CgroupDriver::Systemd => hierarchy.join("gpunion.slice").join(self.parent()),
        }
    }
}

fn at_least(kernel: &str, wanted: (u32, u32)) -> bool {
    let mut parts = kernel.split(['.', '-']).map(|part| part.parse::<u32>().ok());
    matches!((parts.next().flatten(), parts.next().flatten()), (Some(major), Some(minor)) if (major, minor) >= wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(driver: CgroupDriver, version: u8) -> Cgroups {
        Cgroups::of(&DeviceId::new(1, [1; 10]), driver, version, "6.1.0-13-amd64")
    }

    #[test]
    fn guests_have_a_parent_of_their_own_with_every_driver() {
        let device = DeviceId::new(1, [1; 10]);
        assert!(!device.to_string().contains('-'), "a dash would be a level of slices more");
        let plain = of(CgroupDriver::Cgroupfs, 1);
        assert_eq!(plain.parent_of_guests(), format!("/gpunion-{device}/guests"));
        assert_eq!(plain.freezer(), PathBuf::from(format!("/sys/fs/cgroup/freezer/gpunion-{device}")));
        assert_eq!(plain.cpu(), PathBuf::from(format!("/sys/fs/cgroup/cpu/gpunion-{device}")));
        let slices = of(CgroupDriver::Systemd, 2);
        assert_eq!(slices.parent_of_guests(), format!("gpunion-{device}-guests.slice"));
        let folder = format!("/sys/fs/cgroup/gpunion.slice/gpunion-{device}.slice");
        assert_eq!(slices.freezer(), PathBuf::from(folder));
    }

    #[test]
    fn a_capability_is_taken_only_where_nothing_else_ends_a_guest() {
        assert_eq!(of(CgroupDriver::Systemd, 2).rights(), Rights::None);
        assert_eq!(of(CgroupDriver::Cgroupfs, 1).rights(), Rights::KillOnHost);
        let device = DeviceId::new(1, [1; 10]);
        for (kernel, rights) in [
            ("5.13.0", Rights::KillOnHost),
            ("5.14.0-1-amd64", Rights::None),
            ("6.8", Rights::None),
            ("odd", Rights::KillOnHost),
        ] {
            assert_eq!(Cgroups::of(&device, CgroupDriver::Systemd, 2, kernel).rights(), rights, "{kernel}");
        }
    }
}
