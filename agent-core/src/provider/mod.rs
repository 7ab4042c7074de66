//! The provider half's decisions: a pure, synchronous, total machine.
//!
//! It lends GPUs, takes attempts from preparation to their end, and gives GPUs back. No clock,
//! no randomness, no I/O: events come in with the time, effects go out as data, and what changed
//! is handed to the driver to be saved before the effects run. The owner's wish comes first in
//! every decision; the engine's silence concludes nothing; only init's report is the program's
//! own end.

pub mod call;
pub mod effect;
pub mod event;
pub mod record;
pub mod word;

mod ahead;
mod attempt;
mod check;
mod checkpoint;
mod egress;
mod ending;
mod interval;
mod lease;
mod leave;
mod life;
mod pause;
mod reclaim;
mod reconcile;
mod rules;
mod salvage;
mod second_way;
mod sharing;
#[cfg(test)]
mod tests;
mod vestige;
mod wipe;

use std::collections::{BTreeMap, BTreeSet};

use gpunion_protocol::egress::EgressRule;
use gpunion_protocol::gpu::GpuView;
use gpunion_protocol::guest::ToInit;
use gpunion_protocol::ids::{AttemptRef, GpuUuid};
use gpunion_protocol::local::{Caps, Wish};
use gpunion_protocol::offer::Offer;
use gpunion_protocol::receipt::{HistoryEntry, Receipt};
use gpunion_protocol::time::{BootMs, Now};

pub use attempt::Attempt;
use effect::{Effect, Operation, Word};
use event::{Engine, Event, OpId};
use lease::Link;
use reclaim::Reclaim;
pub use reclaim::wish_not_saved;
use record::{Change, Key, Record, RulesRecord, WishRecord};
use rules::Watch;
use vestige::Vestige;

/// At most so many ended attempts are told by `gpunion history`.
const HISTORY_MAX: usize = 1_000;

#[derive(Debug)]
pub struct Provider {
    wish: WishRecord,
    rules: RulesRecord,
    watch: Watch,
    attempts: BTreeMap<AttemptRef, Attempt>,
    history: Vec<HistoryEntry>,
    link: Link,
    engine: Engine,
    gpus: GpuView,
    egress: EgressRule,
    /// The driver has said which GPUs there are, or that there are none.
    gpus_read: bool,
    /// What the relay was told last in this session, and when.
    offered: Option<(Offer, BootMs)>,
    reclaims: Vec<Reclaim>,
    /// GPUs that have not been seen free since their last guest ended.
    vestiges: BTreeMap<GpuUuid, Vestige>,
    last_receipt: Option<Receipt>,
    pace: salvage::Pace,
    /// Our containers were listed since the engine came back; only then is a container's absence
    /// worth anything.
    reconciled: bool,
    /// The time at the event before this one.
    seen: Now,
    /// When it is to be listed again.
    list_at: Option<BootMs>,
    /// Guests of an earlier run of the agent are still to be taken up.
    to_adopt: bool,
    /// This run of the agent ends as soon as its guests have left.
    stopping: bool,
    next_op: u64,
    next_seq: u64,
    dirty: BTreeSet<Key>,
    deleted: BTreeSet<Key>,
}

impl Provider {
    /// A machine that has never lent anything: after first install the wish is `NotSharing`.
    pub fn new(caps: Caps) -> Self {
        Self::load(Vec::new(), caps, Now::default())
    }

    /// The machine as its records tell it. Nothing is known yet of engine, relay and GPUs.
    pub fn load(records: Vec<Record>, caps: Caps, now: Now) -> Self {
        let mut provider = Self {
            wish: WishRecord::new(caps),
            rules: RulesRecord::default(),
            watch: Watch::default(),
            attempts: BTreeMap::new(),
            history: Vec::new(),
            link: Link::default(),
            engine: Engine::Unknown { why: "the container engine has not been asked yet".to_owned() },
            gpus: GpuView::none("the GPUs have not been read yet"),
            egress: EgressRule::Off,
            gpus_read: false,
            offered: None,
            reclaims: Vec::new(),
            vestiges: BTreeMap::new(),
            last_receipt: None,
            pace: salvage::Pace::default(),
            reconciled: false,
            seen: now,
            list_at: None,
            to_adopt: true,
            stopping: false,
            next_op: 1,
            // Larger than any number of an earlier run of the agent in this boot.
            next_seq: (now.boot.0 << 16).max(1),
            dirty: BTreeSet::new(),
            deleted: BTreeSet::new(),
        };
        for record in records {
            match record {
                Record::Wish(wish) => provider.wish = wish,
                Record::Rules(rules) => provider.rules = *rules,
                Record::Attempt(record) => {
                    let attempt = Attempt::loaded(*record, now);
                    provider.attempts.insert(attempt.name().clone(), attempt);
                }
                Record::History(entry) => provider.history.push(*entry),
            }
        }
        let ended = provider.attempts.values().filter(|attempt| !attempt.may_live());
        let ended: Vec<AttemptRef> = ended.map(|attempt| attempt.name().clone()).collect();
        for name in ended {
            provider.leave_vestiges(&name, now);
        }
        provider.history.sort_by_key(|entry| entry.until);
        let filed = provider.history.iter().filter_map(|entry| entry.receipt.as_ref());
        let to_file = provider.attempts.values().filter_map(|a| a.record.receipt.as_deref());
        provider.last_receipt = filed.chain(to_file).max_by_key(|receipt| receipt.at).cloned();
        provider
    }

    pub fn handle(&mut self, event: Event, now: Now) -> Vec<Effect> {
        let mut out = Vec::new();
        // What the owner lent until now is not lent any more, whoever asks.
        self.follow_the_clock(now);
        self.expire_wishes(now);
        self.look_at_hours(now);
        self.age_gpus(now);
        self.adopt(&mut out);
        match event {
            Event::Share { call, request } => self.share(call, request, now, &mut out),
            Event::Pause { call, request } => self.pause(call, request, now, &mut out),
            Event::Rules { call, request, zones } => {
                self.rules_asked(call, &request, zones, now, &mut out);
            }
            Event::Battery { discharging } => self.battery_says(discharging),
            Event::Wipe { call } => self.wipe(call, now, &mut out),
            Event::Reclaim { call, gpu } => self.reclaim(call, gpu, now, &mut out),
            Event::Stopping => self.stop(now, &mut out),
            Event::ReclaimedByHand { word } => self.reclaimed_by_hand(word, now, &mut out),
            Event::LinkUp { terms, epoch } => self.link_up(terms, epoch, now, &mut out),
            Event::LinkDown { why: _ } => self.link.down(),
            Event::GroupLeft => self.group_left(now, &mut out),
            Event::Relay(message) => self.relay_says(*message, now, &mut out),
            Event::Engine(engine) => self.engine_says(engine, now, &mut out),
            Event::Found(found) => self.found(&found, now, &mut out),
            Event::Gpus(view) => self.gpus_say(*view, now, &mut out),
            Event::Done { attempt, op, outcome } => self.done(&attempt, op, outcome, now, &mut out),
            Event::Progress { attempt, note } => self.progress(&attempt, note, now, &mut out),
            Event::Init { attempt, word, memory_limit } => {
                self.init_says(&attempt, word, memory_limit, now, &mut out);
            }
            Event::GuestGone { attempt, memory_limit } => {
                self.guest_gone(&attempt, memory_limit, now, &mut out);
            }
            Event::Contacts { attempt, contacts } => self.contacted(&attempt, contacts, now),
            Event::SecondWay { attempt, killed, stopped, gone } => {
                self.second_way_says(&attempt, killed, stopped, gone, now, &mut out);
            }
            Event::CannotBegin { attempt, reason } => self.cannot_begin(&attempt, reason, now, &mut out),
            Event::Timeout => {}
        }
        self.on_time(now, &mut out);
        self.offer_if_changed(now, &mut out);
        out
    }

    /// When `Event::Timeout` is wanted at the latest.
    pub fn poll_timeout(&self) -> Option<BootMs> {
        let attempts = self.attempts.values().filter_map(|a| a.next_time(self.may_operate()));
        let reclaims = self.reclaims.iter().map(Reclaim::next_time);
        let vestiges = self.vestiges.values().map(Vestige::forget_at);
        let times = [self.link.next_time(), self.sharing_ends(), self.gpus_age(), self.list_at];
        attempts.chain(reclaims).chain(vestiges).chain(times.into_iter().flatten()).min()
    }

    /// What must be on disk before the effects run.
    pub fn take_changes(&mut self) -> Vec<Change> {
        let dirty = std::mem::take(&mut self.dirty);
        let deleted = std::mem::take(&mut self.deleted);
        let mut changes: Vec<Change> =
            dirty.iter().filter_map(|key| self.record(key)).map(Change::Put).collect();
        changes.extend(deleted.into_iter().map(Change::Delete));
        changes
    }

    /// Effects wait for the disk, and what was decided meanwhile (a reclaim, say) may have overtaken
    /// them: the driver asks before it runs one. Nothing begins any more that was given up.
    pub fn still_wants(&self, effect: &Effect) -> bool {
        match effect {
            Effect::Do { attempt, op, .. } => self.attempts.get(attempt).is_some_and(|a| a.is_op(*op)),
            Effect::Say { attempt, word: Word::Begin | Word::Adopt } => {
                self.attempts.get(attempt).is_some_and(|a| a.record.phase == record::Phase::Running)
            }
            // Taken again meanwhile: what lies there is its own.
            Effect::RemoveLeft { attempt } => !self.attempts.contains_key(attempt),
            Effect::Say { word: Word::Plain(_), .. }
            | Effect::ToRelay(_)
            | Effect::GiveUp { .. }
            | Effect::Attach { .. }
            | Effect::EndFile { .. }
            | Effect::SecondWay { .. }
            | Effect::EngineKill { .. }
            | Effect::RemoveContainer { .. }
            | Effect::ListOurs
            | Effect::ForgetLog { .. }
            | Effect::WatchGpus { .. }
            | Effect::WordHeard { .. }
            | Effect::ShareAnswer { .. }
            | Effect::RulesAnswer { .. }
            | Effect::Wipe { .. }
            | Effect::ReclaimAnswer { .. } => true,
        }
    }

    /// The wish could not be written; every open receipt says so.
    pub fn wish_not_saved(&mut self) {
        for reclaim in &mut self.reclaims {
            reclaim.wish_saved = false;
        }
    }

    pub fn attempts(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.values()
    }

    pub fn attempt(&self, name: &AttemptRef) -> Option<&Attempt> {
        self.attempts.get(name)
    }

    pub fn history(&self) -> &[HistoryEntry] {
        &self.history
    }

    pub fn last_receipt(&self) -> Option<&Receipt> {
        self.last_receipt.as_ref()
    }

    pub fn gpu_view(&self) -> &GpuView {
        &self.gpus
    }

    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What the owner wants of it now.
    pub fn wish_of(&self, gpu: &GpuUuid) -> Wish {
        self.under_pause(self.wish.gpus.get(gpu).copied().unwrap_or(self.wish.machine))
    }

    pub fn wishes(&self) -> &WishRecord {
        &self.wish
    }

    fn engine_known(&self) -> bool {
        matches!(self.engine, Engine::Known { .. })
    }

    /// The engine answers, and what it runs of ours is known: operations may be begun.
    fn may_operate(&self) -> bool {
        self.engine_known() && self.reconciled
    }

    fn record(&self, key: &Key) -> Option<Record> {
        match key.0 {
            "rules" => Some(Record::Rules(Box::new(self.rules.clone()))),
            "wish" => Some(Record::Wish(self.wish.clone())),
            "attempt" => self
                .attempts
                .values()
                .find(|a| record::attempt_key(a.name()) == key.1)
                .map(|a| Record::Attempt(Box::new(a.record.clone()))),
            _ => self
                .history
                .iter()
                .rev()
                .map(|entry| Record::History(Box::new(entry.clone())))
                .find(|record| record.key() == *key),
        }
    }

    fn save_wish(&mut self) {
        self.dirty.insert(Key("wish", String::new()));
    }

    fn save_attempt(&mut self, attempt: &AttemptRef) {
        self.dirty.insert(Key("attempt", record::attempt_key(attempt)));
    }

    fn forget_attempt(&mut self, attempt: &AttemptRef) {
        self.attempts.remove(attempt);
        let key = Key("attempt", record::attempt_key(attempt));
        self.dirty.remove(&key);
        self.deleted.insert(key);
    }

    fn remember(&mut self, entry: HistoryEntry) {
        let record = Record::History(Box::new(entry.clone()));
        self.dirty.insert(record.key());
        self.history.push(entry);
        if self.history.len() > HISTORY_MAX {
            let oldest = self.history.remove(0);
            let key = Record::History(Box::new(oldest)).key();
            self.dirty.remove(&key);
            self.deleted.insert(key);
        }
    }

    fn new_op(&mut self) -> OpId {
        self.next_op += 1;
        OpId(self.next_op - 1)
    }

    fn new_seq(&mut self) -> u64 {
        self.next_seq += 1;
        self.next_seq - 1
    }

    /// Starts an operation and remembers which answer counts.
    fn run(&mut self, name: &AttemptRef, what: Operation, out: &mut Vec<Effect>) {
        let op = self.new_op();
        if let Some(attempt) = self.attempts.get_mut(name) {
            attempt.begin_op(op, what);
            out.push(Effect::Do { attempt: name.clone(), op, what });
        }
    }

    fn say(name: &AttemptRef, word: ToInit, out: &mut Vec<Effect>) {
        out.push(Effect::Say { attempt: name.clone(), word: Word::Plain(word) });
    }
}
