//! Egress: the one way out of a guest, which has no network. Init carries connections from the
//! guest's loopback to a socket in a read-only mount; here they are judged by name and address,
//! counted, and carried on. One proxy a guest.
//!
//! It must never resolve a name twice for one request, never let anything through that is not
//! plainly public, never outlive the guest's lease, and never take more than its share of the
//! agent: connections, buffers, books and idle times are bounded. Decisions are pure (`decide`,
//! `address`, `ledger`); the rest is I/O.

mod address;
mod decide;
mod gate;
mod ledger;
mod metered;
mod outside;
mod proxy;

#[cfg(test)]
mod tests;

use std::io;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gpunion_protocol::egress::{Contacts, EgressName, EgressRule};
use gpunion_protocol::guest::EGRESS_SOCKET;
use gpunion_protocol::ids::AttemptRef;
use gpunion_protocol::time::BootMs;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::channel::{ControlDir, Peer};
use crate::config::clock;
use crate::provider::event::Event;
use decide::Policy;
use gate::Gate;
use ledger::Ledger;
use outside::Host;
use proxy::Proxy;

/// Connections of one guest, and of all guests: each takes two descriptors of the agent's.
const OF_A_GUEST: usize = 32;
const OF_ALL: usize = 128;
/// How often it is looked whether the lease is over, and what is new is told.
const LOOK: Duration = Duration::from_millis(500);
/// Strangers shown out in one go, and how long the door rests after them.
const STRANGERS: u32 = 32;
const REST: Duration = Duration::from_millis(10);

/// Room for the connections of all guests of this agent.
#[derive(Debug, Clone)]
pub struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(OF_ALL)))
    }
}

/// The proxy of one guest. Dropping it ends it and all of its connections.
#[derive(Debug)]
pub struct Egress {
    proxy: Arc<Proxy<Host>>,
    /// What the machine was told last.
    told: Arc<Mutex<Contacts>>,
    stop: CancellationToken,
}

impl Drop for Egress {
    fn drop(&mut self) {
        self.proxy.gate.shut();
        self.stop.cancel();
    }
}

impl Egress {
    /// Listens in the folder, which the guest sees as `/run/gpunion-egress`; shut until a deadline
    /// is told. `contacts`: what is on the books already.
    pub fn open(
        folder: &Path,
        attempt: &AttemptRef,
        peer: Peer,
        lists: (Vec<EgressName>, EgressRule),
        contacts: Contacts,
        places: Places,
        events: mpsc::Sender<Event>,
    ) -> io::Result<Self> {
        let listener = ControlDir::at(folder.to_owned())?.bind_as(EGRESS_SOCKET)?;
        let listener = from_std(listener)?;
        let (asked, rule) = lists;
        let proxy = Arc::new(Proxy {
            policy: Policy { asked, rule },
            outside: Host,
            gate: Arc::new(Gate::default()),
            ledger: Mutex::new(Ledger::from(&contacts)),
        });
        let egress = Self { proxy, told: Arc::new(Mutex::new(contacts)), stop: CancellationToken::new() };
        let listening = listen(listener, peer, Arc::clone(&egress.proxy), places);
        tokio::spawn(egress.stop.clone().run_until_cancelled_owned(listening));
        let telling = tell(Arc::clone(&egress.proxy), Arc::clone(&egress.told), attempt.clone(), events);
        tokio::spawn(egress.stop.clone().run_until_cancelled_owned(telling));
        Ok(egress)
    }

    /// The guest's lease: what is connected is cut when it is over.
    pub fn open_until(&self, at: BootMs) {
        self.proxy.gate.open_until(at);
    }

    pub fn until(&self) -> BootMs {
        self.proxy.gate.until()
    }

    /// The guest must end: nothing goes in or out any more.
    pub fn shut(&self) {
        self.proxy.gate.shut();
    }

    /// What was contacted, when the machine was not told of it yet.
    pub fn news(&self) -> Option<Contacts> {
        news(&self.proxy, &self.told)
    }
}

fn from_std(listener: StdListener) -> io::Result<UnixListener> {
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

fn news(proxy: &Proxy<Host>, told: &Mutex<Contacts>) -> Option<Contacts> {
    let contacts = proxy.ledger().contacts(clock::wall());
    let mut told = told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if *told == contacts {
        return None;
    }
    told.clone_from(&contacts);
    Some(contacts)
}

/// Looks at the gate, and tells what is new now and then.
async fn tell(
    proxy: Arc<Proxy<Host>>,
    told: Arc<Mutex<Contacts>>,
    attempt: AttemptRef,
    events: mpsc::Sender<Event>,
) {
    let mut tick = tokio::time::interval(LOOK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        proxy.gate.look();
        // A full queue is the machine's own trouble: only when there is room is anything told.
        let Ok(room) = events.try_reserve() else { continue };
        if let Some(contacts) = news(&proxy, &told) {
            room.send(Event::Contacts { attempt: attempt.clone(), contacts });
        }
    }
}

/// Lets init in, and nobody else: a program of the guest's that finds the socket is shown out.
async fn listen(listener: UnixListener, peer: Peer, proxy: Arc<Proxy<Host>>, places: Places) {
    let own = Arc::new(Semaphore::new(OF_A_GUEST));
    let mut strangers = 0;
    loop {
        let (Ok(own), Ok(all)) =
            (Arc::clone(&own).acquire_owned().await, Arc::clone(&places.0).acquire_owned().await)
        else {
            return;
        };
        let stream = tokio::select! {
            accepted = listener.accept() => accepted.ok().map(|(stream, _)| stream),
            () = proxy.gate.is_over() => return,
        };
        match stream.filter(|stream: &UnixStream| peer.recognise(stream).is_some()) {
            Some(stream) => {
                strangers = 0;
                tokio::spawn(Arc::clone(&proxy).serve(stream, (own, all)));
            }
            None => {
                strangers += 1;
                if strangers >= STRANGERS {
                    strangers = 0;
                    tokio::time::sleep(REST).await;
                }
            }
        }
    }
}
