//! A relay with a thousand devices: what it costs at rest, how long a submit takes against a bare
//! request with a commit, and whether jobs that ended leave anything behind in memory.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use gpunion_agent_core::config::membership::Membership;
use gpunion_agent_core::relay_link::RelayClient;
use gpunion_protocol::http::Submit;
use gpunion_protocol::ids::JobId;
use gpunion_protocol::job::{Blob, Image, WrappedKey};
use gpunion_protocol::spec::JobSpec;
use gpunion_relay::{Config, launch};
use serde::{Deserialize, Serialize};
use system_tests::interrupt::or_interrupted;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::cpu::{ms, now, resident, share_of_a_core};
use crate::fleet::{self, told};
use crate::on_disk;
use crate::table::{Table, median, quantile};

const DEVICES: usize = 1000;
const CLIENTS: usize = 50;
/// Both sides take turns so often; each client submits so many in a turn.
const TURNS: usize = 6;
const SUBMITS: usize = 20;
/// Jobs that come and go, to see whether memory grows; and as many before, until all is there that
/// is kept of finished jobs.
const MANY: usize = 100_000;
const CPU_ALLOWED: f64 = 0.03;
const MEMORY_ALLOWED: f64 = 30.0;
const MINUTE: Duration = Duration::from_secs(60);

/// What a server process says of itself, on its first line.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Greeting {
    pub(crate) address: String,
    pub(crate) pin: String,
    #[serde(default)]
    pub(crate) link: String,
    #[serde(default)]
    pub(crate) token: String,
}

/// A process of this program; it ends when its input does.
pub(crate) struct Server {
    child: Child,
    _input: ChildStdin,
    pub(crate) greeting: Greeting,
}

impl Server {
    fn start(part: &str, state: &Path) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(part)
            .arg(state)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().context("its input")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("its output")?).read_line(&mut line)?;
        let greeting = serde_json::from_str(&line).with_context(|| format!("{part} said {line:?}"))?;
        Ok(Self { child, _input: input, greeting })
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process with the relay in it.
pub(crate) fn serve(state: &Path) -> Result<()> {
    runtime()?.block_on(async {
        let mut config = Config::new(state);
        // All come from one address, which is a guesser's way.
        config.limits.joins = u32::MAX;
        config.limits.connections = 4 * DEVICES;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let started = launch(config, listener, end_of_input()).await?;
        let link = started.operator_invite.as_ref().context("a fresh relay")?.link().to_owned();
        greet(&Greeting {
            address: started.address.to_string(),
            pin: hex::encode(started.pin),
            link,
            token: String::new(),
        })?;
        started.stopped().await?;
        Ok(())
    })
}

pub(crate) fn greet(greeting: &Greeting) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{}", serde_json::to_string(greeting)?)?;
    out.flush().context("greeting")
}

pub(crate) async fn end_of_input() {
    let read = || drop(std::io::stdin().read_to_end(&mut Vec::new()));
    drop(tokio::task::spawn_blocking(read).await);
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("a runtime")
}

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    let disk = on_disk()?;
    let relay = Server::start("relay-process", &disk.dir().join("relay"))?;
    // Before anybody joins: what joining leaves free in the heap would hide what sessions take.
    let before = resident(relay.pid())?.all;
    let runtime = runtime()?;
    let all = runtime.block_on(or_interrupted(fleet::join_all(&relay.greeting.link, DEVICES)))?;
    let connected = CancellationToken::new();
    let _over = connected.clone().drop_guard();
    let sessions = runtime.block_on(or_interrupted(fleet::connect(&all, &connected)))?;
    let each = resident(relay.pid())?.all.saturating_sub(before) as f64 / DEVICES as f64;
    table.told("memory_a_device", each, "KiB", "its record and a session that is up");
    if table.wants("relay_idle") {
        let cpu = share_of_a_core(relay.pid(), MINUTE)?;
        fleet::all_are_up(&sessions)?;
        let against = "of a core; 1,000 devices, a minute";
        table.aimed("relay_idle_cpu", cpu / CPU_ALLOWED, "of 3 %", against, 1.0);
        table.aimed("relay_idle_memory", each / MEMORY_ALLOWED, "of 30 KiB", "a device", 1.0);
        table.told("relay_cpu_idle", cpu * 100.0, "% of a core", "1,000 devices");
    }
    if table.wants("relay_submit") {
        let rival = Server::start("rival-process", &disk.dir().join("rival"))?;
        let members: Vec<Arc<Membership>> = all.iter().skip(1).take(CLIENTS).cloned().collect();
        runtime.block_on(or_interrupted(submits(table, &members, &rival)))?;
        fleet::all_are_up(&sessions)?;
        runtime.block_on(or_interrupted(many(table, &members, relay.pid())))?;
    }
    Ok(())
}

async fn submits(table: &mut Table, members: &[Arc<Membership>], rival: &Server) -> Result<()> {
    let mut pin = [0; 32];
    hex::decode_to_slice(&rival.greeting.pin, &mut pin)?;
    let token = zeroize::Zeroizing::new(rival.greeting.token.clone());
    let bare = |_: &Arc<Membership>| {
        RelayClient::new(vec![rival.greeting.address.clone()], Some(pin), Some(token.clone()))
    };
    let bare = members.iter().map(bare).collect::<Result<Vec<_>>>()?;
    let ours: Vec<RelayClient> = members.iter().map(|member| member.client.clone()).collect();
    let (mut by_us, mut by_rival) = (Vec::new(), Vec::new());
    for turn in 0..=TURNS {
        let (us, them) = (a_turn(&ours, members, turn).await?, a_turn(&bare, members, turn).await?);
        // The first turn opens the connections.
        if turn > 0 {
            by_us.extend(us);
            by_rival.extend(them);
        }
    }
    let against = format!("bare TLS request and commit, {:.1} ms", median(&by_rival));
    table.aimed("relay_submit_p50", median(&by_us) / median(&by_rival), "x", &against, 3.0);
    table.told("submit_p50", median(&by_us), "ms", "50 clients, 1,000 devices connected");
    table.told("submit_p99", quantile(&by_us, 0.99), "ms", "50 clients, 1,000 devices connected");
    Ok(())
}

/// All clients at once, each one after the other; milliseconds of each submit.
async fn a_turn(clients: &[RelayClient], members: &[Arc<Membership>], turn: usize) -> Result<Vec<f64>> {
    let mut running = tokio::task::JoinSet::new();
    for (n, (client, member)) in clients.iter().zip(members).enumerate() {
        let (client, member) = (client.clone(), Arc::clone(member));
        running.spawn(async move {
            let mut took = Vec::new();
            for k in 0..SUBMITS {
                let submit = job(&member, (turn * SUBMITS + k) as u64, n);
                let began = now();
                client.submit(&submit).await.map_err(told)?;
                took.push(ms(began.elapsed()));
            }
            anyhow::Ok(took)
        });
    }
    let mut all = Vec::new();
    while let Some(done) = running.join_next().await {
        all.extend(done??);
    }
    Ok(all)
}

/// Jobs that are submitted and cancelled again: the second time they must cost no memory.
async fn many(table: &mut Table, members: &[Arc<Membership>], pid: i32) -> Result<()> {
    let each = MANY / members.len();
    let mut seen = Vec::new();
    for part in 1..=2_usize {
        let mut running = tokio::task::JoinSet::new();
        for (n, member) in members.iter().enumerate() {
            let member = Arc::clone(member);
            running.spawn(async move {
                for k in 0..each {
                    let submit = job(&member, (1_000_000 * part + k) as u64, n);
                    member.client.submit(&submit).await.map_err(told)?;
                    member.client.cancel(&submit.job).await.map_err(told)?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(done) = running.join_next().await {
            done??;
        }
        seen.push(resident(pid)?.all as f64 / 1024.0);
    }
    let (first, second) = (seen[0], seen[1]);
    // Noise of an allocator is allowed, 20 bytes a job are not.
    table.aimed("growth_over_jobs", second - first, "MiB", "over 100,000 jobs, after as many", 2.0);
    table.told("relay_resident", second, "MiB", "after 200,000 jobs, 1,000 devices");
    Ok(())
}

fn job(member: &Membership, number: u64, client: usize) -> Submit {
    let reference = "python:3.12-slim".to_owned();
    let mut random = [0; 10];
    random[..8].copy_from_slice(&number.to_be_bytes());
    random[8..].copy_from_slice(&(client as u16).to_be_bytes());
    Submit {
        job: JobId::new(1_764_000_000_000, random),
        spec: JobSpec { name: format!("job {number}"), ..JobSpec::of_image(&reference) },
        image: Image::Registry { reference, digest: None },
        input: None,
        data: Vec::new(),
        keys: vec![WrappedKey { device: member.group.device.clone(), wrapped: Blob(vec![4; 80]) }],
        sealed: Blob(vec![1, 2, 3]),
    }
}
