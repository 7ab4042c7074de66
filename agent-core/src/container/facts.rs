//! What an engine is and can do on this machine, and which limits it would drop.

use std::fs;
use std::path::{Path, PathBuf};

use bollard::models::{SystemInfo, SystemInfoCgroupDriverEnum, SystemInfoCgroupVersionEnum, SystemVersion};
use gpunion_protocol::ids::GpuUuid;
use serde::{Deserialize, Serialize};

use super::calls::{Engine, SHORT, within};
use super::error::EngineError;
use super::limits::machine_has_swap;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineFacts {
    pub name: String,
    pub version: String,
    pub api: String,
    /// `amd64`, `arm64`.
    pub architecture: String,
    pub cpus: u32,
    /// Bytes.
    pub memory: u64,
    pub cgroup_version: u8,
    pub cgroup_driver: crate::second_way::CgroupDriver,
    /// Where it keeps its data; often closed to ordinary users.
    pub root: PathBuf,
    pub gpu_way: GpuWay,
    /// What can't be promised here, each with its fix.
    pub troubles: Vec<Trouble>,
}

/// How a guest gets its GPUs from this engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "way")]
pub enum GpuWay {
    /// The engine's own device lists (Docker 25 and later).
    Cdi,
    /// A device request for the driver `nvidia`.
    DeviceRequest,
    /// The runtime `nvidia` and a list in the environment.
    Runtime,
    /// A folder per GPU stands for it; nothing of it is a GPU figure.
    StandIn { root: PathBuf },
    /// `why` is one sentence with the fix.
    None { why: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    pub what: String,
    pub fix: String,
    /// Guests that need it are refused until it is mended.
    pub blocks: bool,
}

impl Engine {
    /// Asks the engine. `gpus` are those that could be lent; `standin` is the folder with one
    /// folder per stand-in GPU, by UUID.
    pub async fn probe(&self, gpus: &[GpuUuid], standin: Option<&Path>) -> Result<EngineFacts, EngineError> {
        const DOING: &str = "asking the container engine what it is";
        let client = self.client(DOING).await?;
        let version = within(DOING, SHORT, client.version()).await?;
        let info = within(DOING, SHORT, client.info()).await?;
        let gpu_way = match standin {
            Some(root) => GpuWay::StandIn { root: root.to_owned() },
            None => gpu_way(&info, &version, gpus, &cdi_specs(&info), has_nvidia_hook()),
        };
        Ok(facts(info, version, gpu_way))
    }

    /// The cheapest sign of life.
    pub async fn answers(&self) -> Result<(), EngineError> {
        const DOING: &str = "asking the container engine for a sign of life";
        within(DOING, SHORT, self.client(DOING).await?.ping()).await.map(drop)
    }
}

fn facts(info: SystemInfo, version: SystemVersion, gpu_way: GpuWay) -> EngineFacts {
    let mut troubles = troubles(&info, machine_has_swap());
    troubles.extend(old_kernel(&fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default()));
    troubles.extend(hidden_processes(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()));
    let cgroup_version = match info.cgroup_version {
        Some(SystemInfoCgroupVersionEnum::_2) => 2,
        Some(SystemInfoCgroupVersionEnum::_1 | SystemInfoCgroupVersionEnum::EMPTY) | None => 1,
    };
    use crate::second_way::CgroupDriver;
    let cgroup_driver = match info.cgroup_driver {
        Some(SystemInfoCgroupDriverEnum::SYSTEMD) => CgroupDriver::Systemd,
        Some(
            SystemInfoCgroupDriverEnum::CGROUPFS
            | SystemInfoCgroupDriverEnum::NONE
            | SystemInfoCgroupDriverEnum::EMPTY,
        )
        | None => CgroupDriver::Cgroupfs,
    };
    EngineFacts {
        name: version
            .platform
            .map(|platform| platform.name)
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| "Docker Engine".to_owned()),
        version: version.version.unwrap_or_default(),
        api: version.api_version.unwrap_or_default(),
        architecture: version.arch.unwrap_or_default(),
        cpus: info.ncpu.and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
        memory: info.mem_total.and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
        cgroup_version,
        cgroup_driver,
        root: info.docker_root_dir.map_or_else(|| PathBuf::from("/var/lib/docker"), PathBuf::from),
        gpu_way,
        troubles,
    }
}

fn troubles(info: &SystemInfo, has_swap: bool) -> Vec<Trouble> {
    const BOOT: &str = "enable it on the kernel's command line";
    let mut found = Vec::new();
    let mut dropped = |given: Option<bool>, what: &str, fix: &str, blocks: bool| {
        if given == Some(false) {
            let what = format!("the container engine would drop the limit on {what}");
            found.push(Trouble { what, fix: fix.to_owned(), blocks });
        }
    };
    dropped(info.memory_limit, "memory", &format!("{BOOT}: cgroup_enable=memory"), true);
    dropped(info.cpu_cfs_quota, "CPU time", "use a kernel with CONFIG_CFS_BANDWIDTH", true);
    dropped(info.pids_limit, "the number of processes", "use a kernel with CONFIG_CGROUP_PIDS", true);
    dropped(info.swap_limit, "swap", &format!("{BOOT}: swapaccount=1, or turn swap off"), has_swap);
    dropped(info.cpu_shares, "CPU weight", "use a kernel with CONFIG_FAIR_GROUP_SCHED", true);
    for option in info.security_options.iter().flatten() {
        if option.contains("name=userns") || option.contains("name=rootless") {
            found.push(Trouble {
                what:
                    "the container engine maps users (rootless or userns-remap), which is not supported yet"
                        .to_owned(),
                fix: "use an engine without userns-remap that runs as root".to_owned(),
                blocks: true,
            });
        }
    }
    let filters = |option: &String| option.contains("seccomp") && !option.contains("profile=unconfined");
    if !info.security_options.iter().flatten().any(filters) {
        found.push(Trouble {
            what: "the container engine filters no system calls (seccomp)".to_owned(),
            fix: "use a kernel with CONFIG_SECCOMP and an engine with its default profile".to_owned(),
            blocks: true,
        });
    }
    found
}

/// `release` as `uname -r` says it. What can't be read is taken for new enough.
fn old_kernel(release: &str) -> Option<Trouble> {
    let release = release.trim();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().ok());
    let version = (numbers.next().flatten()?, numbers.next().flatten()?);
    let (what, blocks) = if version < (5, 6) {
        ("it can't open what a guest wrote without leaving the workspace (openat2, Linux 5.6)", true)
    } else if version < (5, 10) {
        ("GPUnion is made for 5.10 and later", false)
    } else {
        return None;
    };
    Some(Trouble {
        what: format!("the kernel of this machine is Linux {release}: {what}"),
        fix: "update the system to one with Linux 5.10 or later, and reboot".to_owned(),
        blocks,
    })
}

/// A guest's init is known by its entry in /proc, which this option hides from other users.
fn hidden_processes(mounts: &str) -> Option<Trouble> {
    let hides =
        |option: &str| option.strip_prefix("hidepid=").is_some_and(|value| !matches!(value, "0" | "off"));
    let hidden = mounts
        .lines()
        .filter(|line| line.contains(" - proc "))
        .any(|line| line.rsplit(' ').next().is_some_and(|options| options.split(',').any(hides)));
    hidden.then(|| Trouble {
        what: "/proc hides the processes of other users (hidepid), so guests can't be told apart".to_owned(),
        fix: "sudo mount -o remount,hidepid=0 /proc, and the same in /etc/fstab".to_owned(),
        blocks: true,
    })
}

/// The newest way whose parts are all there. `cdi` is the text of the engine's device lists.
fn gpu_way(info: &SystemInfo, version: &SystemVersion, gpus: &[GpuUuid], cdi: &str, hook: bool) -> GpuWay {
    let listed = !gpus.is_empty() && gpus.iter().all(|gpu| cdi.contains(&gpu.0));
    if knows_cdi(version) && cdi.contains("nvidia.com/gpu") && listed {
        return GpuWay::Cdi;
    }
    if hook {
        return GpuWay::DeviceRequest;
    }
    if info.runtimes.as_ref().is_some_and(|runtimes| runtimes.contains_key("nvidia")) {
        return GpuWay::Runtime;
    }
    GpuWay::None {
        why: "the container engine can't give a GPU to a guest; install the NVIDIA container toolkit, run \
              sudo nvidia-ctk runtime configure --runtime=docker, and restart the engine"
            .to_owned(),
    }
}

/// CDI came with API 1.44 (Docker 25).
fn knows_cdi(version: &SystemVersion) -> bool {
    let api = version.api_version.as_deref().unwrap_or_default();
    let mut parts = api.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (1, 44)
}

/// The text of the engine's device lists, as far as this user may read them.
fn cdi_specs(info: &SystemInfo) -> String {
    const MOST: u64 = 1 << 20;
    let mut text = String::new();
    for folder in info.cdi_spec_dirs.iter().flatten() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.metadata().is_ok_and(|found| found.is_file() && found.len() <= MOST) {
                text.push_str(&fs::read_to_string(entry.path()).unwrap_or_default());
            }
        }
    }
    text
}

/// The engine offers device requests when it finds this program; it does not say so itself.
fn has_nvidia_hook() -> bool {
    ["/usr/bin", "/usr/local/bin", "/usr/sbin"]
        .iter()
        .any(|folder| Path::new(folder).join("nvidia-container-runtime-hook").exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(api: &str) -> SystemVersion {
        SystemVersion { api_version: Some(api.to_owned()), ..SystemVersion::default() }
    }

    #[test]
    fn the_newest_way_whose_parts_are_all_there_is_taken() {
        let gpus = [GpuUuid("GPU-1".to_owned()), GpuUuid("GPU-2".to_owned())];
        let with_runtime = SystemInfo {
            runtimes: Some([("nvidia".to_owned(), Default::default())].into()),
            ..SystemInfo::default()
        };
        let spec = "kind: nvidia.com/gpu\n- name: GPU-1\n- name: GPU-2\n";
        assert_eq!(gpu_way(&with_runtime, &version("1.47"), &gpus, spec, true), GpuWay::Cdi);
        assert_eq!(gpu_way(&with_runtime, &version("1.41"), &gpus, spec, true), GpuWay::DeviceRequest);
        let one_missing = "kind: nvidia.com/gpu\n- name: GPU-1\n";
        assert_eq!(gpu_way(&with_runtime, &version("1.47"), &gpus, one_missing, false), GpuWay::Runtime);
        let none = gpu_way(&SystemInfo::default(), &version("1.47"), &gpus, "", false);
        assert!(matches!(none, GpuWay::None { why } if why.contains("NVIDIA container toolkit")));
    }

    #[test]
    fn a_kernel_that_is_too_old_is_told_with_the_reason() {
        let old = old_kernel("4.18.0-553.el8.x86_64").unwrap();
        assert!(old.blocks && old.what.contains("openat2") && old.fix.contains("5.10"), "{old:?}");
        assert!(old_kernel("5.4.0-190-generic").unwrap().blocks);
        assert!(!old_kernel("5.6.0").unwrap().blocks);
        assert!(old_kernel("5.10.0-30-amd64").is_none() && old_kernel("6.18.5").is_none());
        assert!(old_kernel("odd").is_none());
    }

    #[test]
    fn hidden_processes_are_told() {
        let line = "22 1 0:20 / /proc rw,relatime - proc proc rw,hidepid=invisible";
        assert!(hidden_processes(line).is_some_and(|trouble| trouble.blocks));
        assert!(hidden_processes("22 1 0:20 / /proc rw,relatime - proc proc rw").is_none());
    }

    #[test]
    fn each_limit_that_would_be_dropped_is_named_with_its_fix() {
        let info = SystemInfo {
            memory_limit: Some(false),
            pids_limit: Some(true),
            swap_limit: Some(false),
            security_options: Some(vec!["name=seccomp,profile=default".to_owned()]),
            ..SystemInfo::default()
        };
        let found = troubles(&info, false);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[0].what.contains("memory") && found[0].blocks && found[0].fix.contains("cgroup_enable")
        );
        assert!(found[1].what.contains("swap") && !found[1].blocks, "there is none to limit");
        assert!(troubles(&info, true)[1].blocks);
    }
}
