//! A relay and the consumer's side of an agent in this process, for tests of what crosses between
//! them. The provider half is played by the test.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use gpunion_agent_core::config::settings::TokenStoreChoice;
use gpunion_agent_core::config::{Dirs, Settings};
use gpunion_agent_core::consumer::Consumer;
use gpunion_agent_core::consumer::images::NoEngine;
use gpunion_agent_core::local_api::{self, Doors};
use gpunion_agent_core::provider::call::OwnerCall;
use gpunion_agent_core::relay_link::pairing::Pairing;
use gpunion_agent_core::relay_link::{SessionHandle, session};
use gpunion_protocol::local::{
    AgentStatus, Caps, EngineStatus, JoinRequest, ShareStatus, Snapshot, Wiped, Wish,
};
use gpunion_protocol::receipt::{How, Receipt};
use gpunion_protocol::rules::RulesStatus;
use gpunion_protocol::session::Terms;
use gpunion_protocol::time::{Millis, WallMs};
use gpunion_protocol::units::Bytes;
use gpunion_relay::{Config, Started, launch};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Nothing that a test waits for takes longer.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    pub(crate) link: Option<String>,
    started: Started,
    stop: CancellationToken,
}

impl Relay {
    pub(crate) async fn start(state: &Path) -> Self {
        Self::start_at(state, "127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn start_at(state: &Path, at: SocketAddr) -> Self {
        let mut config = Config::new(state);
        config.group = "lab".to_owned();
        config.terms =
            Terms { lease: Millis(1_000), renew: Millis(250), margin: Millis(250), heartbeat: Millis(500) };
        let listener = TcpListener::bind(at).await.unwrap();
        let stop = CancellationToken::new();
        let started = launch(config, listener, stop.clone().cancelled_owned()).await.unwrap();
        let link = started.operator_invite.as_ref().map(|invite| invite.link().to_owned());
        Self { address: started.address, link, started, stop }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.started.stopped().await.unwrap();
    }
}

/// An agent without a provider half.
pub(crate) struct Half {
    pub(crate) dirs: Dirs,
    pub(crate) pairing: Arc<Pairing>,
    pub(crate) consumer: Consumer,
    pub(crate) session: SessionHandle,
    pub(crate) picture: watch::Sender<Arc<Snapshot>>,
    pub(crate) stop: CancellationToken,
}

impl Half {
    pub(crate) fn start(data: &Path) -> Self {
        let dirs = Dirs { data: data.to_owned(), socket: data.join("run/agent.sock") };
        dirs.make_data().unwrap();
        let settings = Settings {
            token_store: TokenStoreChoice::File,
            device_name: Some("laptop".to_owned()),
            engine: Some(data.join("no-engine.sock")),
            ..Settings::default()
        };
        let pairing = Arc::new(Pairing::load(dirs.clone(), settings.clone()).unwrap());
        let stop = CancellationToken::new();
        let session = session::open(pairing.follow(), "test".to_owned(), stop.clone());
        let consumer = Consumer::new(dirs.clone(), Arc::clone(&pairing), Arc::new(NoEngine));
        let (owner, calls) = mpsc::channel(8);
        tokio::spawn(answer(calls));
        let (picture, snapshot) = watch::channel(Arc::new(first_picture(&dirs)));
        let doors = Doors {
            dirs: dirs.clone(),
            settings: settings.clone(),
            snapshot,
            owner,
            consumer: consumer.clone(),
            link: session.status.clone(),
        };
        let listener = local_api::bind(&dirs, &settings).unwrap();
        tokio::spawn(local_api::serve(listener, doors, stop.clone()));
        Self { dirs, pairing, consumer, session, picture, stop }
    }

    pub(crate) async fn join(&self, link: &str) {
        let request =
            JoinRequest { link: link.to_owned(), member_name: Some("Ada".to_owned()), device_name: None };
        self.pairing.join(request).await.unwrap();
    }

    /// Runs the real program against this agent; without blocking the test's own tasks.
    pub(crate) async fn gpunion(&self, args: &[&str]) -> Ran {
        gpunion(&self.dirs.data, args, &[]).await
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) async fn gpunion(data: &Path, args: &[&str], env: &[(&str, &str)]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpunion"));
    command.args(args).env_clear().env("HOME", data).env("GPUNION_DATA", data).envs(env.iter().copied());
    command.stdin(std::process::Stdio::null());
    let output: Output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    Ran {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

async fn answer(mut calls: mpsc::Receiver<OwnerCall>) {
    while let Some(call) = calls.recv().await {
        match call {
            OwnerCall::Share(_, tell) => drop(tell.send(Ok(share()))),
            OwnerCall::Pause(_, tell) => drop(tell.send(Ok(share()))),
            OwnerCall::Rules(_, _, tell) => {
                let nothing = RulesStatus { rules: Vec::new(), verdicts: Vec::new() };
                drop(tell.send(Ok(nothing)));
            }
            OwnerCall::Wipe(tell) => drop(tell.send(Ok(Wiped::default()))),
            OwnerCall::Reclaim(_, answers) => {
                let _ = answers.taken.send(());
                let _ = answers.receipt.send(Ok(receipt()));
            }
            OwnerCall::History(tell) => drop(tell.send(Vec::new())),
        }
    }
}

pub(crate) fn receipt() -> Receipt {
    Receipt {
        at: WallMs(0),
        gpus: Vec::new(),
        guests: Vec::new(),
        stopped_ms: Some(0),
        ended_ms: Some(0),
        verified_ms: Some(1),
        verified: true,
        how: How::ProcessesOnly,
        troubles: Vec::new(),
        wish_saved: true,
    }
}

fn share() -> ShareStatus {
    ShareStatus {
        wish: Wish::NotSharing,
        gpus: BTreeMap::new(),
        caps: Caps { cpus: 1, memory: Bytes(1 << 30), disk: Bytes(1 << 30) },
        open: false,
        why: "nothing is lent".to_owned(),
        egress: Default::default(),
        grace: Default::default(),
        salvage: true,
        leaving: 0,
        rules: Vec::new(),
    }
}

fn first_picture(dirs: &Dirs) -> Snapshot {
    Snapshot {
        version: 1,
        agent: AgentStatus {
            version: "test".to_owned(),
            pid: std::process::id(),
            device_name: "laptop".to_owned(),
            data: dirs.data.clone(),
            token_in: "file".to_owned(),
        },
        group: None,
        share: share(),
        engine: EngineStatus::Unknown { why: "there is none".to_owned() },
        gpus_absent: Some("there is no GPU here".to_owned()),
        gpus: Vec::new(),
        guests: Vec::new(),
        last_receipt: None,
    }
}

/// Bytes that compress to nothing less, the same for the same seed.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Every path below a folder with what it is.
pub(crate) fn listing(root: &Path) -> BTreeMap<PathBuf, String> {
    use std::os::unix::fs::PermissionsExt as _;
    let mut found = BTreeMap::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = std::fs::symlink_metadata(&path).unwrap();
            let what = if meta.is_symlink() {
                format!("link to {}", std::fs::read_link(&path).unwrap().display())
            } else if meta.is_dir() {
                open.push(path.clone());
                format!("folder {:o}", meta.permissions().mode() & 0o7777)
            } else {
                format!("file {:o} {:?}", meta.permissions().mode() & 0o7777, std::fs::read(&path).unwrap())
            };
            found.insert(path.strip_prefix(root).unwrap().to_owned(), what);
        }
    }
    found
}
