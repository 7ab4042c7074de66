//! Reclaim: stopped, ended, verified, receipt.
//!
//! Local and unstoppable: no relay, no engine, no disk is waited for. It says plainly what it
//! could not end, and goes on trying after the receipt.

use std::collections::{BTreeMap, BTreeSet};

use gpunion_protocol::gpu::GpuSample;
use gpunion_protocol::guest::ToInit;
use gpunion_protocol::ids::{AttemptRef, GpuUuid};
use gpunion_protocol::job::EndCause;
use gpunion_protocol::problem::Problem;
use gpunion_protocol::receipt::{GpuReceipt, GuestReceipt, How, Receipt, Way};
use gpunion_protocol::time::{BootMs, Millis, Now};

use super::Provider;
use super::attempt::Attempt;
use super::effect::Effect;
use super::event::CallId;
use super::record::{Key, Phase, Record};
use super::vestige::is_free;
use super::word::{ReclaimWord, Wanted};
use crate::gpu::verify::{BeforeGuest, Verification};

/// After so long the owner gets an answer, verified or not.
const ANSWER_WITHIN: Millis = Millis(10_000);
const NOT_LISTED: &str =
    "the driver does not list this GPU; if it has fallen off the bus, only a reboot brings it back";
/// Init stops a guest in a few milliseconds; the end does not wait longer than this for its word.
const STOP_ANSWER: Millis = Millis(20);

pub(super) const WISH_NOT_SAVED: &str =
    "the wish not to share could not be written to disk; a restart of the agent may forget it";

/// For a receipt whose wish turned out to be on no disk after it was made out.
pub fn wish_not_saved(receipt: &mut Receipt) {
    if std::mem::replace(&mut receipt.wish_saved, false) {
        receipt.troubles.push(WISH_NOT_SAVED.to_owned());
    }
}

#[derive(Debug)]
pub(super) struct Reclaim {
    calls: Vec<CallId>,
    gpu: Option<GpuUuid>,
    clicked: BootMs,
    guests: BTreeMap<AttemptRef, Guest>,
    gpus: BTreeMap<GpuUuid, Gpu>,
    verified: Option<BootMs>,
    answered: bool,
    pub(super) wish_saved: bool,
}

#[derive(Debug)]
struct Guest {
    name: String,
    member: String,
    processes: u32,
    stopped: Option<BootMs>,
    ended: Option<BootMs>,
    way: Way,
}

#[derive(Debug)]
struct Gpu {
    name: String,
    standin: bool,
    before: Option<BeforeGuest>,
    memory_before: Option<u64>,
    memory_after: Option<u64>,
    /// The guests whose processes must be gone from it.
    guests: Vec<AttemptRef>,
    /// One question for each guest that may have left something there.
    verification: Option<Vec<Verification>>,
    verdict: Result<How, String>,
}

impl Reclaim {
    pub(super) fn next_time(&self) -> BootMs {
        if self.answered { self.clicked + Millis(u64::MAX) } else { self.clicked + ANSWER_WITHIN }
    }

    fn all_ended(&self) -> Option<BootMs> {
        self.guests
            .values()
            .map(|guest| guest.ended)
            .try_fold(self.clicked, |last, at| at.map(|at| last.max(at)))
    }

    fn since(&self, at: BootMs) -> u64 {
        (at - self.clicked).0
    }

    fn is_verified(&self) -> bool {
        self.all_ended().is_some() && self.gpus.values().all(|gpu| gpu.verdict.is_ok())
    }

    fn how(&self) -> How {
        if !self.is_verified() {
            return How::NotVerified;
        }
        let lent = self.gpus.values().filter(|gpu| gpu.before.is_some());
        let mut how = How::ProcessesOnly;
        for gpu in lent {
            match (&gpu.verdict, how) {
                (Ok(How::DeviceTotalOnly), _) => how = How::DeviceTotalOnly,
                (Ok(How::ProcessList), How::ProcessesOnly) => how = How::ProcessList,
                (Ok(_) | Err(_), _) => {}
            }
        }
        how
    }

    fn receipt(&self, now: Now) -> Receipt {
        let mut stopped = self.guests.values().map(|guest| guest.stopped.or(guest.ended));
        let stopped = stopped.try_fold(self.clicked, |last, at| at.map(|at| last.max(at)));
        let guests = self.guests.iter().map(|(attempt, guest)| GuestReceipt {
            attempt: attempt.clone(),
            name: guest.name.clone(),
            member: guest.member.clone(),
            processes: guest.processes,
            stopped_ms: guest.stopped.or(guest.ended).map(|at| self.since(at)),
            ended_ms: guest.ended.map(|at| self.since(at)),
            way: guest.way,
        });
        let gpus = self.gpus.iter().map(|(uuid, gpu)| GpuReceipt {
            uuid: uuid.clone(),
            name: gpu.name.clone(),
            memory_baseline: gpu.before.as_ref().and_then(|before| before.memory_used),
            memory_before: gpu.memory_before,
            memory_after: gpu.memory_after,
            standin: gpu.standin,
        });
        Receipt {
            at: now.wall,
            gpus: gpus.collect(),
            guests: guests.collect(),
            stopped_ms: stopped.map(|at| self.since(at)),
            ended_ms: self.all_ended().map(|at| self.since(at)),
            verified_ms: self.verified.map(|at| self.since(at)),
            verified: self.is_verified(),
            how: self.how(),
            troubles: self.troubles(),
            wish_saved: self.wish_saved,
        }
    }

    fn troubles(&self) -> Vec<String> {
        let living = self.guests.values().filter(|guest| guest.ended.is_none());
        let mut troubles: Vec<String> = living
            .map(|guest| format!("{} could not be ended yet; it is tried again each second", guest.name))
            .collect();
        let doubtful = self.gpus.iter().filter_map(|(uuid, gpu)| Some((uuid, gpu.verdict.as_ref().err()?)));
        troubles.extend(doubtful.map(|(uuid, why)| format!("{uuid}: {why}")));
        if !self.wish_saved {
            troubles.push(WISH_NOT_SAVED.to_owned());
        }
        troubles
    }
}

impl Provider {
    /// A GPU that was mistyped must not be told as taken back. As long as the driver has not said
    /// which there are, the owner is believed.
    pub fn refuses_reclaim(&self, gpu: Option<&GpuUuid>) -> Option<Problem> {
        let gpu = gpu?;
        let lent = || self.attempts.values().any(|a| a.record.assignment.gpus.contains(gpu));
        let known = !self.gpus_read
            || self.gpus.gpus.contains_key(gpu)
            || self.wish.gpus.contains_key(gpu)
            || self.vestiges.contains_key(gpu)
            || lent();
        (!known).then(|| self.no_such_gpu(gpu))
    }

    pub(super) fn reclaim(&mut self, call: CallId, gpu: Option<GpuUuid>, now: Now, out: &mut Vec<Effect>) {
        if let Some(problem) = self.refuses_reclaim(gpu.as_ref()) {
            return out.push(Effect::ReclaimAnswer { call, answer: Err(problem) });
        }
        self.stop_sharing(gpu.as_ref());
        if let Some(open) = self.reclaims.iter_mut().find(|r| r.gpu == gpu && !r.answered) {
            open.calls.push(call);
            return;
        }
        let hit: Vec<AttemptRef> = self.hit_by(gpu.as_ref());
        let mut reclaim = Reclaim {
            calls: vec![call],
            gpu: gpu.clone(),
            clicked: now.boot,
            guests: BTreeMap::new(),
            gpus: self.gpus_of(gpu.as_ref(), &hit),
            verified: None,
            answered: false,
            wish_saved: true,
        };
        for name in hit {
            if let Some(guest) = self.reclaim_guest(&name, now, out) {
                reclaim.guests.insert(name, guest);
            }
        }
        out.push(Effect::WatchGpus { fast: true });
        self.reclaims.push(reclaim);
        self.reclaim_on_time(now, out);
    }

    /// Attempts that hold one of these GPUs, or any attempt when all are wanted back.
    fn hit_by(&self, gpu: Option<&GpuUuid>) -> Vec<AttemptRef> {
        let hit = self.attempts.values().filter(|attempt| {
            let wanted = gpu.is_none_or(|gpu| attempt.record.assignment.gpus.contains(gpu));
            wanted && !attempt.record.phase.is_over()
        });
        hit.map(|attempt| attempt.name().clone()).collect()
    }

    /// The GPUs wanted back. One that has not been read yet is named by its guests.
    fn gpus_of(&self, wanted: Option<&GpuUuid>, hit: &[AttemptRef]) -> BTreeMap<GpuUuid, Gpu> {
        let of_guests = hit.iter().filter_map(|name| self.attempts.get(name));
        let of_guests = of_guests.flat_map(|attempt| attempt.record.assignment.gpus.iter());
        let all: BTreeSet<&GpuUuid> =
            self.gpus.gpus.keys().chain(of_guests).chain(self.vestiges.keys()).chain(wanted).collect();
        let asked = all.into_iter().filter(|uuid| wanted.is_none_or(|wanted| wanted == *uuid));
        asked.map(|uuid| (uuid.clone(), self.gpu_to_verify(uuid, hit))).collect()
    }

    fn gpu_to_verify(&self, uuid: &GpuUuid, hit: &[AttemptRef]) -> Gpu {
        let sample = self.gpus.gpus.get(uuid);
        let living = hit.iter().filter_map(|name| self.attempts.get(name)).filter(|a| a.may_live());
        let guests: Vec<&Attempt> =
            living.filter(|attempt| attempt.record.assignment.gpus.contains(uuid)).collect();
        let vestige = self.vestiges.get(uuid);
        let of_guest = || guests.iter().flat_map(|a| &a.record.before).find(|before| before.gpu == *uuid);
        let before = vestige.map(|vestige| &vestige.before).or_else(of_guest).cloned();
        let verdict = match (&before, guests.is_empty()) {
            (None, true) if sample.is_some() => Ok(How::ProcessesOnly),
            (None, true) => Err(NOT_LISTED.to_owned()),
            (Some(_), _) => Err("the GPU has not been read since the guest ended".to_owned()),
            (None, false) => Err("how much of it was in use before the guest came is not known".to_owned()),
        };
        Gpu {
            name: sample.map_or_else(|| uuid.0.clone(), GpuSample::label),
            standin: sample.is_some_and(|sample| sample.standin),
            before,
            memory_before: sample.and_then(|sample| sample.memory_used),
            memory_after: sample.and_then(|sample| sample.memory_used),
            guests: guests.into_iter().map(|attempt| attempt.name().clone()).collect(),
            verification: None,
            verdict,
        }
    }

    /// One word stops it; the next ends it, as soon as init says that all stands still or has had
    /// its time to say so.
    fn reclaim_guest(&mut self, name: &AttemptRef, now: Now, out: &mut Vec<Effect>) -> Option<Guest> {
        let seq = self.new_seq();
        let attempt = self.attempts.get_mut(name)?;
        if !attempt.may_live() {
            // Nothing of it runs: a preparation, or a workspace being saved. The former ends.
            if !matches!(attempt.record.phase, Phase::Finishing { .. } | Phase::Leaving { .. }) {
                self.end(name, EndCause::Reclaimed, now, out);
            }
            return None;
        }
        let spec = &attempt.record.assignment.spec;
        let guest = Guest {
            name: spec.name.clone(),
            member: attempt.record.assignment.member_name.clone(),
            processes: attempt.processes.unwrap_or(0),
            stopped: None,
            ended: None,
            way: Way::Init,
        };
        Self::say(name, ToInit::Stop { seq }, out);
        match attempt.record.phase {
            // It is ending already: what it left in its workspace stays wanted.
            Phase::Finishing { .. } | Phase::Leaving { .. } | Phase::Ending { .. } => {}
            Phase::Pull
            | Phase::Stage
            | Phase::Create
            | Phase::Start
            | Phase::Running
            | Phase::Over { .. } => self.drop_for(name, EndCause::Reclaimed, out),
        }
        if let Some(attempt) = self.attempts.get_mut(name) {
            attempt.kills = 0;
            attempt.next_kill = Some(now.boot + STOP_ANSWER);
        }
        Some(guest)
    }

    pub(super) fn reclaim_stopped(&mut self, name: &AttemptRef, processes: u32, now: Now) {
        for guest in self.reclaims.iter_mut().filter_map(|r| r.guests.get_mut(name)) {
            guest.stopped.get_or_insert(now.boot);
            guest.processes = guest.processes.max(processes);
        }
    }

    pub(super) fn reclaim_ended(&mut self, name: &AttemptRef, now: Now) {
        let attempt = self.attempts.get(name);
        let (kills, second) = attempt.map_or((0, false), |attempt| (attempt.kills, attempt.second_way));
        for reclaim in &mut self.reclaims {
            let Some(guest) = reclaim.guests.get_mut(name) else { continue };
            guest.ended.get_or_insert(now.boot);
            guest.way = match kills {
                _ if second => Way::SecondWay,
                0 | 1 => Way::Init,
                2 => Way::EndFile,
                _ => Way::Engine,
            };
        }
    }

    /// Its cgroup was frozen and killed. The end of its init may be known already.
    pub(super) fn reclaim_killed(&mut self, name: &AttemptRef, killed: u32, stopped: Option<BootMs>) {
        for guest in self.reclaims.iter_mut().filter_map(|r| r.guests.get_mut(name)) {
            guest.way = Way::SecondWay;
            guest.processes = guest.processes.max(killed.saturating_sub(1));
            if guest.stopped.is_none() {
                guest.stopped = stopped.map(|at| guest.ended.map_or(at, |ended| at.min(ended)));
            }
        }
    }

    /// The GPU's own answer: the only thing that says free.
    pub(super) fn reclaim_sees_gpus(&mut self, now: Now, out: &mut Vec<Effect>) {
        let attempts = &self.attempts;
        for reclaim in &mut self.reclaims {
            let Some(ended) = reclaim.all_ended() else { continue };
            for (uuid, gpu) in &mut reclaim.gpus {
                let Some(sample) = self.gpus.gpus.get(uuid) else { continue };
                let Some(before) = &gpu.before else {
                    // No guest was on it: that the driver knows it is all that was to be seen.
                    if gpu.guests.is_empty() {
                        gpu.verdict = Ok(How::ProcessesOnly);
                    }
                    continue;
                };
                if sample.taken_at >= ended {
                    gpu.memory_after = sample.memory_used;
                }
                if gpu.verdict.is_ok() {
                    continue;
                }
                let questions = gpu.verification.get_or_insert_with(|| {
                    let of_guests = gpu.guests.iter().filter_map(|name| attempts.get(name));
                    let of_guests = of_guests.map(|attempt| &attempt.record.traces);
                    let vestiges = self.vestiges.get(uuid).into_iter().flat_map(|vestige| &vestige.traces);
                    let traces = of_guests.chain(vestiges).cloned();
                    traces.map(|traces| Verification::new(before.clone(), traces, ended)).collect()
                });
                gpu.verdict = is_free(questions, sample);
            }
        }
        self.reclaim_on_time(now, out);
    }

    /// The owner lends again: what only waited for the GPU's answer has been told as not verified.
    pub(super) fn drop_answered_reclaims(&mut self, out: &mut Vec<Effect>) {
        let before = self.reclaims.len();
        self.reclaims.retain(|reclaim| !reclaim.answered || reclaim.all_ended().is_none());
        if before > 0 && self.reclaims.is_empty() {
            out.push(Effect::WatchGpus { fast: false });
        }
    }

    pub(super) fn reclaim_on_time(&mut self, now: Now, out: &mut Vec<Effect>) {
        let mut done = Vec::new();
        for reclaim in &mut self.reclaims {
            if reclaim.is_verified() {
                reclaim.verified = Some(now.boot);
            }
            let over = reclaim.verified.is_some();
            if over || (!reclaim.answered && now.boot >= reclaim.clicked + ANSWER_WITHIN) {
                let receipt = reclaim.receipt(now);
                for call in std::mem::take(&mut reclaim.calls) {
                    out.push(Effect::ReclaimAnswer { call, answer: Ok(Box::new(receipt.clone())) });
                }
                reclaim.answered = true;
                done.push((reclaim.guests.keys().cloned().collect::<Vec<_>>(), receipt));
            }
        }
        let before = self.reclaims.len();
        self.reclaims.retain(|reclaim| reclaim.verified.is_none());
        if before > 0 && self.reclaims.is_empty() {
            out.push(Effect::WatchGpus { fast: false });
        }
        for (guests, receipt) in done {
            self.file_receipt(&guests, receipt);
        }
    }

    fn file_receipt(&mut self, guests: &[AttemptRef], receipt: Receipt) {
        // What such a guest left is still being saved: its entry comes when that is done.
        for name in guests {
            let attempt = self.attempts.get_mut(name).filter(|attempt| !attempt.record.phase.is_over());
            if let Some(attempt) = attempt {
                attempt.record.receipt = Some(Box::new(receipt.clone()));
                self.save_attempt(name);
            }
        }
        for entry in self.history.iter_mut().filter(|entry| guests.contains(&entry.attempt)) {
            entry.receipt = Some(receipt.clone());
            let key: Key = Record::History(Box::new(entry.clone())).key();
            self.dirty.insert(key);
        }
        self.last_receipt = Some(receipt);
    }

    /// Somebody used `gpunion reclaim` while no agent listened: the guests are ended or ending.
    pub(super) fn reclaimed_by_hand(&mut self, word: ReclaimWord, now: Now, out: &mut Vec<Effect>) {
        match &word.wanted {
            Wanted::All => self.heard_of(None, now, out),
            Wanted::These(gpus) => gpus.iter().for_each(|gpu| self.heard_of(Some(gpu), now, out)),
        }
        out.push(Effect::WordHeard { word });
    }

    fn heard_of(&mut self, gpu: Option<&GpuUuid>, now: Now, out: &mut Vec<Effect>) {
        self.stop_sharing(gpu);
        for name in self.hit_by(gpu) {
            // A program that had ended by itself keeps its result, and one that was leaving its work.
            let phase = self.attempts.get(&name).map(|attempt| &attempt.record.phase);
            if !matches!(phase, Some(Phase::Finishing { .. } | Phase::Leaving { .. })) {
                self.end(&name, EndCause::Reclaimed, now, out);
            }
        }
    }
}
