//! What must be true, written down from the design and from nothing else. It knows what the owners
//! said, what reached the disks, and what was said to whom; it never asks a machine what it thinks.

use std::collections::{BTreeMap, BTreeSet};

use gpunion_agent_core::provider::Provider;
use gpunion_agent_core::provider::event::Event;
use gpunion_agent_core::provider::word::Wanted;
use gpunion_protocol::ids::{AttemptRef, GpuUuid, JobId, MemberId, SnapshotId, Token};
use gpunion_protocol::job::{AttemptState, Checkpoint, EndCause, Quality};
use gpunion_protocol::local::Wish;
use gpunion_protocol::session::ToAgent;
use gpunion_protocol::time::{Now, WallMs};
use gpunion_relay::broker::record::{Attempt, Course, JobEnd};

use super::aside::Asides;
use super::further::{may_be_held, may_be_placed};
use super::owner_rules;
use super::program::{Content, Fate, Program, STUMBLED};

/// Lease and margin by which the relay waits for one that vanished, less the clocks' drift.
const LEASE_AND_MARGIN: u64 = 49_900;

#[derive(Debug, Default)]
pub(super) struct Reference {
    owners: Vec<Seat>,
    jobs: BTreeMap<JobId, Truth>,
    /// What the relay did last to keep an attempt alive, world time.
    contact: BTreeMap<AttemptRef, u64>,
    relay_started: u64,
    asides: Asides,
    /// Somebody said what was not so of these jobs.
    lied: BTreeSet<JobId>,
}

/// What one agent was told, and as much of it as is on its disk.
#[derive(Debug)]
struct Seat {
    heard: Owner,
    /// In a commit that is under way.
    under_way: Option<Owner>,
    kept: Owner,
    /// Numbers the reclaims, also those that were forgotten in a crash.
    reclaims: u64,
    /// What it was told that it forgets with its end.
    told: owner_rules::Seen,
    /// The agent's clocks when it heard something last.
    seen: Now,
}

/// What an owner said last, per GPU; and how often each was taken back.
#[derive(Debug, Default, Clone)]
struct Owner {
    machine: Said,
    gpus: BTreeMap<GpuUuid, Said>,
    paused: Option<Paused>,
    rules: owner_rules::Said,
    generations: BTreeMap<GpuUuid, u64>,
    all: u64,
    accepted: BTreeMap<AttemptRef, Accepted>,
    /// Generations that a verified receipt closed.
    verified: BTreeMap<GpuUuid, u64>,
}

/// In which generation of its GPUs an attempt was taken.
#[derive(Debug, Clone)]
struct Accepted {
    gpus: Vec<(GpuUuid, u64)>,
    all: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Said {
    lends: bool,
    until: Option<WallMs>,
}

/// Nothing is lent meanwhile, and afterwards what was lent before.
#[derive(Debug, Clone, Copy)]
struct Paused {
    until: Option<WallMs>,
    /// Said as a length: a clock that is set while the agent lives does not change it.
    length: bool,
}

#[derive(Debug, Default, Clone)]
struct Truth {
    accepted: bool,
    cancel_asked: bool,
    held: bool,
    end: Option<JobEnd>,
    result: Option<SnapshotId>,
    /// Everything ever accepted, in order.
    chain: Vec<(Token, SnapshotId)>,
    /// What is kept of it.
    last: Vec<(SnapshotId, Quality)>,
    doubted: Option<SnapshotId>,
    attempts: BTreeMap<Token, Attempt>,
}

/// What the world knows of snapshots and programs.
pub(super) struct Known<'a> {
    pub(super) store: &'a BTreeMap<SnapshotId, Content>,
    pub(super) program: &'a Program,
}

impl Reference {
    pub(super) fn new_host(&mut self, gpus: Vec<GpuUuid>) {
        let generations = gpus.into_iter().map(|gpu| (gpu, 1)).collect();
        let kept = Owner { generations, all: 1, ..Owner::default() };
        self.owners.push(Seat {
            heard: kept.clone(),
            under_way: None,
            kept,
            reclaims: 1,
            told: owner_rules::Seen::default(),
            seen: Now::default(),
        });
    }

    /// All that an agent has heard so far is in the commit that begins now.
    pub(super) fn agent_commits(&mut self, host: usize) {
        let seat = &mut self.owners[host];
        seat.under_way = Some(seat.heard.clone());
    }

    /// It is on its disk.
    pub(super) fn agent_committed(&mut self, host: usize) {
        let seat = &mut self.owners[host];
        if let Some(written) = seat.under_way.take() {
            seat.kept = written;
        }
    }

    /// What it had heard and not written down is gone.
    pub(super) fn agent_died(&mut self, host: usize) {
        let seat = &mut self.owners[host];
        seat.under_way = None;
        seat.heard = seat.kept.clone();
    }

    pub(super) fn agent_started(&mut self, host: usize, now: Now) {
        let seat = &mut self.owners[host];
        (seat.seen, seat.told) = (now, owner_rules::Seen::default());
    }

    /// A step of an agent: its wish is its owner's, and it takes nothing against that.
    pub(super) fn agent_heard(
        &mut self,
        host: usize,
        event: &Event,
        agent: &Provider,
        now: Now,
    ) -> Result<(), String> {
        let Seat { heard: owner, reclaims, seen, told, .. } = &mut self.owners[host];
        owner.clock_moves(std::mem::replace(seen, now), now);
        owner.expire(now);
        match event {
            Event::Share { request, .. } => {
                if let Some(lends) = request.on {
                    let said = Said { lends, until: request.until.filter(|_| lends) };
                    owner.say(request.gpu.as_ref(), said);
                }
            }
            Event::Pause { request, .. } => {
                let end = request.length.map(|length| WallMs(now.wall.0 + length.0.0 as i64));
                let paused = Paused { until: end.or(request.until), length: end.is_some() };
                owner.paused = (!request.resume).then_some(paused);
            }
            Event::Rules { request, .. } => owner.rules.hear(request),
            Event::Battery { discharging } => told.battery(*discharging),
            Event::Gpus(view) => told.gpus(view, now),
            Event::Reclaim { gpu, .. } => {
                owner.say(gpu.as_ref(), Said::default());
                *reclaims += 1;
                owner.next_generation(gpu.as_ref(), *reclaims);
            }
            Event::ReclaimedByHand { word } => match &word.wanted {
                Wanted::All => owner.say(None, Said::default()),
                Wanted::These(gpus) => gpus.iter().for_each(|gpu| owner.say(Some(gpu), Said::default())),
            },
            Event::Stopping
            | Event::Wipe { .. }
            | Event::LinkUp { .. }
            | Event::LinkDown { .. }
            | Event::Relay(_)
            | Event::GroupLeft
            | Event::Engine(_)
            | Event::Found(_)
            | Event::Done { .. }
            | Event::Init { .. }
            | Event::GuestGone { .. }
            | Event::Contacts { .. }
            | Event::Progress { .. }
            | Event::SecondWay { .. }
            | Event::CannotBegin { .. }
            | Event::Timeout => {}
        }
        owner.expire(now);
        for gpu in owner.generations.keys() {
            let (wished, does) = (owner.said(gpu).lends, matches!(agent.wish_of(gpu), Wish::Sharing { .. }));
            if wished != does {
                return Err(format!(
                    "the owner's word for {gpu} is lend={wished}, the agent has lend={does}"
                ));
            }
        }
        // What an agent has forgotten it may take again, if it is lent then.
        owner.accepted.retain(|name, _| agent.attempt(name).is_some());
        for attempt in agent.attempts() {
            let name = attempt.name();
            if owner.accepted.contains_key(name) {
                continue;
            }
            let gpus = &attempt.record.assignment.gpus;
            if let Some(gpu) = gpus.iter().find(|gpu| !owner.said(gpu).lends) {
                return Err(format!("{name} is taken on {gpu}, which is not lent"));
            }
            if gpus.is_empty() && !owner.lends_anything() {
                return Err(format!("{name} is taken and nothing is lent"));
            }
            let rules = gpus.iter().map(Some).chain([None]);
            if let Some(why) = rules.filter_map(|gpu| owner.rules.forbids(gpu, told, now)).next() {
                return Err(format!("{name} is taken {why}"));
            }
            let generations = gpus.iter().map(|gpu| (gpu.clone(), owner.generation(gpu))).collect();
            owner.accepted.insert(name.clone(), Accepted { gpus: generations, all: owner.all });
        }
        Ok(())
    }

    /// The owner's last word about this GPU is to lend it, and no rule of the machine is against it.
    pub(super) fn lends(&self, host: usize, gpu: &GpuUuid, now: Now) -> bool {
        let Seat { heard, told, .. } = &self.owners[host];
        heard.said(gpu).lends && heard.rules.forbids(None, told, now).is_none()
    }

    /// The number that the next reclaim of this agent will have.
    pub(super) fn next_reclaim(&self, host: usize) -> u64 {
        self.owners[host].reclaims + 1
    }

    /// The word of this reclaim is on the agent's disk, or a later one is.
    pub(super) fn is_kept(&self, host: usize, gpu: Option<&GpuUuid>, number: u64) -> bool {
        let kept = &self.owners[host].kept;
        gpu.map_or(kept.all, |gpu| kept.generation(gpu)) >= number
    }

    pub(super) fn reclaimed_by_hand(&mut self, host: usize, gpu: Option<&GpuUuid>) {
        let seat = &mut self.owners[host];
        seat.reclaims += 1;
        let reclaims = seat.reclaims;
        seat.copies().for_each(|owner| owner.next_generation(gpu, reclaims));
    }

    /// Which reclaim of this GPU, or of all, was the last.
    pub(super) fn generation(&self, host: usize, gpu: Option<&GpuUuid>) -> u64 {
        let owner = &self.owners[host].heard;
        gpu.map_or(owner.all, |gpu| owner.generation(gpu))
    }

    /// It was taken after the last reclaim that hits it.
    pub(super) fn is_of_now(&self, host: usize, attempt: &AttemptRef) -> bool {
        let owner = &self.owners[host].heard;
        owner.accepted.get(attempt).is_some_and(|accepted| {
            accepted.all == owner.all && accepted.gpus.iter().all(|(gpu, at)| owner.generation(gpu) == *at)
        })
    }

    /// It was there when this reclaim came; a later one is another matter.
    pub(super) fn was_hit(
        &self,
        host: usize,
        attempt: &AttemptRef,
        gpu: Option<&GpuUuid>,
        generation: u64,
    ) -> bool {
        self.owners[host].heard.accepted.get(attempt).is_none_or(|accepted| match gpu {
            None => accepted.all < generation,
            Some(gpu) => accepted.gpus.iter().any(|(of, at)| of == gpu && *at < generation),
        })
    }

    /// After a reclaim nothing starts on that GPU until the owner lends it again.
    pub(super) fn may_start(&self, host: usize, attempt: &AttemptRef) -> Result<(), String> {
        if self.is_of_now(host, attempt) { Ok(()) } else { Err("its GPU was reclaimed since".to_owned()) }
    }

    /// A start that was under way when the owner came may still happen, and is ended; but never
    /// after a receipt that says verified.
    pub(super) fn guest_started(&self, host: usize, attempt: &AttemptRef) -> Result<(), String> {
        let owner = &self.owners[host].heard;
        let Some(accepted) = owner.accepted.get(attempt) else {
            return Err(format!("{attempt} starts and was never taken"));
        };
        let closed = accepted.gpus.iter().find(|(gpu, at)| owner.verified.get(gpu).is_some_and(|v| v > at));
        match closed {
            Some((gpu, _)) => Err(format!("{attempt} starts on {gpu} after a verified receipt for it")),
            None => Ok(()),
        }
    }

    pub(super) fn receipt_verified(&mut self, host: usize, gpu: Option<&GpuUuid>) {
        let seat = &mut self.owners[host];
        let hit: Vec<(GpuUuid, u64)> = seat
            .heard
            .generations
            .iter()
            .filter(|(uuid, _)| gpu.is_none_or(|gpu| gpu == *uuid))
            .map(|(uuid, generation)| (uuid.clone(), *generation))
            .collect();
        // A word that never reached the disk is forgotten with its agent, and its receipt said so.
        for owner in seat.copies() {
            let known = hit.iter().filter(|(uuid, generation)| owner.generation(uuid) == *generation);
            let known: Vec<(GpuUuid, u64)> = known.cloned().collect();
            owner.verified.extend(known);
        }
    }

    /// What it knows of jobs, as a relay's disk does.
    pub(super) fn jobs_alone(&self) -> Self {
        Self { jobs: self.jobs.clone(), contact: self.contact.clone(), ..Self::default() }
    }

    /// The relay's disk is that of then.
    pub(super) fn goes_back(&mut self, then: Self) {
        self.jobs = then.jobs;
        self.contact = then.contact;
    }

    pub(super) fn knows(&self, job: &JobId) -> bool {
        self.jobs.get(job).is_some_and(|truth| truth.accepted)
    }

    pub(super) fn relay_started(&mut self, at: u64) {
        self.relay_started = at;
        self.asides.forget();
    }

    /// Of what was in memory alone it knows no more.
    pub(super) fn relay_loads_anew(&mut self) {
        self.asides.forget();
    }

    /// True when the relay put a provider aside in it.
    pub(super) fn commit_ends(&mut self, at: u64) -> Result<bool, String> {
        self.asides.committed(at)
    }

    pub(super) fn relay_said(&mut self, message: &ToAgent, at: u64) {
        if let ToAgent::Renewed { counting, .. } = message {
            self.contact.extend(counting.iter().map(|attempt| (attempt.clone(), at)));
        }
    }

    /// What a provider says of a job is believed: the relay can't know better.
    pub(super) fn lied_about(&mut self, job: &JobId) {
        self.lied.insert(job.clone());
    }

    pub(super) fn is_doubtful(&self, job: &JobId) -> bool {
        self.lied.contains(job)
    }

    /// World time at which the relay heard last of an attempt, for all that it knows.
    pub(super) fn contact_with(&self, attempt: &AttemptRef) -> u64 {
        self.contact.get(attempt).copied().unwrap_or(0).max(self.relay_started)
    }

    /// An attempt of the same job that was placed after this one.
    pub(super) fn newer_than(&self, attempt: &AttemptRef) -> Option<Token> {
        let truth = self.jobs.get(&attempt.job).filter(|_| !self.lied.contains(&attempt.job))?;
        truth.counting().filter(|newest| *newest > attempt.token)
    }

    pub(super) fn accepted(&mut self, job: &JobId) {
        self.jobs.entry(job.clone()).or_default().accepted = true;
    }

    pub(super) fn cancel_asked(&mut self, job: &JobId) {
        self.jobs.entry(job.clone()).or_default().cancel_asked = true;
    }

    pub(super) fn is_final(&self, job: &JobId) -> bool {
        self.jobs.get(job).is_some_and(|truth| truth.end.is_some())
    }

    pub(super) fn is_held(&self, job: &JobId) -> bool {
        self.jobs.get(job).is_some_and(|truth| truth.held)
    }

    pub(super) fn end(&self, job: &JobId) -> Option<&JobEnd> {
        self.jobs.get(job)?.end.as_ref()
    }

    pub(super) fn attempts(&self) -> u64 {
        self.jobs.values().map(|truth| truth.attempts.len() as u64).sum()
    }

    /// True when it is new. `was_final`: its job, before this commit.
    pub(super) fn attempt_changed(
        &mut self,
        attempt: &Attempt,
        member: &MemberId,
        at: u64,
        was_final: bool,
    ) -> Result<bool, String> {
        let name = attempt.named();
        let contact = self.contact_with(&name);
        let truth = self.jobs.entry(attempt.job.clone()).or_default();
        let before = truth.attempts.get(&attempt.token);
        self.asides.changed(before, attempt, member, truth.end.is_some());
        if let Some(known) = truth.attempts.get_mut(&attempt.token) {
            if known.state.is_ended() && !attempt.state.is_ended() {
                return Err(format!("{name} had ended and is {:?}", attempt.state));
            }
            let known = known.clone();
            let lost = AttemptState::Ended { cause: EndCause::Lost };
            let since = at.saturating_sub(contact);
            if known.state != lost && attempt.state == lost && since < LEASE_AND_MARGIN {
                return Err(format!("{name} is called lost {since} ms after the last contact"));
            }
            if attempt.ahead
                && (attempt.ran || !attempt.state.is_ended() && !attempt.state.is_before_running())
            {
                return Err(format!("{name} is only prepared and is {:?}", attempt.state));
            }
            truth.attempts.insert(attempt.token, attempt.clone());
            // What was prepared ahead counts from now on: like one that is placed now.
            if known.ahead && !attempt.ahead {
                truth.may_be_placed(attempt)?;
            }
            return Ok(false);
        }
        if let Some(token) = truth.attempts.keys().next_back()
            && *token >= attempt.token
        {
            return Err(format!("{name} has a token that is not newer than {token}"));
        }
        if was_final {
            return Err(format!("{name} is placed for a job that is final"));
        }
        truth.may_be_placed(attempt)?;
        self.contact.insert(name, at);
        truth.attempts.insert(attempt.token, attempt.clone());
        Ok(true)
    }

    pub(super) fn course_changed(&mut self, course: &Course, known: &Known<'_>) -> Result<(), String> {
        let truth = self.jobs.entry(course.job.clone()).or_default();
        let lied = self.lied.contains(&course.job);
        truth.keeps(course)?;
        truth.doubted = course.doubted;
        for checkpoint in &course.chain {
            if truth.chain.iter().any(|(_, snapshot)| *snapshot == checkpoint.snapshot) {
                continue;
            }
            truth.takes(checkpoint.token, checkpoint.snapshot, known, lied)?;
        }
        truth.last =
            course.chain.iter().map(|checkpoint| (checkpoint.snapshot, checkpoint.quality)).collect();
        if let Some(why) = course.held.as_ref().filter(|_| !truth.held) {
            let tip = truth.chain.iter().map(|(token, _)| *token).max();
            may_be_held(&truth.attempts, tip, why).map_err(|what| format!("{} is {what}", course.job))?;
        }
        truth.held = course.held.is_some();
        if truth.end.is_some() && (truth.end != course.end || truth.result != course.result) {
            return Err(format!("{} was final ({:?}) and is {:?}", course.job, truth.end, course.end));
        }
        truth.result = course.result;
        if let (None, Some(end)) = (&truth.end, &course.end) {
            if !lied {
                truth.ends(end, known).map_err(|what| format!("{}: {what}", course.job))?;
            }
            truth.end = Some(end.clone());
        }
        Ok(())
    }
}

impl Truth {
    /// The newest attempt that is not only prepared.
    fn counting(&self) -> Option<Token> {
        let mut attempts = self.attempts.iter().rev();
        attempts.find(|(_, attempt)| !attempt.ahead).map(|(token, _)| *token)
    }

    /// Beside one that counts nothing else is placed, but one that is prepared ahead; and whatever is
    /// placed goes on from the newest checkpoint that may be used.
    fn may_be_placed(&self, attempt: &Attempt) -> Result<(), String> {
        let name = attempt.named();
        let mut others = self.attempts.values().filter(|a| a.token != attempt.token && !a.state.is_ended());
        if let Some(other) = others.find(|other| other.ahead == attempt.ahead) {
            return Err(format!("{name} is placed beside {}", other.named()));
        }
        let newest = self.usable().next_back().map(|(snapshot, _)| *snapshot);
        if attempt.from != newest {
            return Err(format!("{name} goes on from {:?}, the newest is {newest:?}", attempt.from));
        }
        if self.doubted.is_none() {
            let tip = self.chain.iter().map(|(token, _)| *token).max();
            may_be_placed(&self.attempts, tip).map_err(|what| format!("{name} is placed: {what}"))?;
        }
        Ok(())
    }

    fn usable(&self) -> impl DoubleEndedIterator<Item = &(SnapshotId, Quality)> {
        self.last.iter().filter(|(snapshot, _)| self.doubted != Some(*snapshot))
    }

    /// Beside a checkpoint that joins stays the one before it, but no program loses what it said that it
    /// saved for something that it did not.
    fn keeps(&self, course: &Course) -> Result<(), String> {
        let is_new = |new: &&Checkpoint| self.last.iter().all(|(snapshot, _)| *snapshot != new.snapshot);
        let joins: Vec<&Checkpoint> = course.chain.iter().filter(is_new).collect();
        let [joins] = joins[..] else { return Ok(()) };
        let saved = self.usable().rfind(|(_, quality)| *quality == Quality::Quiet);
        let stays = saved.filter(|_| joins.quality == Quality::Running).or(self.usable().next_back());
        let wanted: Vec<SnapshotId> =
            stays.map(|(one, _)| *one).into_iter().chain([joins.snapshot]).collect();
        let kept: Vec<SnapshotId> = course.chain.iter().map(|checkpoint| checkpoint.snapshot).collect();
        if kept == wanted {
            Ok(())
        } else {
            Err(format!("{} keeps {kept:?} of {:?} and {joins:?}", course.job, self.last))
        }
    }

    /// A checkpoint joins the chain.
    fn takes(
        &mut self,
        token: Token,
        snapshot: SnapshotId,
        known: &Known<'_>,
        lied: bool,
    ) -> Result<(), String> {
        let newest = self.counting();
        if newest != Some(token) {
            return Err(format!("a checkpoint of {token} is taken while {newest:?} is the newest"));
        }
        if self.end.is_some() {
            return Err(format!("a checkpoint of {token} is taken and the job is final"));
        }
        let content = known.store.get(&snapshot).ok_or("a checkpoint is taken that is not whole")?;
        if lied {
            self.chain.push((token, snapshot));
            return Ok(());
        }
        if *content != known.program.undisturbed(content.steps) {
            return Err(format!("a checkpoint of {token} holds what no undisturbed run has: {content:?}"));
        }
        let from = self.attempts.get(&token).and_then(|attempt| attempt.from);
        let before = self.chain.iter().rev().find(|(of, _)| *of == token).map(|(_, snapshot)| *snapshot);
        let before = before.or(from).and_then(|snapshot| known.store.get(&snapshot));
        if before.is_some_and(|before| before.steps > content.steps) {
            return Err(format!("a checkpoint of {token} goes back to step {}", content.steps));
        }
        self.chain.push((token, snapshot));
        Ok(())
    }

    /// It goes on from a step that it can't read, and was tried before that; or had a checkpoint
    /// of its own by then, after which its failure is the program's.
    fn may_stumble(&self, known: &Known<'_>) -> bool {
        let Fate::StumblesOver { at } = known.program.fate else { return false };
        let bad = |attempt: &Attempt| {
            attempt.from.and_then(|from| known.store.get(&from)).is_some_and(|content| content.steps == at)
        };
        let mut attempts = self.attempts.iter().rev();
        let Some((token, last)) = attempts.find(|(_, attempt)| !attempt.ahead) else { return false };
        let published = self.chain.iter().any(|(of, _)| of == token);
        let again = self.attempts.values().filter(|attempt| bad(attempt)).count() > 1;
        bad(last) && (self.doubted.is_some() || again || published)
    }

    fn ends(&self, end: &JobEnd, known: &Known<'_>) -> Result<(), String> {
        let program = known.program;
        let wanted = match program.fate {
            Fate::Finishes => None,
            Fate::Exits { code, .. } => Some(EndCause::Exited { code }),
            Fate::IsSignalled { signal, .. } => Some(EndCause::Signalled { signal }),
            Fate::WantsTooMuchMemory { .. } => Some(EndCause::MemoryLimit),
            // It may be through before anybody counts.
            Fate::WantsTooMuchDisk { .. } if *end == JobEnd::Succeeded => None,
            Fate::WantsTooMuchDisk { .. } => Some(EndCause::DiskLimit),
            Fate::NeverStarts => Some(EndCause::Exited { code: 127 }),
            // From the checkpoint before it, it gets further; when there is none, it is its end.
            Fate::StumblesOver { .. } => None,
            Fate::HasNoImage | Fate::HasNoInput => {
                return match end {
                    JobEnd::Cancelled if self.cancel_asked => Ok(()),
                    JobEnd::Cancelled | JobEnd::Failed { .. } | JobEnd::Succeeded => {
                        Err(format!("it ended with {end:?} and can't have run at all"))
                    }
                };
            }
        };
        match end {
            JobEnd::Cancelled if self.cancel_asked => Ok(()),
            JobEnd::Cancelled => Err("it is cancelled and nobody asked for it".to_owned()),
            JobEnd::Failed { cause } if wanted.as_ref() == Some(cause) => Ok(()),
            JobEnd::Failed { cause: EndCause::Exited { code: STUMBLED } } if self.may_stumble(known) => {
                Ok(())
            }
            JobEnd::Failed { cause } => Err(format!("it failed with {cause:?}; its program does {wanted:?}")),
            JobEnd::Succeeded if wanted.is_some() => {
                Err(format!("it succeeded; its program does {wanted:?}"))
            }
            JobEnd::Succeeded => {
                let content = self.result.and_then(|result| known.store.get(&result));
                let undisturbed = program.undisturbed(program.steps);
                if content == Some(&undisturbed) {
                    Ok(())
                } else {
                    Err(format!("its result is {content:?}, an undisturbed run has {undisturbed:?}"))
                }
            }
        }
    }
}

impl Seat {
    fn copies(&mut self) -> impl Iterator<Item = &mut Owner> {
        [&mut self.heard, &mut self.kept].into_iter().chain(self.under_way.as_mut())
    }
}

impl Owner {
    fn say(&mut self, gpu: Option<&GpuUuid>, said: Said) {
        match gpu {
            Some(gpu) => {
                self.gpus.insert(gpu.clone(), said);
            }
            None => {
                self.machine = said;
                self.gpus.clear();
                self.paused = None;
            }
        }
        self.nothing_to_pause();
    }

    fn said(&self, gpu: &GpuUuid) -> Said {
        match self.paused {
            Some(_) => Said::default(),
            None => self.gpus.get(gpu).copied().unwrap_or(self.machine),
        }
    }

    fn lends_anything(&self) -> bool {
        self.paused.is_none() && self.would_lend()
    }

    fn would_lend(&self) -> bool {
        self.machine.lends || self.gpus.values().any(|said| said.lends)
    }

    /// A pause is of what is lent, and ends with it.
    fn nothing_to_pause(&mut self) {
        if !self.would_lend() {
            self.paused = None;
        }
    }

    fn clock_moves(&mut self, seen: Now, now: Now) {
        let set = (now.wall.0 - seen.wall.0) - (now.boot.0 - seen.boot.0) as i64;
        if let Some(Paused { until: Some(until), length: true }) = &mut self.paused
            && set.abs() >= 1_000
        {
            until.0 += set;
        }
    }

    fn expire(&mut self, now: Now) {
        self.paused.take_if(|paused| paused.until.is_some_and(|until| until <= now.wall));
        for said in std::iter::once(&mut self.machine).chain(self.gpus.values_mut()) {
            if said.until.is_some_and(|until| until <= now.wall) {
                *said = Said::default();
            }
        }
        self.nothing_to_pause();
    }

    fn generation(&self, gpu: &GpuUuid) -> u64 {
        self.generations.get(gpu).copied().unwrap_or(0)
    }

    fn next_generation(&mut self, gpu: Option<&GpuUuid>, next: u64) {
        match gpu {
            Some(gpu) => *self.generations.entry(gpu.clone()).or_default() = next,
            None => {
                self.all = next;
                self.generations.values_mut().for_each(|generation| *generation = next);
            }
        }
    }
}

/// Jobs that the relay accepted in its members' eyes and that are not final.
pub(super) fn unfinished(reference: &Reference) -> BTreeSet<JobId> {
    let open = reference.jobs.iter().filter(|(_, truth)| truth.accepted && truth.end.is_none());
    open.map(|(job, _)| job.clone()).collect()
}
