//! Runs the machine's operations against the engine, the helper, the relay; each answers with one
//! event. An operation that is given up is dropped where it stands, and its answer with it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use gpunion_protocol::egress::EgressRule;
use gpunion_protocol::guest::{Begin, ToInit};
use gpunion_protocol::ids::{AttemptRef, DeviceId, JobId, SnapshotId};
use gpunion_protocol::job::Blob;
use gpunion_protocol::receipt::Way;
use gpunion_protocol::session::ToRelay;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::engine::ASK_SILENT;
use super::guest::Guest;
use super::progress::Teller;
use super::upload_pace::UploadPace;
use super::workspace::{Parent, Snapshotting, folder};
use super::{data, prepare, save, wrap};
use crate::config::{Membership, clock};
use crate::container::{Aside, Engine, EngineFacts, LocalImage};
use crate::egress::Places;
use crate::gpu::verify::ProcessId;
use crate::provider::effect::{Operation, Word};
use crate::provider::event::{Event, OpId, Outcome, Trouble};
use crate::provider::record::AttemptRecord;

/// What does not change while the agent runs.
#[derive(Debug, Clone)]
pub struct Fixed {
    pub engine: Engine,
    /// One folder per guest.
    pub guests: PathBuf,
    pub init: PathBuf,
    pub helper: PathBuf,
    /// The folder with one folder per stand-in GPU.
    pub standin: Option<PathBuf>,
    /// Marks of the read-only inputs that are here whole.
    pub data: PathBuf,
    /// What the owner lets guests reach, and the room for their connections.
    pub egress: EgressRule,
    pub places: Places,
    /// The folder with the socket of the second way.
    pub second_way: PathBuf,
    /// False: the owner has turned the second way off.
    pub second_way_allowed: bool,
}

/// Cheap to clone; the driver and the operations' tasks share it.
#[derive(Debug, Clone)]
pub struct Operations {
    pub(super) fixed: Arc<Fixed>,
    pub(super) membership: watch::Receiver<Option<Arc<Membership>>>,
    pub(super) facts: watch::Sender<Option<EngineFacts>>,
    pub(super) events: mpsc::Sender<Event>,
    /// Output of guests, and the ends of attempts behind it.
    pub(super) logs: mpsc::Sender<ToRelay>,
    pub(super) gpus: Arc<crate::gpu::Gpus>,
    pub(super) filling: Arc<data::Filling>,
    pub(super) lends: watch::Sender<bool>,
    pub(super) upload: Arc<UploadPace>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) running: BTreeMap<AttemptRef, (OpId, CancellationToken)>,
    pub(super) listing: Option<CancellationToken>,
    /// Attempts that are not on the books, whose leftovers are being removed.
    pub(super) removing: BTreeSet<AttemptRef>,
    guests: BTreeMap<AttemptRef, Arc<Guest>>,
    pub(super) snapshots: BTreeMap<AttemptRef, Snapshotting>,
    parents: BTreeMap<AttemptRef, Parent>,
    /// The helpers that filled workspaces, until the guests have started.
    aside: BTreeMap<AttemptRef, Aside>,
    /// The images of guests that have been made.
    images: BTreeMap<AttemptRef, LocalImage>,
    /// Read-only inputs that attempts on the books name.
    inputs: BTreeSet<SnapshotId>,
    /// Names of images that they need.
    pub(super) named_images: BTreeSet<String>,
    /// Bytes of each attempt's output that the relay keeps; outlives the guest.
    kept: BTreeMap<AttemptRef, Arc<AtomicU64>>,
    link_up: bool,
    /// Who is being told to end over a disk or a socket that has not answered yet.
    pub(super) telling: BTreeSet<(AttemptRef, Way)>,
}

impl Operations {
    pub fn new(
        fixed: Fixed,
        membership: watch::Receiver<Option<Arc<Membership>>>,
        gpus: Arc<crate::gpu::Gpus>,
        events: mpsc::Sender<Event>,
        logs: mpsc::Sender<ToRelay>,
    ) -> Self {
        Self {
            fixed: Arc::new(fixed),
            membership,
            facts: watch::channel(None).0,
            events,
            logs,
            gpus,
            filling: Arc::default(),
            lends: watch::channel(false).0,
            upload: Arc::default(),
            state: Arc::default(),
        }
    }

    pub fn facts(&self) -> watch::Receiver<Option<EngineFacts>> {
        self.facts.subscribe()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inputs of all attempts on the books: told before an operation of any of them starts.
    pub fn name_inputs(&self, inputs: BTreeSet<SnapshotId>) {
        self.state().inputs = inputs;
    }

    pub(super) fn is_input_named(&self, input: &SnapshotId) -> bool {
        self.state().inputs.contains(input)
    }

    pub fn start(&self, record: AttemptRecord, op: OpId, what: Operation) {
        let name = record.assignment.attempt.clone();
        let token = CancellationToken::new();
        if let Some((_, old)) = self.state().running.insert(name.clone(), (op, token.clone())) {
            old.cancel();
        }
        let this = self.clone();
        tokio::spawn(async move {
            let began = clock::boot();
            let work = this.perform(&record, what);
            let outcome = token.run_until_cancelled(work).await;
            if what != Operation::Stage && what != Operation::Create {
                this.state().aside.remove(&name);
            }
            let Some(outcome) = outcome else { return };
            this.state().running.retain(|of, (id, _)| *of != name || *id != op);
            let took = (clock::boot() - began).0;
            tracing::debug!(attempt = %name, operation = ?what, took_ms = took, "an operation is done");
            if let Err(trouble) = &outcome {
                tracing::info!(attempt = %name, operation = ?what, ?trouble, "an operation did not work");
            }
            let _ = this.events.send(Event::Done { attempt: name, op, outcome }).await;
        });
    }

    async fn perform(&self, record: &AttemptRecord, what: Operation) -> Result<Outcome, Trouble> {
        match what {
            Operation::Image => prepare::image(self, record).await,
            Operation::Stage => {
                if self.state().removing.contains(&record.assignment.attempt) {
                    let why = "what an earlier run left of it is being removed".to_owned();
                    return Err(Trouble::Away { why });
                }
                prepare::stage(self, record).await
            }
            Operation::Create => prepare::create(self, record).await,
            Operation::Start => prepare::start(self, record).await,
            Operation::PassOne => save::pass_one(self, record).await,
            Operation::PassTwo => save::pass_two(self, record).await,
            Operation::Whole => save::whole(self, record).await,
            Operation::Upload { snapshot } => save::upload(self, record, snapshot).await,
            Operation::Clean => self.clean(record).await,
        }
    }

    /// Container, helper, workspace and control folder go; the output stays until the end of the
    /// attempt is on the relay's disk.
    async fn clean(&self, record: &AttemptRecord) -> Result<Outcome, Trouble> {
        use super::trouble::of_engine;
        let name = &record.assignment.attempt;
        let snapshotting = self.state().snapshots.remove(name);
        drop(snapshotting);
        self.state().parents.remove(name);
        self.state().images.remove(name);
        self.state().aside.remove(name);
        let engine = &self.fixed.engine;
        for ours in engine.list_ours().await.map_err(of_engine)? {
            // An orphaned helper may hold the workspace.
            if ours.orphan || ours.attempt.as_ref() == Some(name) {
                engine.remove_guest(&ours.id).await.map_err(of_engine)?;
            }
        }
        engine.remove_workspace(name).await.map_err(of_engine)?;
        let path = folder(&self.fixed.guests, name);
        for part in [super::guest::CONTROL, super::egress::FOLDER, "packs"] {
            remove_tree(path.join(part)).await?;
        }
        let _ = tokio::fs::remove_file(path.join(super::guest::FACTS)).await;
        if !record.assignment.data.is_empty()
            && let Err(trouble) = data::tidy(self).await
        {
            tracing::info!(?trouble, "old inputs of jobs stay for now");
        }
        Ok(Outcome::Cleaned)
    }

    pub fn give_up(&self, attempt: &AttemptRef) {
        let mut state = self.state();
        if let Some((_, token)) = state.running.remove(attempt) {
            token.cancel();
        }
        state.snapshots.remove(attempt);
        state.aside.remove(attempt);
    }

    /// Makes the guest known to this run of the agent, once.
    pub(super) fn open_guest(&self, record: &AttemptRecord, container: &str) -> std::io::Result<Arc<Guest>> {
        let attempt = &record.assignment.attempt;
        // Of a container that had to be made anew the one before is nobody.
        let known = self.state().guests.get(attempt).cloned();
        if let Some(guest) = known.filter(|guest| guest.is_of(container)) {
            return Ok(guest);
        }
        let kept = Arc::clone(self.state().kept.entry(attempt.clone()).or_default());
        let guest = Arc::new(Guest::open(
            &folder(&self.fixed.guests, attempt),
            attempt,
            container,
            self.events.clone(),
            self.logs.clone(),
            kept,
            self.open_egress(record, container)?,
        )?);
        self.state().guests.insert(attempt.clone(), Arc::clone(&guest));
        Ok(guest)
    }

    pub fn attach(&self, record: &AttemptRecord, container: String, process: ProcessId) {
        let attempt = &record.assignment.attempt;
        match self.open_guest(record, &container) {
            Ok(guest) => {
                guest.watch(attempt, process, self.events.clone());
            }
            Err(error) => tracing::error!(%attempt, "the guest's control channel can't be opened: {error}"),
        }
    }

    pub fn say(&self, attempt: &AttemptRef, word: Word, record: Option<&AttemptRecord>) {
        let Some(guest) = self.state().guests.get(attempt).cloned() else { return };
        match word {
            Word::Plain(word) => guest.say(&word),
            Word::Adopt => guest.say(&ToInit::Adopt { egress_deadline: guest.deadline() }),
            Word::Begin => {
                let Some(record) = record.cloned() else { return };
                tokio::spawn(begin(self.clone(), record, Arc::downgrade(&guest)));
            }
        }
    }

    pub fn end_file(&self, attempt: &AttemptRef) {
        let control = folder(&self.fixed.guests, attempt).join(super::guest::CONTROL);
        self.tell(attempt.clone(), Way::EndFile, move |attempt| {
            if let Err(error) = crate::channel::write_end_file(&control) {
                tracing::warn!(%attempt, "the file `end` can't be written: {error}");
            }
        });
    }

    pub fn link_up(&self) {
        let mut state = self.state();
        state.link_up = true;
        for guest in state.guests.values() {
            guest.log.rewind();
        }
    }

    pub fn link_down(&self) {
        self.state().link_up = false;
    }

    pub fn log_kept(&self, attempt: &AttemptRef, offset: u64) {
        if let Some(kept) = self.state().kept.get(attempt) {
            kept.fetch_max(offset, Ordering::Relaxed);
        }
    }

    /// The end of an attempt, after the last of its output and by the same way.
    pub fn tell_end(&self, message: ToRelay) {
        let ToRelay::Ended { attempt, .. } = &message else { return };
        let guest = self.state().guests.get(attempt).cloned();
        let logs = self.logs.clone();
        tokio::spawn(async move {
            if let Some(guest) = guest {
                guest.log.drain().await;
            }
            let _ = logs.send(message).await;
        });
    }

    /// The relay has the end of the attempt, and all of its output that it will ever have.
    pub fn forget_log(&self, attempt: &AttemptRef) {
        let mut state = self.state();
        state.guests.remove(attempt);
        state.kept.remove(attempt);
        drop(state);
        let path = folder(&self.fixed.guests, attempt);
        tokio::spawn(async move {
            let _ = remove_tree(path).await;
        });
    }

    pub fn wrap_for(
        &self,
        job: JobId,
        device: DeviceId,
        public_key: Blob,
        mine: Option<Blob>,
        outgoing: mpsc::Sender<ToRelay>,
    ) {
        let Some(member) = self.membership.borrow().clone() else { return };
        tokio::spawn(async move {
            match wrap::for_device(&member, &job, &device, &public_key, mine).await {
                Ok(key) => {
                    let _ = outgoing.send(ToRelay::Wrapped { job, key }).await;
                }
                Err(problem) => tracing::info!(%job, %device, %problem, "its key can't be wrapped here"),
            }
        });
    }

    pub(super) fn teller(&self, attempt: &AttemptRef) -> Teller {
        Teller::new(attempt.clone(), self.events.clone())
    }

    pub(super) fn keep_snapshotting(&self, attempt: &AttemptRef, snapshotting: Snapshotting) {
        self.state().snapshots.insert(attempt.clone(), snapshotting);
    }

    pub(super) fn take_snapshotting(&self, attempt: &AttemptRef) -> Option<Snapshotting> {
        self.state().snapshots.remove(attempt)
    }

    pub(super) fn parent(&self, attempt: &AttemptRef) -> Option<Parent> {
        self.state().parents.get(attempt).cloned()
    }

    pub(super) fn put_aside(&self, attempt: &AttemptRef, helper: Aside) {
        self.state().aside.insert(attempt.clone(), helper);
    }

    pub(super) fn known_image(&self, attempt: &AttemptRef) -> Option<LocalImage> {
        self.state().images.get(attempt).cloned()
    }

    pub(super) fn keep_image(&self, attempt: &AttemptRef, image: LocalImage) {
        self.state().images.insert(attempt.clone(), image);
    }

    pub(super) fn forget_image(&self, attempt: &AttemptRef) {
        self.state().images.remove(attempt);
    }

    pub(super) fn forget_parent(&self, attempt: &AttemptRef) {
        self.state().parents.remove(attempt);
    }

    pub(super) fn keep_parent(&self, attempt: &AttemptRef, parent: Parent) {
        self.state().parents.insert(attempt.clone(), parent);
    }
}

/// Says the first word, as soon as what goes with it can be had, while the guest is there.
async fn begin(ops: Operations, record: AttemptRecord, guest: Weak<Guest>) {
    loop {
        let begun = prepare::begin(&ops, &record).await;
        let Some(guest) = guest.upgrade() else { return };
        match begun {
            Ok(begin) => {
                return guest.say(&ToInit::Begin(Begin { egress_deadline: guest.deadline(), ..begin }));
            }
            Err(Trouble::Away { why }) => {
                tracing::warn!(attempt = %record.assignment.attempt, %why, "the program can't be begun yet");
            }
            Err(Trouble::Refused { reason }) => {
                let attempt = record.assignment.attempt.clone();
                let _ = ops.events.send(Event::CannotBegin { attempt, reason }).await;
                return;
            }
        }
        drop(guest);
        tokio::time::sleep(ASK_SILENT).await;
    }
}

pub(super) async fn remove_tree(path: PathBuf) -> Result<(), Trouble> {
    match tokio::fs::remove_dir_all(&path).await {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Trouble::Away { why: format!("{} can't be removed: {e}", path.display()) })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
