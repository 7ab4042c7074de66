//! The whole agent: wires the provider half, the consumer half, the link to the relay and the
//! local API, and runs them until it is told to stop. Guests are left as they are.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use futures_util::StreamExt as _;
use gpunion_protocol::ids::DeviceId;
use gpunion_protocol::local::Caps;
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::units::Bytes;
use jiff::tz::TimeZone;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::config::lock::AgentLock;
use crate::config::settings::SecondWayChoice;
use crate::config::{Dirs, Locked, Membership, Settings, clock, files, power_supply};
use crate::consumer::Consumer;
use crate::consumer::images::{Answer, Archive, ImageStore, LocalImage};
use crate::container::{Engine, EngineError, EngineFacts, free_space};
use crate::driver::Stop;
use crate::driver::operations::{Fixed, Operations};
use crate::driver::store::Store;
use crate::driver::view::{self, Around};
use crate::driver::{self, EVENTS, Parts};
use crate::egress::Places;
use crate::gpu::Gpus;
use crate::local_api::{self, Doors};
use crate::provider::Provider;
use crate::provider::event::Event;
use crate::relay_link::pairing::Pairing;
use crate::relay_link::session::{self, LinkStatus};

/// Calls of owners that wait.
const CALLS: usize = 64;
/// How often it is looked whether the machine runs on its battery.
const BATTERY: std::time::Duration = std::time::Duration::from_secs(5);

#[derive(Debug, Clone)]
pub struct Options {
    pub dirs: Dirs,
    pub settings: Settings,
}

/// Runs until it is told to stop; an error is one that the agent can't begin with.
pub async fn run(options: Options, stop: Stop) -> anyhow::Result<()> {
    let shutdown = stop.now.clone();
    let Options { dirs, settings } = options;
    dirs.make_data()?;
    let _lock = AgentLock::take(&dirs, &settings.device())?;
    let listener = local_api::socket::bind(&dirs, &settings)?;
    let store = Store::open(&dirs.data.join("agent.sqlite"))?;
    let caps = caps(&settings, &dirs.data);
    let rule = settings.egress.clone().unwrap_or_default();
    let provider = Provider::load(store.load()?, caps, clock::now()).with_egress(rule.clone());
    let zone = provider.rules().zone.as_deref().and_then(|name| TimeZone::get(name).ok());
    let provider = provider.with_zone(zone);

    let pairing = Arc::new(Pairing::load(dirs.clone(), settings.clone())?);
    let version = format!("gpunion {}", env!("CARGO_PKG_VERSION"));
    tokio::spawn(unlock(Arc::clone(&pairing), shutdown.clone()));
    tokio::spawn(follow_addresses(Arc::clone(&pairing), shutdown.clone()));
    let session = session::open(pairing.follow(), version, shutdown.clone());
    let engine = Engine::connect(&settings.engine_socket(), &lender(&dirs)?);
    let library = settings.nvml_library.clone();
    let gpus = tokio::task::spawn_blocking(move || Gpus::open(library.as_deref())).await?;
    let gpus = Arc::new(gpus);

    let inputs = dirs.data.join("inputs");
    for folder in [&inputs, &dirs.guests()] {
        std::fs::create_dir_all(folder).with_context(|| format!("{} can't be made", folder.display()))?;
    }
    let (events, heard) = mpsc::channel(EVENTS);
    let (owner, calls) = mpsc::channel(CALLS);
    tokio::spawn(watch_battery(events.clone(), shutdown.clone()));
    let fixed = Fixed {
        engine: engine.clone(),
        guests: dirs.guests(),
        init: beside_us("gpunion-init")?,
        helper: beside_us("gpunion-helper")?,
        standin: settings.standin.clone(),
        data: inputs,
        egress: rule,
        places: Places::default(),
        second_way: dirs.second_way(),
        second_way_allowed: settings.second_way == SecondWayChoice::On,
    };
    let operations =
        Operations::new(fixed, pairing.follow(), Arc::clone(&gpus), events, session.logs.clone());
    let link = session.status.clone();
    let sources = Sources {
        membership: pairing.follow(),
        locked: pairing.locked(),
        link: link.clone(),
        facts: operations.facts(),
    };
    let around = around(&dirs, &settings, sources, &shutdown);
    let first = view::snapshot(&provider, &around.borrow().clone(), clock::now());
    // Seen by nobody: the driver replaces it before the API serves.
    let (publish, snapshot) = watch::channel(Arc::new(first));

    let doors = Doors {
        consumer: Consumer::new(dirs.clone(), pairing, Arc::new(EngineImages(engine))),
        dirs: dirs.clone(),
        settings,
        snapshot,
        owner,
        link,
    };
    let parts = Parts {
        provider,
        operations,
        session,
        gpus,
        events: heard,
        calls,
        around,
        snapshot: publish,
        reclaimed: dirs.reclaimed(),
    };
    let driving = tokio::spawn(driver::run(driver::begin(parts, store), stop));
    tracing::info!(data = %dirs.data.display(), socket = %dirs.socket.display(), "the agent is ready");
    let served = local_api::serve(listener, doors, shutdown.clone()).await;
    // The API ends on `shutdown`, or because it can't go on; the agent has no use without it.
    shutdown.cancel();
    driving.await?;
    served.context("the local API broke off")
}

/// Tells when the machine is unplugged or plugged in. The kernel may be slow to ask a battery, which
/// holds up nobody.
async fn watch_battery(events: mpsc::Sender<Event>, shutdown: CancellationToken) {
    let mut told = None;
    let mut looks = tokio::time::interval(BATTERY);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(looks.tick()).await.is_some() {
        let look = tokio::task::spawn_blocking(|| power_supply::on_battery(Path::new(power_supply::ROOT)));
        let Ok(discharging) = look.await else { return };
        if discharging != told && events.send(Event::Battery { discharging }).await.is_err() {
            return;
        }
        told = discharging;
    }
}

/// A keyring that was locked at the start may open later.
async fn unlock(pairing: Arc<Pairing>, shutdown: CancellationToken) {
    shutdown.run_until_cancelled(pairing.unlock()).await;
}

/// The relay may move.
async fn follow_addresses(pairing: Arc<Pairing>, shutdown: CancellationToken) {
    shutdown.run_until_cancelled(pairing.follow_addresses()).await;
}

/// What changes beside the machine.
struct Sources {
    membership: watch::Receiver<Option<Arc<Membership>>>,
    locked: watch::Receiver<Option<Arc<Locked>>>,
    link: watch::Receiver<LinkStatus>,
    facts: watch::Receiver<Option<EngineFacts>>,
}

impl Sources {
    fn seen(&mut self, device_name: String, data: PathBuf) -> Around {
        Around {
            device_name,
            data,
            membership: self.membership.borrow_and_update().clone(),
            locked: self.locked.borrow_and_update().clone(),
            link: self.link.borrow_and_update().clone(),
            facts: self.facts.borrow_and_update().clone(),
        }
    }
}

/// What the picture needs beside the machine, as one value that changes.
fn around(
    dirs: &Dirs,
    settings: &Settings,
    mut sources: Sources,
    shutdown: &CancellationToken,
) -> watch::Receiver<Around> {
    let first = sources.seen(settings.device(), dirs.data.clone());
    let (tell, around) = watch::channel(first);
    let shutdown = shutdown.clone();
    tokio::spawn(shutdown.run_until_cancelled_owned(async move {
        loop {
            let changed = tokio::select! {
                changed = sources.membership.changed() => changed,
                changed = sources.locked.changed() => changed,
                changed = sources.link.changed() => changed,
                changed = sources.facts.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
            let (name, data) = (tell.borrow().device_name.clone(), tell.borrow().data.clone());
            let new = sources.seen(name, data);
            tell.send_if_modified(|old| {
                let changed = !same(old, &new);
                *old = new;
                changed
            });
        }
    }));
    around
}

fn same(old: &Around, new: &Around) -> bool {
    let group = |around: &Around| around.membership.as_ref().map(|m| m.group.clone());
    old.link == new.link && old.facts == new.facts && old.locked == new.locked && group(old) == group(new)
}

/// What the owner lends when nothing is said: a core and half of the memory stay theirs.
fn caps(settings: &Settings, data: &Path) -> Caps {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let memory = memory_of_machine().unwrap_or(8 << 30);
    let disk = free_space(data).unwrap_or(0);
    Caps {
        cpus: settings.caps.cpus.unwrap_or_else(|| cores.saturating_sub(1).max(1)),
        memory: settings.caps.memory.unwrap_or(Bytes(memory / 2)),
        disk: settings.caps.disk.unwrap_or(Bytes(disk / 2)),
    }
}

/// Bytes of this machine's memory.
fn memory_of_machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// By what this installation knows its own containers: it outlives leaving a group and joining
/// another, so that nothing is left behind that no label claims.
fn lender(dirs: &Dirs) -> anyhow::Result<DeviceId> {
    let path = dirs.data.join("lender.json");
    if let Some(id) = files::read_json(&path)? {
        return Ok(id);
    }
    let mut random = [0; 10];
    getrandom::fill(&mut random)?;
    let id = DeviceId::new(u64::try_from(clock::wall().0).unwrap_or(0), random);
    files::write_json(&path, &id)?;
    Ok(id)
}

/// Our static programs lie beside this one, or where packages put such.
fn beside_us(program: &str) -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("where this program lies is not known")?;
    let folder = own.parent().context("this program lies nowhere")?;
    let places = [folder.join(program), folder.join("../libexec/gpunion").join(program)];
    let found = places.iter().find(|place| place.is_file());
    found
        .cloned()
        .with_context(|| format!("{program} is missing beside {}; install gpunion whole", own.display()))
}

/// The member's own engine, as a source of images.
struct EngineImages(Engine);

fn problem(error: EngineError) -> Problem {
    let code = if error.is_away() { Code::EngineAway } else { Code::BadRequest };
    Problem::new(code, error.to_string())
}

impl ImageStore for EngineImages {
    fn local<'a>(&'a self, reference: &'a str) -> Answer<'a, Option<LocalImage>> {
        Box::pin(async move {
            let found = self.0.image(reference).await.map_err(problem)?;
            Ok(found.map(|image| LocalImage {
                digest: image
                    .repo_digests
                    .first()
                    .and_then(|known| known.split_once('@'))
                    .map(|(_, digest)| digest.to_owned()),
                id: image.id,
                bytes: Some(image.size),
            }))
        })
    }

    fn export<'a>(&'a self, reference: &'a str) -> Answer<'a, Archive> {
        Box::pin(async move {
            let archive = self.0.export(reference).await.map_err(problem)?;
            Ok(archive.map(|piece| piece.map_err(problem)).boxed())
        })
    }
}
