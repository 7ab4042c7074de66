//! What is wrong on this machine, in the user's words, each with its exact fix.
//!
//! Looks and asks; changes nothing. Works with and without a running agent.

mod relay;

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gpunion_protocol::gpu::{GpuSample, GpuState};
use gpunion_protocol::ids::{DeviceId, GpuUuid};
use gpunion_protocol::local::{Finding, Grade};
use gpunion_protocol::second_way::ToSecondWay;
use gpunion_protocol::units::Bytes;
use nix::unistd::{Gid, Group};

use crate::config::identity::keyring_answers;
use crate::config::settings::{SecondWayChoice, TokenStoreChoice};
use crate::config::{Dirs, Locked, Membership, Settings, TokenStore, lock};
use crate::container::{Engine, EngineFacts, GpuWay, free_space};
use crate::gpu::NoGpus;
use crate::relay_link::LinkStatus;
use crate::second_way::{Rights, ask, cgroups_with};

/// Images and workspaces of guests need room; less than this is told.
const ROOM: u64 = 20 << 30;
/// Nothing of ours works below this.
const ROOM_LEAST: u64 = 1 << 30;
const SIGN: Duration = Duration::from_millis(500);
const ENGINE_PATIENCE: Duration = Duration::from_secs(10);

/// Who is examined.
#[derive(Debug, Clone)]
pub struct Patient {
    pub dirs: Dirs,
    pub settings: Settings,
    pub membership: Option<Arc<Membership>>,
    /// A membership whose token can't be had.
    pub locked: Option<Arc<Locked>>,
    pub agent: Agent,
    /// Or the sentence why there are none.
    pub gpus: Result<Vec<GpuSample>, String>,
}

/// How this machine's agent is.
#[derive(Debug, Clone)]
pub enum Agent {
    /// It examines itself.
    Runs(LinkStatus),
    Absent,
    /// Something listens at its socket and says nothing.
    Silent,
}

pub async fn examine(patient: &Patient) -> Vec<Finding> {
    let mut found = Vec::new();
    let socket = patient.settings.engine_socket();
    let rights = rights(&socket);
    let reachable = rights.grade == Grade::Good;
    found.push(rights);
    let uuids: Vec<GpuUuid> = patient.gpus.iter().flatten().map(|gpu| gpu.uuid.clone()).collect();
    let facts = if reachable { engine(patient, &socket, &uuids, &mut found).await } else { None };
    found.extend(gpus(&patient.gpus, facts.as_ref()));
    let shown = format!("du -xh --max-depth=1 {} | sort -h shows what is large", patient.dirs.data.display());
    found.push(disk("disk of the agent", &patient.dirs.data, &shown));
    if let Some(facts) = &facts {
        found.push(disk(
            "disk of the container engine",
            &facts.root,
            "docker image prune removes images that nothing uses",
        ));
        found.extend(limits(facts));
        found.push(second_way(patient, facts).await);
    }
    found.push(agent(patient));
    found.extend(relay::look(patient).await);
    found.push(keyring(patient).await);
    found
}

fn good(about: &str, what: impl Into<String>) -> Finding {
    Finding { about: about.to_owned(), grade: Grade::Good, what: what.into(), fix: None }
}

fn warning(about: &str, what: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding { about: about.to_owned(), grade: Grade::Warning, what: what.into(), fix: Some(fix.into()) }
}

fn bad(about: &str, what: impl Into<String>, fix: impl Into<String>) -> Finding {
    Finding { about: about.to_owned(), grade: Grade::Bad, what: what.into(), fix: Some(fix.into()) }
}

/// Whether this user may speak with the engine.
fn rights(socket: &Path) -> Finding {
    const ABOUT: &str = "rights";
    let shown = socket.display();
    match std::os::unix::net::UnixStream::connect(socket) {
        Ok(_) => good(ABOUT, format!("this user may use the container engine at {shown}")),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            bad(ABOUT, format!("this user may not use the container engine at {shown}"), may_use(socket))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => bad(
            ABOUT,
            format!("there is no container engine at {shown}"),
            "install Docker Engine 20.10 or later (https://docs.docker.com/engine/install), or name its socket with --engine; \
             submitting jobs needs none",
        ),
        Err(error) => bad(
            ABOUT,
            format!("the container engine at {shown} does not answer ({error})"),
            "sudo systemctl start docker",
        ),
    }
}

/// Whoever is in the socket's group may speak with the engine.
fn may_use(socket: &Path) -> String {
    let group = std::fs::metadata(socket).ok().map(|meta| meta.gid());
    let group =
        group.filter(|gid| *gid != 0).and_then(|gid| Group::from_gid(Gid::from_raw(gid)).ok().flatten());
    match group {
        Some(group) => format!("sudo usermod -aG {} $USER, then log out and in again", group.name),
        // Root's alone: a packaged engine gives it to the group docker.
        None => "sudo groupadd -f docker; sudo usermod -aG docker $USER; sudo systemctl restart docker; then log out and in again"
            .to_owned(),
    }
}

async fn engine(
    patient: &Patient,
    socket: &Path,
    gpus: &[GpuUuid],
    found: &mut Vec<Finding>,
) -> Option<EngineFacts> {
    const ABOUT: &str = "engine";
    let device =
        patient.membership.as_ref().map_or_else(|| DeviceId::new(0, [0; 10]), |m| m.group.device.clone());
    let engine = Engine::connect(socket, &device);
    let probe = engine.probe(gpus, patient.settings.standin.as_deref());
    match tokio::time::timeout(ENGINE_PATIENCE, probe).await {
        Ok(Ok(facts)) => {
            found.push(if old(&facts.version) {
                bad(
                    ABOUT,
                    format!("{} {} is older than 20.10", facts.name, facts.version),
                    "install Docker Engine 20.10 or later",
                )
            } else {
                good(ABOUT, format!("{} {}, cgroup v{}", facts.name, facts.version, facts.cgroup_version))
            });
            Some(facts)
        }
        Ok(Err(error)) => {
            found.push(bad(ABOUT, error.to_string(), "sudo systemctl restart docker"));
            None
        }
        Err(_) => {
            let what = format!("the container engine did not answer within {} s", ENGINE_PATIENCE.as_secs());
            found.push(bad(ABOUT, what, "sudo systemctl restart docker"));
            None
        }
    }
}

fn old(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(major), minor) => (major, minor.unwrap_or(0)) < (20, 10),
        (None, _) => false,
    }
}

fn gpus(gpus: &Result<Vec<GpuSample>, String>, engine: Option<&EngineFacts>) -> Vec<Finding> {
    const ABOUT: &str = "GPU";
    let gpus = match gpus {
        Err(sentence) => {
            return vec![match NoGpus::fix_of(sentence) {
                Some(fix) => bad(ABOUT, sentence.clone(), fix),
                None => warning(
                    ABOUT,
                    sentence.clone(),
                    "install the NVIDIA driver to lend GPUs; CPU jobs can be lent without",
                ),
            }];
        }
        Ok(gpus) if gpus.is_empty() => {
            return vec![warning(
                ABOUT,
                "the driver answers and lists no GPU",
                "check that the card is seated, with lspci",
            )];
        }
        Ok(gpus) => gpus,
    };
    let mut found: Vec<Finding> = gpus.iter().map(one_gpu).collect();
    if let Some(EngineFacts { gpu_way: GpuWay::None { why }, .. }) = engine {
        found.push(bad(
            ABOUT,
            format!("the container engine can't give a GPU to a guest: {why}"),
            "install nvidia-container-toolkit, run sudo nvidia-ctk runtime configure --runtime=docker, then sudo systemctl \
             restart docker",
        ));
    }
    found
}

fn one_gpu(gpu: &GpuSample) -> Finding {
    const ABOUT: &str = "GPU";
    let label = gpu.label();
    match &gpu.state {
        GpuState::Ok if gpu.telemetry_latch() => warning(
            ABOUT,
            format!("{label} says 100 % busy although nobody is on it"),
            "nothing to do for lending; sudo nvidia-smi --gpu-reset clears it",
        ),
        GpuState::Ok => {
            let memory = gpu.memory_total.map(|bytes| format!(", {}", Bytes(bytes))).unwrap_or_default();
            good(ABOUT, format!("{label}{memory} answers"))
        }
        GpuState::Lost { .. } => bad(
            ABOUT,
            format!("{label} has fallen off the bus"),
            "sudo reboot; if it comes again, seat the card anew and look at its power: sudo dmesg | grep -i xid",
        ),
        GpuState::Unknown { why, .. } => bad(
            ABOUT,
            format!("{label} does not answer: {why}"),
            "look at sudo dmesg | grep -i nvrm; a reboot usually helps",
        ),
        GpuState::Suspended => good(ABOUT, format!("{label} sleeps to save power")),
    }
}

/// `clear`: what takes little-used things away there, or shows them.
fn disk(about: &str, path: &Path, clear: &str) -> Finding {
    match free_space(path) {
        Some(free) if free >= ROOM => good(about, format!("{} free at {}", Bytes(free), path.display())),
        Some(free) => {
            let what = format!("only {} free at {}", Bytes(free), path.display());
            let fix = format!("make room there: {clear}");
            if free < ROOM_LEAST { bad(about, what, fix) } else { warning(about, what, fix) }
        }
        None => warning(
            about,
            format!("the free space at {} can't be told", path.display()),
            "check it with df -h",
        ),
    }
}

/// Limits that the engine would drop: a guest with such a limit is refused.
fn limits(facts: &EngineFacts) -> Vec<Finding> {
    const ABOUT: &str = "limits";
    if facts.troubles.is_empty() {
        return vec![good(ABOUT, "the container engine keeps every limit")];
    }
    facts
        .troubles
        .iter()
        .map(|trouble| {
            let (what, fix) = (trouble.what.clone(), trouble.fix.clone());
            if trouble.blocks { bad(ABOUT, what, fix) } else { warning(ABOUT, what, fix) }
        })
        .collect()
}

/// On cgroup v1 it may end any process of this machine; whoever does not want that must know.
async fn second_way(patient: &Patient, facts: &EngineFacts) -> Finding {
    let folder = patient.dirs.second_way();
    let sign = move || ask(&folder, &ToSecondWay::End { containers: Vec::new() }, SIGN).is_ok();
    let listens = tokio::task::spawn_blocking(sign).await.unwrap_or(false);
    // Which device it is changes nothing about its rights.
    let rights = cgroups_with(&DeviceId::new(0, [0; 10]), facts).rights();
    second_way_finding(patient.settings.second_way, rights, listens)
}

fn second_way_finding(choice: SecondWayChoice, rights: Rights, listens: bool) -> Finding {
    const ABOUT: &str = "second way";
    let stands = if listens { "stands ready" } else { "starts when GPUs are lent" };
    match (choice, rights) {
        (SecondWayChoice::Off, _) => warning(
            ABOUT,
            "is turned off: a guest whose init does not answer can be ended by the container engine alone",
            "second_way = \"on\" in settings.toml, then restart the agent",
        ),
        (SecondWayChoice::On, Rights::None) => {
            good(ABOUT, format!("{stands} to end guests whose init does not answer; it has no capability"))
        }
        (SecondWayChoice::On, Rights::KillOnHost) => warning(
            ABOUT,
            format!(
                "{stands} to end guests whose init does not answer; with these cgroups its container has CAP_KILL over \
                 all processes of this machine"
            ),
            "boot with cgroup v2 and Linux 5.14 or later (systemd.unified_cgroup_hierarchy=1), where it needs no \
             capability; or set second_way = \"off\" in settings.toml",
        ),
    }
}

fn agent(patient: &Patient) -> Finding {
    const ABOUT: &str = "agent";
    let socket = patient.dirs.socket.display();
    match patient.agent {
        Agent::Runs(_) => good(ABOUT, format!("runs with {}", patient.dirs.data.display())),
        Agent::Absent => bad(ABOUT, format!("no agent answers at {socket}"), "gpunion agent"),
        Agent::Silent => {
            let pid = lock::holder(&patient.dirs).map_or_else(|| "PID".to_owned(), |pid| pid.to_string());
            bad(
                ABOUT,
                format!("the agent at {socket} does not answer: it is stopped or stuck"),
                format!(
                    "kill -CONT {pid}; if it stays silent: kill -9 {pid}, then gpunion agent (guests go on meanwhile)"
                ),
            )
        }
    }
}

async fn keyring(patient: &Patient) -> Finding {
    const ABOUT: &str = "keyring";
    let file = patient.dirs.identity();
    if let Some(locked) = &patient.locked {
        return bad(ABOUT, locked.why.clone(), locked.fix());
    }
    if let Some(member) = &patient.membership {
        return match (member.group.token_in, &member.group.no_keyring) {
            (TokenStore::Keyring, _) => held(&patient.dirs).await,
            (TokenStore::File, None) => {
                good(ABOUT, format!("not used, as set; the token is in {}", file.display()))
            }
            (TokenStore::File, Some(why)) => warning(
                ABOUT,
                format!("{why}; this device's token is in {}, which only this user can read", file.display()),
                "install and unlock gnome-keyring or KWallet, then leave and join again; or set token_store = \"file\"",
            ),
        };
    }
    if patient.settings.token_store == TokenStoreChoice::File {
        return good(ABOUT, "not used, as set");
    }
    match asked(&patient.dirs).await {
        Ok(Ok(())) => good(ABOUT, "answers"),
        Ok(Err(why)) => warning(
            ABOUT,
            format!("{why}; this device's token will be in a file that only this user can read"),
            "install and unlock gnome-keyring or KWallet, or set token_store = \"file\"",
        ),
        Err(error) => warning(ABOUT, error.to_string(), "run it again"),
    }
}

/// An agent that has its token goes on; the next start needs the keyring again.
async fn held(dirs: &Dirs) -> Finding {
    const ABOUT: &str = "keyring";
    match asked(dirs).await {
        Ok(Ok(())) => good(ABOUT, "holds this device's token"),
        Ok(Err(why)) => warning(
            ABOUT,
            format!("{why}; it holds this device's token, and the next start of the agent needs it"),
            "unlock it: log in at the desktop, or gnome-keyring-daemon --replace --unlock",
        ),
        Err(error) => warning(ABOUT, error.to_string(), "run it again"),
    }
}

async fn asked(dirs: &Dirs) -> Result<Result<(), String>, tokio::task::JoinError> {
    let dirs = dirs.clone();
    tokio::task::spawn_blocking(move || keyring_answers(&dirs)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trouble_names_its_fix() {
        let none = rights(Path::new("/nonexistent/docker.sock"));
        assert_eq!(none.grade, Grade::Bad);
        assert!(none.fix.unwrap().contains("install Docker"));
        let absent = gpus(&Err(NoGpus::NoDriver.to_string()), None);
        assert!(absent[0].grade == Grade::Warning && absent[0].fix.is_some());
        let mismatch = gpus(&Err(NoGpus::VersionMismatch.to_string()), None);
        assert!(mismatch[0].grade == Grade::Bad && mismatch[0].fix.as_deref() == Some("sudo reboot"));
    }

    #[test]
    fn what_the_second_way_may_on_cgroup_v1_is_said_plainly() {
        let v1 = second_way_finding(SecondWayChoice::On, Rights::KillOnHost, true);
        assert!(v1.what.contains("CAP_KILL") && v1.fix.unwrap().contains("second_way = \"off\""));
        let v2 = second_way_finding(SecondWayChoice::On, Rights::None, true);
        assert!(v2.grade == Grade::Good && v2.what.contains("no capability"));
        let off = second_way_finding(SecondWayChoice::Off, Rights::None, false);
        assert!(off.grade == Grade::Warning && off.what.contains("turned off"));
    }

    #[test]
    fn old_engines_are_told() {
        assert!(old("19.03.1") && old("20.9") && !old("20.10.24+dfsg1") && !old("28.0"));
    }
}
