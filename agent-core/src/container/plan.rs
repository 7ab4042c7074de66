//! From what an attempt may have to what the engine is asked for. Pure.
//!
//! Every hardening of a guest stands here and is read back from the request in the tests. The
//! engine's configuration of a guest holds nothing secret: its environment comes from init.

use std::path::{Path, PathBuf};

use bollard::models::{
    ContainerCreateBody, DeviceRequest, HostConfig, HostConfigLogConfig, Mount, MountBindOptions,
    MountBindOptionsPropagationEnum, MountType, MountVolumeOptions, ResourcesUlimits, RestartPolicy,
    RestartPolicyNameEnum,
};
use gpunion_protocol::guest::{CONTROL_DIR, EGRESS_DIR, INIT_PATH, RUN_DIR, WORKSPACE};
use gpunion_protocol::ids::{AttemptRef, DeviceId, GpuUuid, SnapshotId};

use super::error::EngineError;
use super::facts::GpuWay;
use super::labels::{self, Kind};
use super::reference::is_digest;

/// Where the folders of stand-in GPUs appear in a guest, each under its UUID.
pub const STANDIN_DIR: &str = "/dev/gpunion-standin";

/// The number of processes that a guest may have when nothing else is said.
pub const PIDS: u32 = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestPlan {
    pub attempt: AttemptRef,
    /// The image's id, never a name: names can be moved.
    pub image_id: String,
    pub uid: u32,
    /// Bytes; /dev/shm and /tmp are part of it.
    pub memory: u64,
    pub cpus: u32,
    pub pids: u32,
    pub writable_root: bool,
    pub gpus: Vec<GpuUuid>,
    pub gpu_way: GpuWay,
    /// The static init on the host, and the folder with its socket.
    pub init: PathBuf,
    pub control: PathBuf,
    /// The folder with the socket of its proxy, for a guest with egress. It has no network either way.
    pub egress: Option<PathBuf>,
    /// All guests of this device have one parent, which the second way is shown.
    pub cgroup_parent: String,
    pub data: Vec<DataMount>,
}

/// A read-only input of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataMount {
    pub snapshot: SnapshotId,
    /// Absolute path in the guest.
    pub at: String,
}

impl GuestPlan {
    /// Refuses what must not get into a request, whoever wrote it: a relay or a member could have
    /// left out the checks on their side.
    pub(super) fn check(&self) -> Result<(), EngineError> {
        let refused = |reason: String| Err(EngineError::refused("planning the guest", reason));
        if !is_digest(&self.image_id) {
            return refused(format!("{:?} is not the id of an image", self.image_id));
        }
        let plain = |gpu: &&GpuUuid| {
            gpu.0.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') && !gpu.0.is_empty()
        };
        if let Some(odd) = self.gpus.iter().find(|gpu| !plain(gpu)) {
            return refused(format!("{:?} is not the UUID of a GPU", odd.0));
        }
        if let GpuWay::None { why } = &self.gpu_way
            && !self.gpus.is_empty()
        {
            return refused(why.clone());
        }
        if self.memory == 0 || self.cpus == 0 || self.pids == 0 || self.uid == 0 {
            return refused("memory, CPUs, processes and the user id must not be 0".to_owned());
        }
        match self.data.iter().find(|data| !is_free_place(&data.at)) {
            Some(data) => refused(format!("{:?} is no place for an input", data.at)),
            None => Ok(()),
        }
    }

    /// `volumes`: places that the image wants volumes of its own at.
    pub(super) fn body(&self, device: &DeviceId, volumes: &[String]) -> ContainerCreateBody {
        ContainerCreateBody {
            image: Some(self.image_id.clone()),
            entrypoint: Some(vec![INIT_PATH.to_owned()]),
            cmd: Some(Vec::new()),
            env: Some(self.env()),
            user: Some(format!("{0}:{0}", self.uid)),
            working_dir: Some("/".to_owned()),
            hostname: Some("guest".to_owned()),
            tty: Some(false),
            open_stdin: Some(false),
            // A health check is a program that the engine runs beside init: none of the image's.
            healthcheck: Some(bollard::models::HealthConfig {
                test: Some(vec!["NONE".to_owned()]),
                ..Default::default()
            }),
            labels: Some(labels::of_attempt(device, Kind::Guest.word(), &self.attempt)),
            host_config: Some(self.host(device, volumes)),
            ..ContainerCreateBody::default()
        }
    }

    fn host(&self, device: &DeviceId, volumes: &[String]) -> HostConfig {
        let gpus = self.device_requests();
        HostConfig {
            memory: Some(signed(self.memory)),
            // Equal to memory: no swap, which would make the owner's desk slow.
            memory_swap: Some(signed(self.memory)),
            nano_cpus: Some(i64::from(self.cpus) * 1_000_000_000),
            pids_limit: Some(i64::from(self.pids)),
            // The lowest weights there are: the owner's programs go first.
            cpu_shares: Some(2),
            blkio_weight: Some(10),
            cgroup_parent: Some(self.cgroup_parent.clone()),
            oom_kill_disable: None,
            // When the machine itself runs out of memory, the guest goes before the owner's work.
            oom_score_adj: Some(900),
            shm_size: Some(signed(self.memory / 2)),
            tmpfs: Some(self.tmpfs(volumes)),
            mounts: Some(self.mounts(device)),
            ..hardened(self.writable_root, gpus, self.runtime())
        }
    }

    /// /tmp must run programs: compilers of the large frameworks put theirs there. Places that the
    /// image wants volumes of its own at are in memory too: an engine would make them writable on
    /// the owner's disk, without any limit.
    fn tmpfs(&self, volumes: &[String]) -> std::collections::HashMap<String, String> {
        let room = format!("rw,nosuid,nodev,exec,mode=1777,size={}", self.memory / 2);
        let run = "rw,nosuid,nodev,noexec,mode=1777,size=1048576,nr_inodes=1024".to_owned();
        let taken = |at: &String| self.data.iter().any(|data| data.at == *at);
        let free = volumes.iter().filter(|at| is_free_place(at) && !taken(at));
        // The image's own folder there would else decide who may write.
        let own = format!("{room},uid={0},gid={0}", self.uid);
        let mut places: std::collections::HashMap<_, _> = free.map(|at| (at.clone(), own.clone())).collect();
        places.extend([("/tmp".to_owned(), room), (RUN_DIR.to_owned(), run)]);
        places
    }

    fn mounts(&self, device: &DeviceId) -> Vec<Mount> {
        let mut mounts = vec![
            bind(&self.init, INIT_PATH, true),
            bind(&self.control, CONTROL_DIR, true),
            volume(&labels::workspace_name(device, &self.attempt), WORKSPACE, false),
        ];
        mounts.extend(self.egress.iter().map(|folder| bind(folder, EGRESS_DIR, true)));
        mounts.extend(
            self.data.iter().map(|data| volume(&labels::data_name(device, &data.snapshot), &data.at, true)),
        );
        if let GpuWay::StandIn { root } = &self.gpu_way {
            mounts.extend(
                self.gpus.iter().map(|gpu| bind(&root.join(&gpu.0), &format!("{STANDIN_DIR}/{gpu}"), false)),
            );
        }
        mounts
    }

    /// Images for GPUs carry `NVIDIA_VISIBLE_DEVICES=all`, and an engine whose default runtime is
    /// `nvidia` would obey: so it is set for every guest, to nothing unless this way needs it.
    fn env(&self) -> Vec<String> {
        let list = match &self.gpu_way {
            GpuWay::Runtime | GpuWay::DeviceRequest if !self.gpus.is_empty() => {
                self.gpus.iter().map(|gpu| gpu.0.as_str()).collect::<Vec<_>>().join(",")
            }
            GpuWay::Runtime
            | GpuWay::DeviceRequest
            | GpuWay::Cdi
            | GpuWay::StandIn { .. }
            | GpuWay::None { .. } => "void".to_owned(),
        };
        vec![
            format!("NVIDIA_VISIBLE_DEVICES={list}"),
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility".to_owned(),
        ]
    }

    fn runtime(&self) -> Option<String> {
        (self.gpu_way == GpuWay::Runtime && !self.gpus.is_empty()).then(|| "nvidia".to_owned())
    }

    fn device_requests(&self) -> Option<Vec<DeviceRequest>> {
        if self.gpus.is_empty() {
            return None;
        }
        let uuids = || self.gpus.iter().map(|gpu| gpu.0.clone());
        match &self.gpu_way {
            GpuWay::Cdi => Some(vec![DeviceRequest {
                driver: Some("cdi".to_owned()),
                device_ids: Some(uuids().map(|uuid| format!("nvidia.com/gpu={uuid}")).collect()),
                ..DeviceRequest::default()
            }]),
            GpuWay::DeviceRequest => Some(vec![DeviceRequest {
                driver: Some("nvidia".to_owned()),
                device_ids: Some(uuids().collect()),
                capabilities: Some(vec![vec!["gpu".to_owned(), "compute".to_owned(), "utility".to_owned()]]),
                ..DeviceRequest::default()
            }]),
            GpuWay::Runtime | GpuWay::StandIn { .. } | GpuWay::None { .. } => None,
        }
    }
}

/// What guests and our own short-lived containers have in common: nothing of the host's.
pub(super) fn hardened(
    writable_root: bool,
    device_requests: Option<Vec<DeviceRequest>>,
    runtime: Option<String>,
) -> HostConfig {
    HostConfig {
        network_mode: Some("none".to_owned()),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges:true".to_owned()]),
        privileged: Some(false),
        readonly_rootfs: Some(!writable_root),
        ipc_mode: Some("private".to_owned()),
        pid_mode: Some(String::new()),
        // Output goes through init's ring; an engine that stood still would block its writers.
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        // Our own end decides when a container goes, so that its state can be read before.
        auto_remove: Some(false),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        init: Some(false),
        // A crash of a guest must not fill the owner's folder of crash reports.
        ulimits: Some(vec![ResourcesUlimits { name: Some("core".to_owned()), soft: Some(0), hard: Some(0) }]),
        device_requests,
        runtime,
        ..HostConfig::default()
    }
}

pub(super) fn bind(source: &Path, target: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source.to_string_lossy().into_owned()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    }
}

/// Without copying: what the image has at that place would else fill and own the volume.
pub(super) fn volume(name: &str, target: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::VOLUME),
        source: Some(name.to_owned()),
        target: Some(target.to_owned()),
        read_only: Some(read_only),
        volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
        ..Mount::default()
    }
}

/// An absolute path that covers nothing of the guest's own.
fn is_free_place(at: &str) -> bool {
    const OWN: &[&str] = &[WORKSPACE, "/tmp", "/run", "/proc", "/sys", "/dev"];
    let parts: Vec<&str> = at.split('/').skip(1).collect();
    let plain = at.starts_with('/') && parts.iter().all(|part| !matches!(*part, "" | "." | ".."));
    plain && !at.contains('\0') && OWN.iter().all(|own| at != *own && !at.starts_with(&format!("{own}/")))
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
pub(super) mod tests {
    use gpunion_protocol::ids::{AttemptNo, Epoch, JobId, Token};
    use serde_json::{Value, json};

    use super::*;

    pub(in crate::container) fn plan() -> GuestPlan {
        GuestPlan {
            attempt: AttemptRef {
                job: JobId::new(1, [1; 10]),
                token: Token { epoch: Epoch(3), attempt: AttemptNo(2) },
            },
            image_id: format!("sha256:{}", "a".repeat(64)),
            uid: 0x7000_0001,
            memory: 1 << 30,
            cpus: 2,
            pids: PIDS,
            writable_root: false,
            gpus: Vec::new(),
            gpu_way: GpuWay::None { why: "none here".to_owned() },
            init: "/usr/lib/gpunion/gpunion-init".into(),
            control: "/run/user/1000/gpunion/c".into(),
            egress: None,
            cgroup_parent: "/gpunion-dev_1/guests".to_owned(),
            data: Vec::new(),
        }
    }

    fn as_asked(plan: &GuestPlan) -> Value {
        serde_json::to_value(plan.body(&DeviceId::new(1, [9; 10]), &[])).unwrap()
    }

    #[test]
    fn every_hardening_is_in_what_the_engine_is_asked_for() {
        let asked = as_asked(&plan());
        let host = &asked["HostConfig"];
        let expected = json!({
            "CapDrop": ["ALL"], "SecurityOpt": ["no-new-privileges:true"], "Privileged": false,
            "ReadonlyRootfs": true, "NetworkMode": "none", "IpcMode": "private", "PidMode": "",
            "PidsLimit": 4096, "Memory": 1 << 30, "MemorySwap": 1 << 30, "NanoCpus": 2_000_000_000u64,
            "CpuShares": 2, "BlkioWeight": 10, "AutoRemove": false, "Init": false, "OomScoreAdj": 900,
            "LogConfig": {"Type": "none"}, "RestartPolicy": {"Name": "no"}, "ShmSize": 1 << 29,
            "CgroupParent": "/gpunion-dev_1/guests",
        });
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(&host[key], value, "{key}");
        }
        for absent in [
            "CapAdd",
            "Binds",
            "Devices",
            "DeviceRequests",
            "VolumesFrom",
            "Runtime",
            "OomKillDisable",
            "Sysctls",
        ] {
            assert!(host[absent].is_null(), "{absent}: {}", host[absent]);
        }
        assert_eq!(asked["User"], json!("1879048193:1879048193"));
        assert_eq!(asked["Entrypoint"], json!([INIT_PATH]));
        let run = host["Tmpfs"][RUN_DIR].as_str().unwrap();
        assert!(run.contains("noexec") && run.contains("mode=1777"), "{run}");
        assert!(host["Tmpfs"]["/tmp"].as_str().unwrap().contains("size=536870912"));
    }

    #[test]
    fn only_the_workspace_can_be_written() {
        let mut plan = plan();
        plan.data.push(DataMount { snapshot: SnapshotId([4; 32]), at: "/data".to_owned() });
        let asked = as_asked(&plan);
        let mounts = asked["HostConfig"]["Mounts"].as_array().unwrap();
        let writable: Vec<&str> = mounts
            .iter()
            .filter(|mount| mount["ReadOnly"] != json!(true))
            .filter_map(|mount| mount["Target"].as_str())
            .collect();
        assert_eq!(writable, [WORKSPACE]);
        assert_eq!(mounts.len(), 4);
        for mount in mounts.iter().filter(|mount| mount["Type"] == "volume") {
            assert_eq!(mount["VolumeOptions"]["NoCopy"], json!(true), "{mount}");
        }
    }

    #[test]
    fn egress_is_a_mount_more_and_no_network() {
        let with = as_asked(&GuestPlan { egress: Some("/run/user/1000/gpunion/e".into()), ..plan() });
        let (with, without) = (&with["HostConfig"], &as_asked(&plan())["HostConfig"]);
        assert_eq!((&with["NetworkMode"], &without["NetworkMode"]), (&json!("none"), &json!("none")));
        let at = |host: &Value| {
            let mounts = host["Mounts"].as_array().unwrap();
            mounts.iter().find(|mount| mount["Target"] == EGRESS_DIR).cloned()
        };
        assert_eq!(at(with).unwrap()["ReadOnly"], json!(true));
        assert!(at(without).is_none());
    }

    #[test]
    fn a_guest_sees_only_the_gpus_it_was_given_in_every_way() {
        let (given, other) = (GpuUuid("GPU-given".to_owned()), "GPU-other");
        let ways = [
            GpuWay::Cdi,
            GpuWay::DeviceRequest,
            GpuWay::Runtime,
            GpuWay::StandIn { root: "/var/standin".into() },
        ];
        for way in ways {
            let with = GuestPlan { gpus: vec![given.clone()], gpu_way: way.clone(), ..plan() };
            let text = as_asked(&with).to_string();
            assert!(text.contains("GPU-given") && !text.contains(other), "{way:?}");
            let without = GuestPlan { gpu_way: way.clone(), ..plan() };
            let asked = as_asked(&without);
            assert_eq!(asked["Env"][0], json!("NVIDIA_VISIBLE_DEVICES=void"), "{way:?}");
            assert!(
                asked["HostConfig"]["DeviceRequests"].is_null() && asked["HostConfig"]["Runtime"].is_null()
            );
        }
    }

    #[test]
    fn what_a_relay_or_member_should_never_have_sent_is_refused() {
        plan().check().unwrap();
        let standin = GpuWay::StandIn { root: "/var/standin".into() };
        let bad = [
            GuestPlan { gpus: vec![GpuUuid("../../etc".to_owned())], gpu_way: standin, ..plan() },
            GuestPlan { gpus: vec![GpuUuid("GPU-1".to_owned())], ..plan() },
            GuestPlan { image_id: "python".to_owned(), ..plan() },
            GuestPlan { uid: 0, ..plan() },
            GuestPlan { memory: 0, ..plan() },
        ];
        for bad in bad {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        for at in ["/run/gpunion-ctl", "/workspace/x", "/", "/a/../dev", "data", "/dev/gpunion-standin/x", ""]
        {
            let data = vec![DataMount { snapshot: SnapshotId([4; 32]), at: at.to_owned() }];
            assert!(GuestPlan { data, ..plan() }.check().is_err(), "{at}");
        }
    }

    #[test]
    fn volumes_of_the_image_s_own_are_in_memory_and_not_on_the_owner_s_disk() {
        let body =
            plan().body(&DeviceId::new(1, [9; 10]), &["/home/user".to_owned(), "/workspace".to_owned()]);
        let places = body.host_config.unwrap().tmpfs.unwrap();
        assert!(places["/home/user"].contains("size=536870912"));
        assert!(!places.contains_key("/workspace"));
    }

    #[test]
    fn nothing_secret_is_in_the_engine_s_configuration() {
        let asked = as_asked(&plan());
        let names: Vec<&str> =
            asked["Env"].as_array().unwrap().iter().filter_map(|e| e.as_str()?.split('=').next()).collect();
        assert_eq!(names, ["NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"]);
    }
}
