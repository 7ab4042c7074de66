//! The provider half's driver: owns the machine, saves what changed, then runs the effects.
//!
//! It decides nothing. Events are handled as they come, also while a commit is under way (a
//! reclaim must not wait for a disk); urgent effects run at once, all others after the commit
//! that holds their cause. A commit that fails is tried again, and nothing of it is acted upon.

mod committing;
mod crash;
mod data;
mod egress;
mod engine;
pub mod guest;
mod layers;
mod locks;
pub mod operations;
mod prepare;
mod progress;
mod save;
mod second_way;
mod spool;
pub mod store;
#[cfg(test)]
mod tests;
mod trouble;
mod turns;
mod upload_pace;
pub mod view;
mod wipe;
pub mod word;
mod workspace;
mod wrap;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gpunion_protocol::ids::{AttemptRef, DeviceId, GpuUuid};
use gpunion_protocol::local::{ShareStatus, Snapshot, Wiped, Wish};
use gpunion_protocol::problem::Problem;
use gpunion_protocol::receipt::Receipt;
use gpunion_protocol::rules::RulesStatus;
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_protocol::time::Millis;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::config::clock;
use crate::gpu::{FastPoll, Gpus};
use crate::provider::Provider;
use crate::provider::call::OwnerCall;
use crate::provider::effect::{Effect, Word};
use crate::provider::event::{CallId, Event};
use crate::provider::record::Change;
use crate::provider::word::ReclaimWord;
use crate::relay_link::session::{SessionEvent, SessionHandle};
use committing::Committing;
use locks::Locks;
use operations::Operations;
use store::Store;
use turns::{Ears, Turn, Turns};
use view::Around;

/// Answers of operations and words of inits; full means that the machine is far behind.
pub const EVENTS: usize = 1024;

/// What the driver is made of.
#[derive(Debug)]
pub struct Parts {
    pub provider: Provider,
    pub operations: Operations,
    pub session: SessionHandle,
    pub gpus: Arc<Gpus>,
    pub events: mpsc::Receiver<Event>,
    pub calls: mpsc::Receiver<OwnerCall>,
    pub around: watch::Receiver<Around>,
    pub snapshot: watch::Sender<Arc<Snapshot>>,
    /// Where `gpunion reclaim` leaves word when no agent listens.
    pub reclaimed: PathBuf,
}

#[derive(Debug)]
enum Answer {
    Share(oneshot::Sender<Result<ShareStatus, Problem>>),
    Rules(oneshot::Sender<Result<RulesStatus, Problem>>),
    Wipe(oneshot::Sender<Result<Wiped, Problem>>),
    Reclaim(oneshot::Sender<Result<Receipt, Problem>>),
}

/// The driver before it runs, and while it does.
pub struct Driver {
    parts: Parts,
    answers: BTreeMap<CallId, Answer>,
    next_call: u64,
    /// Effects whose cause is not on disk yet.
    held: Vec<Effect>,
    committing: Option<Committing>,
    fast_poll: Option<FastPoll>,
    published: Option<Snapshot>,
    /// The word of a reclaim without an agent that was heard last.
    heard: Option<ReclaimWord>,
    /// By what the group knows this device, when it is in one.
    device: Option<DeviceId>,
    store: Option<Store>,
    locks: Locks,
    /// Since the start, about.
    seconds: u32,
}

/// Hears the word that a reclaim without an agent left, and only then tells anybody anything: the
/// first picture that a face can see is the owner's.
pub fn begin(parts: Parts, store: Store) -> Driver {
    let locks = Locks::new(parts.around.borrow().device_name.clone());
    let device = device_in(&parts.around.borrow());
    let mut driver = Driver {
        locks,
        device,
        parts,
        answers: BTreeMap::new(),
        next_call: 1,
        held: Vec::new(),
        committing: None,
        fast_poll: None,
        published: None,
        heard: None,
        store: Some(store),
        seconds: 0,
    };
    driver.look_for_word();
    driver.publish();
    driver
}

/// How an agent is told to end.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    /// When its guests have left.
    pub with_notice: CancellationToken,
    /// At once: guests are left as they are, for the next agent.
    pub now: CancellationToken,
}

impl Stop {
    /// Told in time, so that its guests go on elsewhere.
    async fn is_told(&self, told: bool) {
        if told {
            return std::future::pending().await;
        }
        self.with_notice.cancelled().await;
    }
}

/// Runs until it is told to stop.
pub async fn run(mut driver: Driver, stop: Stop) {
    let mut gpu_view = driver.parts.gpus.subscribe();
    let mut around = driver.parts.around.clone();
    driver.parts.operations.watch_engine();
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut turns = Turns::default();
    let mut told = false;
    loop {
        let ears = Ears {
            wake: driver.wake_in(),
            calls: &mut driver.parts.calls,
            events: &mut driver.parts.events,
            session: &mut driver.parts.session.incoming,
            gpus: &mut gpu_view,
            around: &mut around,
            second: &mut second,
        };
        let next = turns.next(ears, finished(&mut driver.committing));
        let turn = tokio::select! {
            biased;
            () = stop.now.cancelled() => break,
            () = stop.is_told(told) => None,
            turn = next => Some(turn),
        };
        let Some(turn) = turn else {
            told = true;
            driver.stopping();
            continue;
        };
        match turn {
            Turn::Call(call) => driver.call(call),
            Turn::Event(event) => driver.on(event),
            Turn::Committed(done) => driver.committed(done),
            Turn::Session(event) => driver.session(event),
            Turn::Gpus => {
                let view = gpu_view.borrow_and_update().clone();
                let view = driver.locks.mask(view, clock::boot());
                driver.on(Event::Gpus(Box::new(view)));
            }
            Turn::Around => driver.around_changed(),
            Turn::Second => {
                driver.look_for_word();
                driver.wipe_old_if_due();
            }
            Turn::Timeout => driver.on(Event::Timeout),
        }
        if told && driver.has_stopped() {
            stop.now.cancel();
        }
    }
    if let Some(committing) = driver.committing.take() {
        let _ = committing.done.await;
    }
}

fn device_in(around: &Around) -> Option<DeviceId> {
    around.membership.as_ref().map(|member| member.group.device.clone())
}

/// The commit under way, when there is one.
async fn finished(committing: &mut Option<Committing>) -> Option<(Store, Vec<Change>, anyhow::Result<()>)> {
    match committing {
        Some(under_way) => (&mut under_way.done).await.ok(),
        None => std::future::pending().await,
    }
}

impl Driver {
    fn wake_in(&self) -> Duration {
        let now = clock::boot();
        let at = self.parts.provider.poll_timeout();
        // A machine that is due again and again at once must not keep a core busy.
        at.map_or(Duration::from_secs(3600), |at| (at - now).max(Millis(5)).as_std())
    }

    fn on(&mut self, event: Event) {
        crash::before(|| crash::event(&event));
        // An agent that was stopped while `gpunion reclaim` acted hears of that before anything that
        // waited meanwhile: nothing is begun on a GPU that is the owner's again, and the end of a
        // guest is told as the owner's doing.
        if !matches!(event, Event::ReclaimedByHand { .. }) {
            self.look_for_word();
        }
        let mut effects = self.parts.provider.handle(event, clock::now());
        // Before anything is offered: what another agent lends can't be lent here.
        if self.locks.want(&self.gpus_to_hold()) {
            let view = self.locks.mask(self.parts.gpus.view(), clock::boot());
            effects.extend(self.parts.provider.handle(Event::Gpus(Box::new(view)), clock::now()));
        }
        for effect in effects {
            if effect.is_urgent() {
                self.execute(effect);
            } else {
                self.held.push(effect);
            }
        }
        self.parts.operations.lends(self.lends());
        self.parts.operations.upload.set(self.parts.provider.rules().upload.map(|rate| rate.0));
        self.commit();
        self.answer_past_a_stuck_disk();
        self.publish();
    }

    fn stopping(&mut self) {
        self.on(Event::Stopping);
        let leaving = self.parts.provider.share_status().leaving;
        if leaving > 0 {
            tracing::info!(
                guests = leaving,
                "told to stop: they get their time to save and go on elsewhere; told once more, this agent \
                 stops at once and they run on"
            );
        }
    }

    /// What there was to do before is done, and on disk.
    fn has_stopped(&self) -> bool {
        self.parts.provider.may_stop() && self.committing.is_none() && self.held.is_empty()
    }

    /// Something of it is lent, or a guest is here.
    fn lends(&self) -> bool {
        let provider = &self.parts.provider;
        let wishes = provider.wishes();
        let wished = std::iter::once(&wishes.machine).chain(wishes.gpus.values());
        wished.into_iter().any(|wish| matches!(wish, Wish::Sharing { .. }))
            || provider.attempts().any(|attempt| !attempt.record.phase.is_over())
    }

    /// Lent by wish, or with a guest on it.
    fn gpus_to_hold(&self) -> BTreeSet<GpuUuid> {
        let provider = &self.parts.provider;
        let working = provider.attempts().filter(|attempt| !attempt.record.phase.is_over());
        let lent = working.flat_map(|attempt| attempt.record.assignment.gpus.iter());
        let shared = provider.gpu_view().gpus.keys().filter(|gpu| provider.is_shared(gpu));
        lent.chain(shared).cloned().collect()
    }

    fn call(&mut self, call: OwnerCall) {
        // Also before it is said what is refused.
        self.look_for_word();
        let id = CallId(self.next_call);
        self.next_call += 1;
        match call {
            OwnerCall::Share(request, answer) => {
                self.answers.insert(id, Answer::Share(answer));
                self.on(Event::Share { call: id, request });
            }
            OwnerCall::Pause(request, answer) => {
                self.answers.insert(id, Answer::Share(answer));
                self.on(Event::Pause { call: id, request });
            }
            OwnerCall::Rules(request, zones, answer) => {
                self.answers.insert(id, Answer::Rules(answer));
                self.on(Event::Rules { call: id, request, zones });
            }
            OwnerCall::Wipe(answer) => {
                self.answers.insert(id, Answer::Wipe(answer));
                self.on(Event::Wipe { call: id });
            }
            OwnerCall::Reclaim(request, answers) => {
                if self.parts.provider.refuses_reclaim(request.gpu.as_ref()).is_none() {
                    let _ = answers.taken.send(());
                }
                self.answers.insert(id, Answer::Reclaim(answers.receipt));
                self.on(Event::Reclaim { call: id, gpu: request.gpu });
            }
            OwnerCall::History(answer) => {
                let _ = answer.send(self.parts.provider.history().to_vec());
            }
        }
    }

    fn session(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Up { terms, epoch } => {
                self.parts.operations.link_up();
                self.on(Event::LinkUp { terms, epoch });
            }
            SessionEvent::Down { why } => {
                self.parts.operations.link_down();
                self.on(Event::LinkDown { why });
            }
            SessionEvent::Message(ToAgent::LogKept { attempt, offset }) => {
                self.parts.operations.log_kept(&attempt, offset);
            }
            SessionEvent::Message(ToAgent::WrapFor { job, device, public_key }) => {
                let known = self.parts.provider.attempts().find(|a| a.name().job == job);
                let known = known.map(|a| a.record.assignment.key.clone());
                self.parts.operations.wrap_for(
                    job,
                    device,
                    public_key,
                    known,
                    self.parts.session.outgoing.clone(),
                );
            }
            SessionEvent::Message(message) => {
                self.on(Event::Relay(Box::new(message)));
            }
        }
    }

    fn execute(&mut self, effect: Effect) {
        if !self.parts.provider.still_wants(&effect) {
            return;
        }
        crash::before(|| crash::effect(&effect));
        match effect {
            Effect::ToRelay(message) => self.send(message),
            Effect::Do { attempt, op, what } => {
                if let Some(record) = self.parts.provider.attempt(&attempt).map(|a| a.record.clone()) {
                    self.name_what_is_needed();
                    self.parts.operations.start(record, op, what);
                }
            }
            Effect::GiveUp { attempt } => self.parts.operations.give_up(&attempt),
            Effect::Attach { attempt, container, process } => {
                if let Some(attempt) = self.parts.provider.attempt(&attempt) {
                    self.parts.operations.attach(&attempt.record, container, process);
                }
            }
            Effect::Say { attempt, word } => self.say(attempt, word),
            Effect::EndFile { attempt } => self.parts.operations.end_file(&attempt),
            Effect::SecondWay { attempt } => {
                let record = self.parts.provider.attempt(&attempt).map(|a| &a.record);
                let container = record.and_then(|record| record.container.clone());
                self.parts.operations.second_way(attempt, container);
            }
            Effect::EngineKill { attempt } => self.parts.operations.engine_kill(&attempt),
            Effect::RemoveContainer { container } => self.parts.operations.remove_container(container),
            Effect::ListOurs => self.parts.operations.list_ours(),
            Effect::RemoveLeft { attempt } => self.parts.operations.remove_left(attempt),
            Effect::ForgetLog { attempt } => self.parts.operations.forget_log(&attempt),
            Effect::WatchGpus { fast } => self.fast_poll = fast.then(|| self.parts.gpus.fast_poll()),
            Effect::WordHeard { word } => {
                if let Err(error) = word::forget(&self.parts.reclaimed, &word) {
                    tracing::warn!("the word of gpunion reclaim can't be removed: {error}");
                }
            }
            Effect::ShareAnswer { call, answer } => {
                if let Some(Answer::Share(to)) = self.answers.remove(&call) {
                    let _ = to.send(answer);
                }
            }
            Effect::RulesAnswer { call, answer } => {
                if let Some(Answer::Rules(to)) = self.answers.remove(&call) {
                    let _ = to.send(answer);
                }
            }
            Effect::Wipe { call, salvages } => {
                if let Some(Answer::Wipe(to)) = self.answers.remove(&call) {
                    self.name_what_is_needed();
                    self.parts.operations.wipe(salvages, to);
                }
            }
            Effect::ReclaimAnswer { call, answer } => {
                if let Some(Answer::Reclaim(to)) = self.answers.remove(&call) {
                    let _ = to.send(answer.map(|receipt| *receipt));
                }
            }
        }
    }

    fn say(&mut self, attempt: AttemptRef, word: Word) {
        let record = self.parts.provider.attempt(&attempt).map(|a| &a.record);
        self.parts.operations.say(&attempt, word, record);
    }

    /// The end of an attempt is told after the last of its output; all else goes as it comes.
    fn send(&mut self, message: ToRelay) {
        match message {
            ToRelay::Ended { .. } => self.parts.operations.tell_end(message),
            message => {
                // A full queue loses it; all of these are repeated until answered.
                if self.parts.session.outgoing.try_send(message).is_err() {
                    tracing::debug!("the queue to the relay is full; it is said again");
                }
            }
        }
    }

    /// `gpunion reclaim` acts by itself when no agent answers, and leaves word.
    fn look_for_word(&mut self) {
        let Ok(Some(word)) = word::read(&self.parts.reclaimed) else { return };
        // Heard, and not on the books yet: it is removed when it is.
        if self.heard.as_ref() == Some(&word) {
            return;
        }
        tracing::info!("gpunion reclaim was used while this agent did not answer");
        self.heard = Some(word.clone());
        self.on(Event::ReclaimedByHand { word });
    }

    /// Attempts of a group that this device has left have nobody who waits for them.
    fn around_changed(&mut self) {
        let device = device_in(&self.parts.around.borrow());
        let before = std::mem::replace(&mut self.device, device.clone());
        if before.is_some() && before != device {
            self.on(Event::GroupLeft);
        }
        self.publish();
    }

    fn publish(&mut self) {
        let around = self.parts.around.borrow().clone();
        let mut snapshot = view::snapshot(&self.parts.provider, &around, clock::now());
        snapshot.version = self.published.as_ref().map_or(0, |old| old.version);
        if self.published.as_ref() != Some(&snapshot) {
            snapshot.version += 1;
            self.published = Some(snapshot.clone());
            self.parts.snapshot.send_replace(Arc::new(snapshot));
        }
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("parts", &self.parts).finish_non_exhaustive()
    }
}
