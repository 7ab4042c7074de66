//! The relay's decisions: who may do what, what is queued, who holds which lease, which attempt
//! counts. Pure and total: no clock, no randomness, no I/O, no panic on any event.
//!
//! The driver calls `handle`, takes the changes, commits them in one transaction, and only then
//! runs the effects: what was said to anybody is on disk. A crash in between loses an event that
//! nobody was answered about, and everybody repeats what was not answered.

use std::collections::{BTreeMap, BTreeSet};

use gpunion_protocol::http::{Event as Told, Submitted};
use gpunion_protocol::ids::{AttemptNo, AttemptRef, DeviceId, Epoch, InviteId, JobId, MemberId};
use gpunion_protocol::job::JobState;
use gpunion_protocol::problem::Problem;
use gpunion_protocol::session::{Terms, ToAgent, ToRelay};
use gpunion_protocol::time::{BootMs, Millis, Now};

use aside::Aside;
use departures::Departures;
use finished::Finished;
use lease::Live;
use mass_loss::MassLoss;
use presence::Presence;
use queue::Line;
use record::{Attempt, Course, Device, Invite, Job, Member};
use usage::Ledger;

mod ahead;
mod aside;
mod attempts;
mod chain;
mod check;
mod departures;
pub mod effect;
pub mod event;
mod finished;
mod group;
mod jobs;
mod keys;
mod lease;
mod mass_loss;
mod moves;
mod placement;
mod presence;
mod queue;
pub mod record;
mod roots;
mod stored;
#[cfg(test)]
mod tests;
mod thrash;
mod usage;
mod views;
mod why;

pub use effect::{Audience, Effect, Reply};
pub use event::{By, Event, RequestId, SessionId};
pub use record::{Change, Digest, Key, Record};
pub use roots::Roots;
pub use views::{Caller, Jobs};

/// What the operator may set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The group's name, as invites and devices show it.
    pub group: String,
    /// The relay's version, as `Welcome` tells it.
    pub relay: String,
    /// Where it is to be reached, as `Welcome` tells it.
    pub addresses: Vec<String>,
    pub terms: Terms,
    /// How long a connected device may leave an assignment unanswered.
    pub answer_within: Millis,
    /// How often what was not answered is said again.
    pub repeat: Millis,
    /// In which a member's recent use halves.
    pub half_life: Millis,
    /// Attempts in a row that may get no further before the job is held.
    pub strikes_max: u32,
    /// Where more jobs than these are open, one that is new is placed or told why it waits without
    /// looking at all others; those are looked at within a second.
    pub crowd: usize,
    /// Jobs of one member that are not final.
    pub jobs_max: usize,
    /// Finished jobs of one member that are kept, and about how many bytes of memory they may
    /// take; of more the one that finished first is forgotten.
    pub finished_max: usize,
    pub finished_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            group: "GPUnion".to_owned(),
            relay: env!("CARGO_PKG_VERSION").to_owned(),
            addresses: Vec::new(),
            terms: Terms::default(),
            answer_within: Millis::from_secs(30),
            repeat: Millis::from_secs(10),
            half_life: Millis::from_secs(24 * 3600),
            strikes_max: 4,
            crowd: 200,
            jobs_max: 1000,
            finished_max: 1000,
            finished_bytes: 64 << 20,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Broker {
    config: Config,
    epoch: Epoch,

    // Saved, through `touched`.
    members: BTreeMap<MemberId, Member>,
    devices: BTreeMap<DeviceId, Device>,
    invites: BTreeMap<InviteId, Invite>,
    jobs: BTreeMap<JobId, Job>,
    courses: BTreeMap<JobId, Course>,
    attempts: BTreeMap<JobId, BTreeMap<AttemptNo, Attempt>>,
    usage: BTreeMap<MemberId, Ledger>,

    // Looked up often; follows from the above.
    tokens: BTreeMap<Digest, DeviceId>,
    submits: BTreeMap<(MemberId, String), JobId>,
    /// Jobs that are not final, and how many each member has of them.
    open: BTreeSet<JobId>,
    open_of: BTreeMap<MemberId, usize>,
    finished: BTreeMap<MemberId, Finished>,
    next_number: u64,
    next_finished: u64,
    /// Moves since this relay started.
    moves: u64,

    // Of this run of the relay alone.
    /// Until a lease after its start nobody knows who is still there.
    settling_until: Option<BootMs>,
    presence: BTreeMap<DeviceId, Presence>,
    /// Every attempt that its device may still have something of.
    live: BTreeMap<AttemptRef, Live>,
    whys: BTreeMap<JobId, String>,
    /// Not before then is a job tried again where it just failed to start.
    retries: BTreeMap<JobId, BootMs>,
    /// Providers where the last start failed.
    asides: BTreeMap<DeviceId, Aside>,
    departures: Departures,
    mass_loss: MassLoss,
    /// When a key for this device is asked for again.
    wraps: BTreeMap<(JobId, DeviceId), BootMs>,

    /// Of the jobs that wait, how many could go to which providers; as of the last look at all.
    line: Line,
    /// When all are looked at again, after some were let in alone.
    look_at: Option<BootMs>,

    /// Members who have more finished jobs than are kept.
    crowded: BTreeSet<MemberId>,

    // Of the present step.
    touched: BTreeSet<Key>,
    /// Jobs whose members are told that they changed.
    stirred: BTreeSet<JobId>,
    group_changed: bool,
    /// Something changed that the queue depends on.
    queue_changed: bool,
    /// Jobs that joined it, which is all that changed.
    newcomers: Vec<JobId>,
    answers: Vec<Answer>,
    out: Vec<Effect>,
}

/// A reply that tells a job's state, and so waits until the step has placed what it can.
#[derive(Debug, Clone)]
enum Answer {
    Submitted(RequestId, JobId),
    State(RequestId, JobId),
}

impl Broker {
    /// The broker of a new group; its epoch is the first.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            epoch: Epoch(1),
            members: BTreeMap::new(),
            devices: BTreeMap::new(),
            invites: BTreeMap::new(),
            jobs: BTreeMap::new(),
            courses: BTreeMap::new(),
            attempts: BTreeMap::new(),
            usage: BTreeMap::new(),
            tokens: BTreeMap::new(),
            submits: BTreeMap::new(),
            open: BTreeSet::new(),
            open_of: BTreeMap::new(),
            finished: BTreeMap::new(),
            next_number: 1,
            next_finished: 1,
            moves: 0,
            settling_until: None,
            presence: BTreeMap::new(),
            live: BTreeMap::new(),
            whys: BTreeMap::new(),
            retries: BTreeMap::new(),
            asides: BTreeMap::new(),
            departures: Departures::default(),
            mass_loss: MassLoss::default(),
            wraps: BTreeMap::new(),
            line: Line::new(),
            look_at: None,
            crowded: BTreeSet::new(),
            touched: BTreeSet::new(),
            stirred: BTreeSet::new(),
            group_changed: false,
            queue_changed: false,
            newcomers: Vec::new(),
            answers: Vec::new(),
            out: Vec::new(),
        }
    }

    /// One step. Whatever is due by `now` is done too, whichever event it was.
    pub fn handle(&mut self, event: Event, now: Now) -> Vec<Effect> {
        self.hear(event, now);
        self.finish(now)
    }

    /// One event of a step. Those that came together are heard first and finished once: what a step
    /// ends with looks at every job that waits.
    pub fn hear(&mut self, event: Event, now: Now) {
        match event {
            Event::NewInvite { request, by, invite, code, role, member, expires } => {
                let wanted = Invite { id: invite, code, role, member, expires };
                let result = self.new_invite(by, wanted, now);
                self.reply(request, result);
            }
            Event::Redeem { request, code, member_name, device_name, public_key, member, device, token } => {
                let newcomer =
                    group::Newcomer { member_name, device_name, public_key, member, device, token };
                let result = self.redeem(code, newcomer, now);
                self.reply(request, result);
            }
            Event::RemoveMember { request, by, member } => {
                let result = self.remove_member(&by, &member);
                self.reply(request, result);
            }
            Event::RevokeDevice { request, by, device } => {
                let result = self.revoke_device(&by, &device);
                self.reply(request, result);
            }
            Event::Connected { device, session } => self.connected(&device, session),
            Event::Disconnected { device, session } => self.disconnected(&device, session, now),
            Event::From { device, session, message } => {
                if self.presence.get(&device).is_some_and(|p| p.session == Some(session)) {
                    self.heard(&device, message, now);
                }
            }
            Event::Submit { request, member, key, body, submit } => {
                match self.submit(&member, key, body, *submit, now) {
                    Ok(job) => self.answers.push(Answer::Submitted(request, job)),
                    Err(problem) => self.reply(request, Err(problem)),
                }
            }
            Event::Cancel { request, by, job } => match self.cancel(&by, &job) {
                Ok(()) => self.answers.push(Answer::State(request, job)),
                Err(problem) => self.reply(request, Err(problem)),
            },
            Event::StoodStill => {
                self.stood_still(now);
                self.forgives_vanishing(now);
            }
            Event::Timeout => {}
        }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Moves of jobs since this relay started.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    fn heard(&mut self, device: &DeviceId, message: ToRelay, now: Now) {
        match message {
            ToRelay::Hello { wire, agent: _ } => self.hello(device, wire, now),
            ToRelay::Offer { offer } => self.offered(device, offer, now),
            ToRelay::Renew { seq, attempts } => self.renew(device, seq, attempts, now),
            ToRelay::State { attempt, state, note } => self.attempt_state(device, attempt, state, note, now),
            ToRelay::Leaving { attempt } => self.leaving(device, &attempt),
            ToRelay::ImageDigest { attempt, digest } => self.image_digest(device, &attempt, digest),
            ToRelay::Publish { attempt, checkpoint, age } => {
                self.publish(device, attempt, checkpoint, age, now);
            }
            ToRelay::Ended { attempt, cause, result } => self.ended(device, attempt, cause, result, now),
            ToRelay::Wrapped { job, key } => self.wrapped(device, &job, key),
            // The driver keeps logs and answers beats; neither decides anything.
            ToRelay::Log { .. } | ToRelay::Beat => {}
        }
    }

    /// What every step ends with: what is due, the queue, the words to be repeated, the news.
    pub fn finish(&mut self, now: Now) -> Vec<Effect> {
        self.let_leases_lapse(now);
        self.let_answers_lapse(now);
        self.end_asides(now);
        self.end_pause(now);
        self.end_mass_loss(now);
        if self.wraps.values().chain(self.retries.values()).any(|at| *at <= now.boot) {
            self.queue_changed = true;
        }
        if self.settling_until.take_if(|at| *at <= now.boot).is_some() {
            self.queue_changed = true;
        }
        self.look_at_queue(now);
        self.say_again(now);
        self.answer();
        self.announce(now);
        self.forget_finished();
        std::mem::take(&mut self.out)
    }

    fn answer(&mut self) {
        for answer in std::mem::take(&mut self.answers) {
            match answer {
                Answer::Submitted(request, job) => {
                    let state = self.job_state(&job).unwrap_or(JobState::Cancelled);
                    self.reply(request, Ok(Reply::Submitted(Submitted { job, state })));
                }
                Answer::State(request, job) => {
                    let state = self.job_state(&job).unwrap_or(JobState::Cancelled);
                    self.reply(request, Ok(Reply::State(state)));
                }
            }
        }
    }

    fn announce(&mut self, now: Now) {
        for job in std::mem::take(&mut self.stirred) {
            let (Some(state), Some(member)) = (self.job_state(&job), self.job_member(&job).cloned()) else {
                continue;
            };
            let event = Told::Job { job, state, at: now.wall };
            self.out.push(Effect::Announce { event, audience: Audience::Member(member) });
        }
        if std::mem::take(&mut self.group_changed) {
            self.out.push(Effect::Announce { event: Told::Group, audience: Audience::Everybody });
        }
    }

    fn reply(&mut self, request: RequestId, result: Result<Reply, Problem>) {
        self.out.push(Effect::Reply { request, result });
    }

    fn send(&mut self, device: &DeviceId, message: ToAgent) {
        self.out.push(Effect::Send { device: device.clone(), message });
    }

    /// Words for a job's member.
    fn note(&mut self, job: &JobId, text: String, now: Now) {
        if let Some(member) = self.job_member(job).cloned() {
            let event = Told::Note { job: job.clone(), text, at: now.wall };
            self.out.push(Effect::Announce { event, audience: Audience::Member(member) });
        }
    }
}
