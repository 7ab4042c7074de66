//! The one task that owns the broker: events in, changes to the disk, then effects.
//!
//! What many ask at once shares one commit: while one is under way, events gather. Nobody is
//! answered and nothing is sent before the commit is on the disk. When it fails (a full disk),
//! nothing of that step is done: callers are told, and the broker is loaded anew, so that memory
//! never runs ahead of the disk.

mod crash;
mod handle;
#[cfg(test)]
mod tests;

pub(crate) use handle::{Handle, Input, Mailbox, Outgoing};

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gpunion_protocol::http::Event as Told;
use gpunion_protocol::ids::{DeviceId, Epoch};
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::session::ToAgent;
use gpunion_protocol::time::{BootMs, Now};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::broker::{Broker, Config, Effect, Event, Reply, RequestId};
use crate::clock;
use crate::error::Error;
use crate::feed::Feed;
use crate::logs::Logs;
use crate::store::Writer;
use handle::Question;

/// Events that share one commit at most.
const BATCH: usize = 256;
/// The timer is looked at so often at least: it stands still while the machine sleeps.
const TICK: Duration = Duration::from_secs(5);
/// Between two tries to read the database again.
const RETRY: Duration = Duration::from_secs(1);

/// Counted for `/metrics`.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) events: AtomicU64,
    pub(crate) commits: AtomicU64,
    pub(crate) commits_failed: AtomicU64,
    pub(crate) messages_dropped: AtomicU64,
}

/// What the driver needs to act.
pub(crate) struct Outside {
    pub(crate) writer: Writer,
    pub(crate) feed: Feed,
    pub(crate) logs: Logs,
    pub(crate) counts: Arc<Counts>,
}

pub(crate) struct Driver {
    broker: Broker,
    config: Config,
    epoch: Epoch,
    outside: Outside,
    inputs: mpsc::Receiver<Input>,
    sessions: BTreeMap<DeviceId, Mailbox>,
    /// When the last step began.
    stepped: BootMs,
}

type Waiting = BTreeMap<RequestId, oneshot::Sender<Result<Reply, Problem>>>;

impl Driver {
    /// Loads the broker; `epoch` is new and saved.
    pub(crate) async fn start(
        config: Config,
        epoch: Epoch,
        outside: Outside,
        inputs: mpsc::Receiver<Input>,
    ) -> Result<Self, Error> {
        let records = outside.writer.load().await?;
        let (broker, effects) = Broker::load(config.clone(), records, epoch, clock::now());
        let (sessions, stepped) = (BTreeMap::new(), clock::now().boot);
        let mut driver = Self { broker, config, epoch, outside, inputs, sessions, stepped };
        driver.settle(effects, &mut Waiting::new()).await?;
        let kept = driver.outside.logs.keep_only(|job| driver.broker.knows(job));
        kept.map_err(Error::io("tidy", "the logs"))?;
        Ok(driver)
    }

    /// Runs until `stop`; what was taken in by then is done.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let wait = wait_until(self.broker.poll_timeout(), clock::now().boot).min(self.tick());
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                count = self.inputs.recv_many(&mut batch, BATCH) => if count == 0 { return },
                () = tokio::time::sleep(wait) => {}
            }
            self.step(&mut batch, &stop).await;
        }
    }

    /// Often enough to know a pause of `renew` from having nothing to do.
    fn tick(&self) -> Duration {
        TICK.min(self.config.terms.renew.as_std() / 2)
    }

    /// One batch: all events as one step, one commit, then all effects, then questions.
    async fn step(&mut self, batch: &mut Vec<Input>, stop: &CancellationToken) {
        let now = clock::now();
        let mut waiting = Waiting::new();
        let mut questions = Vec::new();
        let mut shut_out = false;
        // A step comes at least each tick: after a longer pause it was this side that was silent.
        if now.boot - self.stepped > self.config.terms.renew {
            let pause = now.boot - self.stepped;
            tracing::warn!(ms = pause.0, "this relay stood still; leases go on from now");
            self.hear(Event::StoodStill, now);
        }
        self.stepped = now.boot;
        for input in batch.drain(..) {
            if let Some(event) = self.take(input, &mut waiting, &mut questions) {
                shut_out |= matches!(event, Event::RevokeDevice { .. } | Event::RemoveMember { .. });
                self.hear(event, now);
            }
        }
        // What is due is done at the end of any step, whatever it heard.
        let effects = self.broker.finish(now);
        if let Err(error) = self.settle(effects, &mut waiting).await {
            self.outside.counts.commits_failed.fetch_add(1, Ordering::Relaxed);
            tracing::error!(%error, "nothing of this step was done; loading what is on the disk");
            refuse(waiting, &error);
            self.reload(stop).await;
        }
        if shut_out {
            self.outside.feed.shut_out();
        }
        for question in questions {
            question(&self.broker);
        }
    }

    /// What an input means to the broker.
    fn take(&mut self, input: Input, waiting: &mut Waiting, questions: &mut Vec<Question>) -> Option<Event> {
        match input {
            Input::Call { request, event, reply } => {
                waiting.insert(request, reply);
                Some(*event)
            }
            Input::Ask(question) => {
                questions.push(question);
                None
            }
            Input::Opened { device, mailbox } => {
                let session = mailbox.session;
                if let Some(old) = self.sessions.insert(device.clone(), mailbox) {
                    old.close("this device has connected anew");
                }
                Some(Event::Connected { device, session })
            }
            Input::Closed { device, session } => {
                if self.sessions.get(&device).is_some_and(|mailbox| mailbox.session == session) {
                    self.sessions.remove(&device);
                }
                Some(Event::Disconnected { device, session })
            }
            Input::Heard { device, session, message } => {
                Some(Event::From { device, session, message: *message })
            }
            Input::Say { device, message } => {
                self.say(&device, message);
                None
            }
        }
    }

    fn hear(&mut self, event: Event, now: Now) {
        self.outside.counts.events.fetch_add(1, Ordering::Relaxed);
        self.broker.hear(event, now);
    }

    /// Commits what changed, then runs the effects.
    async fn settle(&mut self, effects: Vec<Effect>, waiting: &mut Waiting) -> Result<(), Error> {
        let changes = self.broker.take_changes();
        if !changes.is_empty() {
            crash::before(|| "Commit".to_owned());
            self.outside.writer.commit(changes).await?;
            crash::before(|| "Committed".to_owned());
            self.outside.counts.commits.fetch_add(1, Ordering::Relaxed);
        }
        for effect in effects {
            self.run_effect(effect, waiting);
        }
        Ok(())
    }

    fn run_effect(&mut self, effect: Effect, waiting: &mut Waiting) {
        crash::before(|| crash::effect(&effect));
        match effect {
            Effect::Send { device, message } => self.say(&device, Box::new(message)),
            Effect::Reply { request, result } => {
                if let Some(reply) = waiting.remove(&request) {
                    // The caller may have gone; what it asked for is done.
                    let _ = reply.send(result);
                }
            }
            Effect::Announce { event, audience } => {
                if let Told::Job { job, .. } = &event {
                    self.outside.logs.nudge(job);
                }
                self.outside.feed.push(audience, event);
            }
            Effect::Forget { job } => self.outside.logs.forget(job),
            Effect::Disconnect { device, why } => {
                if let Some(mailbox) = self.sessions.remove(&device) {
                    mailbox.close(&why);
                }
            }
        }
    }

    fn say(&self, device: &DeviceId, message: Box<ToAgent>) {
        let Some(mailbox) = self.sessions.get(device) else { return };
        if !mailbox.send(message) {
            self.outside.counts.messages_dropped.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%device, "its session is slow; a message was dropped and will be said again");
        }
    }

    /// Starts anew from what is on the disk. Agents dial again and tell what they hold.
    async fn reload(&mut self, stop: &CancellationToken) {
        for mailbox in std::mem::take(&mut self.sessions).into_values() {
            mailbox.close("the relay could not write to its disk");
        }
        let records = loop {
            match self.outside.writer.load().await {
                Ok(records) => break records,
                Err(error) => tracing::error!(%error, "the database can't be read; trying again"),
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RETRY) => {}
            }
        };
        // The epoch stays: nothing that carried an uncommitted token was ever sent.
        let (broker, effects) = Broker::load(self.config.clone(), records, self.epoch, clock::now());
        self.broker = broker;
        if let Err(error) = self.settle(effects, &mut Waiting::new()).await {
            // Whatever loading changed is changed again by the next load.
            tracing::error!(%error, "the database still can't be written");
        }
    }
}

fn refuse(waiting: Waiting, error: &Error) {
    let problem = if error.is_disk_full() {
        Problem::new(Code::DiskFull, "the relay's disk is full")
            .with_detail("nothing was changed; ask its operator to make room, then try again")
    } else {
        Problem::new(Code::Busy, "the relay could not write to its database")
            .with_detail("nothing was changed; try again")
    };
    for reply in waiting.into_values() {
        let _ = reply.send(Err(problem.clone()));
    }
}

fn wait_until(at: Option<BootMs>, now: BootMs) -> Duration {
    at.map_or(TICK, |at| (at - now).as_std().min(TICK))
}
