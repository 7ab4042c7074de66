//! Puts the parts together, and takes them apart in order and in bounded time.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use gpunion_protocol::http::{NewInvite, Role};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::broker::{self, By};
use crate::config::{Config, Limits};
use crate::driver::{Counts, Driver, Handle, Outside};
use crate::error::Error;
use crate::feed::Feed;
use crate::http::{App, Parts, Rates, router};
use crate::identity::Identity;
use crate::invites::{self, Link};
use crate::lock::Lock;
use crate::logs::Logs;
use crate::packs::{Graces, Packs};
use crate::store::{self, Store, Writer};
use crate::sweeping::Sweeping;
use crate::{admin, clock, server};

/// What is under way at a stop gets so long to end.
const FAREWELL: Duration = Duration::from_secs(5);
/// The invite that a relay without members makes for its first operator.
const FIRST_INVITE_S: u64 = 24 * 3600;

/// A relay that answers.
#[derive(Debug)]
pub struct Started {
    pub address: SocketAddr,
    /// SHA-256 of the relay's SubjectPublicKeyInfo.
    pub pin: [u8; 32],
    /// While nobody has joined: the link for the first operator. To be shown to whoever started
    /// the relay, and nowhere else.
    pub operator_invite: Option<OperatorInvite>,
    task: JoinHandle<Result<(), Error>>,
}

/// A link that lets its holder run the group; not in any debug output.
pub struct OperatorInvite(String);

impl OperatorInvite {
    pub fn link(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for OperatorInvite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OperatorInvite")
    }
}

impl Started {
    /// Returns when the relay has stopped, on request or because it could not go on.
    pub async fn stopped(self) -> Result<(), Error> {
        self.task.await.map_err(|e| Error::Stopped(e.to_string()))?
    }
}

/// Starts a relay on a listener that is bound already. It answers when this returns, and stops
/// when `shutdown` is ready.
pub async fn launch(
    config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<Started, Error> {
    let bad = |reason| Error::BadSettings { path: config.state_dir.join(crate::config::FILE_NAME), reason };
    config.check().map_err(bad)?;
    let lock = Lock::take(&config.state_dir)?;
    let address = listener.local_addr().map_err(Error::io("read the address of", "the listener"))?;
    let identity = Identity::open(&config.state_dir)?;
    let addresses = if config.addresses.is_empty() { reachable(address) } else { config.addresses.clone() };
    let tls = identity.server_config(&addresses)?;
    let link = Link { addresses, pin: config.pin.then(|| identity.pin()), group: config.group.clone() };

    let core = Core::start(&config).await?;
    let operator_invite = first_invite(&core.handle, &link).await?;
    let door = admin::Door {
        handle: core.handle.clone(),
        link: link.clone(),
        writer: core.writer.clone(),
        packs: Arc::clone(&core.packs),
        state_dir: config.state_dir.clone(),
    };
    let admin_listener = admin::bind(&config.state_dir)?;
    let (stopping, tasks) = (CancellationToken::new(), TaskTracker::new());
    let limits = config.limits;
    tasks.spawn(core.sweeping(&limits).run(stopping.clone()));
    let app = core.app(config, link, stopping.clone());
    let (until, inside) = (stopping.clone(), tasks.clone());
    let serving = async move { server::run(listener, tls, router(app), &limits, until, inside).await };
    let serving = tokio::spawn(serving);
    tasks.spawn(admin::run(admin_listener, door, stopping.clone()));
    tracing::info!(%address, "the relay answers");

    let task = tokio::spawn(async move {
        let ended = core.until(shutdown, serving, &stopping, &tasks).await;
        drop(lock);
        ended
    });
    Ok(Started { address, pin: identity.pin(), operator_invite, task })
}

/// What stands in links when the operator named no address: a listener on all addresses has none
/// that a device could dial, so the one that leads out of this machine is taken.
fn reachable(address: SocketAddr) -> Vec<String> {
    if !address.ip().is_unspecified() {
        return vec![address.to_string()];
    }
    let local = SocketAddr::from(([127, 0, 0, 1], address.port()));
    // Connecting a datagram socket sends nothing; it only asks the routing table.
    let outward = std::net::UdpSocket::bind("0.0.0.0:0")
        .and_then(|socket| socket.connect("192.0.2.1:9").map(|()| socket))
        .and_then(|socket| socket.local_addr())
        .map(|found| SocketAddr::new(found.ip(), address.port()));
    let outward = outward.ok().filter(|found| !found.ip().is_unspecified() && *found != local);
    outward.into_iter().chain([local]).map(|found| found.to_string()).collect()
}

/// The driver and what it works with.
struct Core {
    handle: Handle,
    writer: Writer,
    writing: std::thread::JoinHandle<()>,
    driving: JoinHandle<()>,
    driver_stop: CancellationToken,
    feed: Feed,
    logs: Logs,
    packs: Arc<Packs>,
    counts: Arc<Counts>,
}

impl Core {
    async fn start(config: &Config) -> Result<Self, Error> {
        let dir = &config.state_dir;
        let mut store = Store::open(&dir.join(store::FILE_NAME))?;
        // Saved before anything is placed: a token of an earlier run can never come again.
        let epoch = store.next_epoch(clock::now().wall)?;
        let packs = Arc::new(Packs::open(dir, config.limits.keep_free)?);
        let limits = &config.limits;
        let logs = Logs::open(dir, limits.log_bytes, limits.keep_free);
        let logs = logs.map_err(Error::io("open the logs in", dir))?;
        let feed = Feed::new(epoch, config.limits.events);
        let counts = Arc::new(Counts::default());
        let (writer, writing) = Writer::start(store)?;
        let (handle, inbox) = Handle::new();
        let outside = Outside {
            writer: writer.clone(),
            feed: feed.clone(),
            logs: logs.clone(),
            counts: Arc::clone(&counts),
        };
        let rules = broker::Config {
            group: config.group.clone(),
            // Only what the operator named: an address that was guessed must replace none.
            addresses: config.addresses.clone(),
            terms: config.terms,
            finished_max: limits.finished,
            ..broker::Config::default()
        };
        let driver_stop = CancellationToken::new();
        let driver = Driver::start(rules, epoch, outside, inbox).await?;
        let driving = tokio::spawn(driver.run(driver_stop.clone()));
        Ok(Self { handle, writer, writing, driving, driver_stop, feed, logs, packs, counts })
    }

    fn sweeping(&self, limits: &Limits) -> Sweeping {
        let graces = Graces { long: limits.grace, short: limits.grace_short };
        let (handle, logs, packs) = (self.handle.clone(), self.logs.clone(), Arc::clone(&self.packs));
        Sweeping::new(handle, logs, packs, graces, limits.sweep.as_std())
    }

    fn app(&self, config: Config, link: Link, stopping: CancellationToken) -> App {
        App::new(Parts {
            handle: self.handle.clone(),
            feed: self.feed.clone(),
            logs: self.logs.clone(),
            packs: Arc::clone(&self.packs),
            counts: Arc::clone(&self.counts),
            link,
            uploads: Semaphore::new(config.limits.uploads.max(1)),
            joins: Rates::new(config.limits.joins),
            config,
            stopping,
        })
    }

    /// Waits for the end, then: no new connections, those there end, the broker, the database.
    async fn until(
        mut self,
        shutdown: impl Future<Output = ()> + Send,
        serving: JoinHandle<()>,
        stopping: &CancellationToken,
        tasks: &TaskTracker,
    ) -> Result<(), Error> {
        let ended = tokio::select! {
            () = shutdown => Ok(()),
            ended = &mut self.driving => Err(Error::Stopped(match ended {
                Ok(()) => "its driver ended".to_owned(),
                Err(e) => e.to_string(),
            })),
        };
        tracing::info!("the relay stops");
        stopping.cancel();
        tasks.close();
        if tokio::time::timeout(FAREWELL, tasks.wait()).await.is_err() {
            tracing::warn!("some connections did not end in time and are cut");
        }
        // It ends at once after `stopping`; the accept loop holds no state.
        let _ = serving.await;
        self.driver_stop.cancel();
        if ended.is_ok() {
            let _ = tokio::time::timeout(FAREWELL, self.driving).await;
        }
        drop(self.writer);
        let writing = self.writing;
        let closed = tokio::task::spawn_blocking(move || drop(writing.join()));
        // Connections that were cut may still hold the writer for an instant.
        let _ = tokio::time::timeout(FAREWELL, closed).await;
        ended
    }
}

/// While there are no members, somebody must be able to become the first operator.
async fn first_invite(handle: &Handle, link: &Link) -> Result<Option<OperatorInvite>, Error> {
    let stopped = |e: gpunion_protocol::problem::Problem| Error::Stopped(e.to_string());
    if !handle.ask(|broker| broker.is_empty()).await.map_err(stopped)? {
        return Ok(None);
    }
    let wanted = NewInvite { role: Role::Operator, member: None, valid_s: FIRST_INVITE_S };
    let made = invites::make(handle, link, By::Relay, wanted).await.map_err(stopped)?;
    Ok(Some(OperatorInvite(made.link)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_name_an_address_that_can_be_dialled() {
        assert_eq!(reachable(SocketAddr::from(([10, 1, 2, 3], 7443))), ["10.1.2.3:7443"]);
        let all = reachable(SocketAddr::from(([0, 0, 0, 0], 7443)));
        assert_eq!(all.last().map(String::as_str), Some("127.0.0.1:7443"));
        assert!(all.iter().all(|address| !address.starts_with("0.0.0.0")));
    }
}
