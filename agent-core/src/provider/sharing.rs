//! The owner's wish, and the offer that follows from wish and facts.
//!
//! The wish is what the owner said; the offer is what can be lent now. A wish is changed by the
//! owner alone (and by a reclaim, which is the owner's word too).

use gpunion_protocol::gpu::{GpuSource, GpuState};
use gpunion_protocol::ids::GpuUuid;
use gpunion_protocol::local::{ShareRequest, ShareStatus, Wish};
use gpunion_protocol::offer::{Offer, OfferedGpu};
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::session::ToRelay;
use gpunion_protocol::time::{BootMs, Millis, Now};
use gpunion_protocol::units::{Bytes, Span};

use super::Provider;
use super::effect::Effect;
use super::event::{CallId, Engine};

impl Provider {
    pub(super) fn share(&mut self, call: CallId, request: ShareRequest, now: Now, out: &mut Vec<Effect>) {
        let answer = match self.check_share(&request) {
            Err(problem) => Err(problem),
            Ok(()) => {
                if request.on == Some(true) {
                    self.drop_answered_reclaims(out);
                }
                self.apply_share(request);
                self.save_wish();
                self.whoever_must_leaves(now, out);
                Ok(self.share_status())
            }
        };
        out.push(Effect::ShareAnswer { call, answer });
    }

    fn check_share(&self, request: &ShareRequest) -> Result<(), Problem> {
        if let Some(gpu) = &request.gpu
            && !self.gpus.gpus.contains_key(gpu)
        {
            return Err(self.no_such_gpu(gpu));
        }
        if request.cpus == Some(0) || request.memory == Some(Bytes(0)) || request.disk == Some(Bytes(0)) {
            return Err(Problem::new(Code::BadRequest, "A cap of zero lends nothing")
                .with_detail("Switch sharing off instead: `gpunion share off`"));
        }
        Ok(())
    }

    pub(super) fn no_such_gpu(&self, gpu: &GpuUuid) -> Problem {
        let known: Vec<String> = self.gpus.gpus.keys().map(ToString::to_string).collect();
        let detail = if known.is_empty() {
            "No GPU is known here; `gpunion gpus` says why".to_owned()
        } else {
            format!("GPUs here: {}", known.join(", "))
        };
        Problem::new(Code::NotFound, format!("No GPU {gpu} on this machine")).with_detail(detail)
    }

    fn apply_share(&mut self, request: ShareRequest) {
        let caps = &mut self.wish.caps;
        caps.cpus = request.cpus.unwrap_or(caps.cpus);
        caps.memory = request.memory.unwrap_or(caps.memory);
        caps.disk = request.disk.unwrap_or(caps.disk);
        self.wish.grace = request.grace.map_or(self.wish.grace, |grace| grace.0);
        self.wish.salvage = request.salvage.unwrap_or(self.wish.salvage);
        let Some(on) = request.on else { return };
        let wish = if on { Wish::Sharing { until: request.until } } else { Wish::NotSharing };
        match request.gpu {
            Some(gpu) => {
                self.wish.gpus.insert(gpu, wish);
            }
            None => {
                self.wish.machine = wish;
                self.wish.gpus.clear();
                // Whoever lends the machine wants no pause any more.
                self.wish.paused = None;
            }
        }
        self.forget_an_idle_pause();
    }

    /// After a reclaim: these GPUs are the owner's alone until the owner says otherwise.
    pub(super) fn stop_sharing(&mut self, gpu: Option<&GpuUuid>) {
        match gpu {
            Some(gpu) => {
                self.wish.gpus.insert(gpu.clone(), Wish::NotSharing);
            }
            None => {
                self.wish.machine = Wish::NotSharing;
                self.wish.gpus.clear();
            }
        }
        self.forget_an_idle_pause();
        self.save_wish();
    }

    /// Sharing until a time of day ends by itself, and so does a pause.
    pub(super) fn expire_wishes(&mut self, now: Now) {
        let over = |wish: &Wish| match wish {
            Wish::Sharing { until: Some(until) } => *until <= now.wall,
            Wish::Sharing { until: None } | Wish::NotSharing | Wish::PausedUntil { .. } => false,
        };
        let mut changed = self.wish.paused.take_if(|pause| pause.is_over(now)).is_some();
        for wish in std::iter::once(&mut self.wish.machine).chain(self.wish.gpus.values_mut()) {
            if over(wish) {
                *wish = Wish::NotSharing;
                changed = true;
            }
        }
        if changed {
            self.forget_an_idle_pause();
            self.save_wish();
        }
    }

    pub fn is_shared(&self, gpu: &GpuUuid) -> bool {
        matches!(self.wish_of(gpu), Wish::Sharing { .. })
    }

    /// New attempts are taken now.
    pub fn is_open(&self) -> bool {
        self.closed_because().is_none()
    }

    fn closed_because(&self) -> Option<String> {
        if self.wish.paused.is_some() {
            return Some("Its owner has paused lending for a while".to_owned());
        }
        if !self.wishes_now().any(|wish| matches!(wish, Wish::Sharing { .. })) {
            return Some("Nothing is lent: sharing is off".to_owned());
        }
        if self.stopping {
            return Some("The agent is stopping".to_owned());
        }
        if let Some(reason) = self.ruled_out() {
            return Some(reason);
        }
        if !self.reclaims.is_empty() {
            return Some("A reclaim is under way".to_owned());
        }
        match &self.engine {
            Engine::Unknown { why } => Some(format!("Nothing can be lent now: {why}")),
            Engine::Known { .. } if !self.reconciled => {
                Some("Looking at what an earlier run left behind".to_owned())
            }
            Engine::Known { blocked, .. } => blocked.clone(),
        }
    }

    pub fn share_status(&self) -> ShareStatus {
        let why = self.closed_because().unwrap_or_else(|| {
            let lent = self.gpus.gpus.keys().filter(|gpu| self.is_shared(gpu) && !self.is_kept(gpu)).count();
            let guests = self.attempts.values().filter(|a| !a.record.phase.is_over()).count();
            match &self.gpus.source {
                GpuSource::None { sentence } => format!("Lending CPU only to {guests} jobs. {sentence}"),
                GpuSource::Ready { .. } => {
                    format!("Lending {lent} of {} GPUs to {guests} jobs", self.gpus.gpus.len())
                }
            }
        });
        let leaving = self.leaving();
        let why = match leaving {
            0 => why,
            1 => format!("{why}. 1 guest is leaving"),
            n => format!("{why}. {n} guests are leaving"),
        };
        let why = match self.link.put_aside() {
            Some(aside) if self.is_open() => format!("{why}. No job comes for now: {aside}"),
            Some(_) | None => why,
        };
        ShareStatus {
            wish: self.under_pause(self.wish.machine),
            gpus: self.wish.gpus.iter().map(|(gpu, wish)| (gpu.0.clone(), self.under_pause(*wish))).collect(),
            caps: self.wish.caps,
            grace: Span(self.wish.grace),
            salvage: self.wish.salvage,
            leaving,
            egress: self.egress.clone(),
            rules: self.verdicts(),
            open: self.is_open(),
            why,
        }
    }

    pub(super) fn offer_if_changed(&mut self, now: Now, out: &mut Vec<Effect>) {
        let offer = self.offer(now);
        let same = self.offered.as_ref().is_some_and(|(old, at)| is_same_offer(old, now.boot - *at, &offer));
        if self.link.is_up() && !same {
            self.offered = Some((offer.clone(), now.boot));
            out.push(Effect::ToRelay(ToRelay::Offer { offer }));
        }
    }

    pub fn offer(&self, now: Now) -> Offer {
        let (architecture, cpus, memory, disk) = match &self.engine {
            Engine::Known { architecture, cpus, memory, disk, .. } => {
                (architecture.clone(), *cpus, *memory, *disk)
            }
            Engine::Unknown { .. } => (String::new(), 0, Bytes(0), Bytes(0)),
        };
        let gpus = self.gpus.gpus.values().map(|sample| OfferedGpu {
            uuid: sample.uuid.clone(),
            name: sample.label(),
            memory: Bytes(sample.memory_total.unwrap_or(0)),
            free_for_guests: sample.state == GpuState::Ok
                && sample.memory_total.is_some()
                && self.is_shared(&sample.uuid)
                && !self.is_kept(&sample.uuid),
            standin: sample.standin,
        });
        Offer {
            open: self.is_open(),
            why: self.closed_because(),
            gpus: gpus.collect(),
            cpus: self.wish.caps.cpus.min(cpus),
            memory: self.wish.caps.memory.min(memory),
            disk: self.wish.caps.disk.min(disk),
            time_left: self.ends_at_wall().map(|wall| Millis(wall.saturating_sub(now.wall.0).max(0) as u64)),
            grace: Some(self.wish.grace),
            architecture,
            egress: self.egress.clone(),
        }
    }

    /// The soonest end of a sharing wish, or of the owner's hours, wall milliseconds.
    fn ends_at_wall(&self) -> Option<i64> {
        let ends = self.wishes_now().filter_map(|wish| match wish {
            Wish::Sharing { until } => until.map(|at| at.0),
            Wish::NotSharing | Wish::PausedUntil { .. } => None,
        });
        ends.chain(self.hours_end().map(|at| at.0)).min()
    }

    /// Wall time may jump, so it is looked at each half minute while something hangs on it, and when
    /// that comes or the first guest must be told of an end.
    pub(super) fn sharing_ends(&self) -> Option<BootMs> {
        let end = self.ends_at_wall();
        let changes: Vec<i64> =
            end.into_iter().chain(self.pause_ends()).chain(self.hours_change().map(|at| at.0)).collect();
        if changes.is_empty() {
            return None;
        }
        let seen = self.link.looked_wall.0;
        let tells = self.attempts.values().map(|attempt| self.grace_of(attempt));
        let tells = tells.filter_map(|grace| Some(end?.saturating_sub(grace.0 as i64)));
        let times = tells.chain(changes);
        let next = times.filter(|at| *at > seen).map(|at| Millis(at.saturating_sub(seen) as u64)).min();
        let wait = Millis::from_secs(30);
        Some(self.link.looked + next.map_or(wait, |next| next.min(wait)))
    }
}

/// The time left shrinks all the time, and that alone is no news; another end is.
fn is_same_offer(old: &Offer, since: Millis, new: &Offer) -> bool {
    let same_end = match (old.time_left, new.time_left) {
        (None, None) => true,
        (Some(then), Some(now)) => then.0.saturating_sub(since.0).abs_diff(now.0) < 1_000,
        (None, Some(_)) | (Some(_), None) => false,
    };
    let mut old = old.clone();
    old.time_left = new.time_left;
    same_end && old == *new
}
