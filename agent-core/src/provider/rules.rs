//! The owner's rules at work: they narrow what the wish lends, and never lend anything themselves.
//!
//! What each says is worked out when something is told that it hangs on (the time, a reading of the
//! GPUs, the battery) and stands until then. Hours and battery are of the machine, all else of one
//! GPU alone (F57).

use std::collections::BTreeMap;

use gpunion_protocol::gpu::{GpuSample, GpuState};
use gpunion_protocol::ids::{AttemptRef, GpuUuid};
use gpunion_protocol::job::EndCause;
use gpunion_protocol::local::Wish;
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::rules::{RulesRequest, RulesStatus, Verdict};
use gpunion_protocol::time::{Now, WallMs};
use jiff::tz::TimeZone;

use super::Provider;
use super::effect::Effect;
use super::event::{CallId, Zones};
use super::record::{Phase, RulesRecord};
use crate::gpu::verify::GuestTraces;
use crate::rules::band::Latch;
use crate::rules::hours::State;
use crate::rules::own_work::{Foreign, OwnWork, Yields};
use crate::rules::{Rules, Says};

/// What was told of late, and what follows from it.
#[derive(Debug)]
pub(super) struct Watch {
    zone: Option<TimeZone>,
    hours: State,
    /// Wall time of that; absent: look again.
    looked: Option<WallMs>,
    battery: Option<bool>,
    gpus: BTreeMap<GpuUuid, OfGpu>,
}

#[derive(Debug, Default)]
struct OfGpu {
    own_work: OwnWork,
    temperature: Latch,
    power: Latch,
}

impl Default for Watch {
    fn default() -> Self {
        let (zone, gpus) = (None, BTreeMap::new());
        Self { zone, hours: State::Open { until: None }, looked: None, battery: None, gpus }
    }
}

impl Provider {
    /// The zone of the owner's hours, as this machine's table has it.
    #[must_use]
    pub fn with_zone(mut self, zone: Option<TimeZone>) -> Self {
        self.watch.zone = zone;
        self.watch.looked = None;
        self
    }

    pub fn rules(&self) -> &Rules {
        &self.rules.rules
    }

    pub(super) fn rules_asked(
        &mut self,
        call: CallId,
        request: &RulesRequest,
        zones: Zones,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        let answer = self.rules_with(request, zones).map(|(rules, zone)| {
            if rules != self.rules.rules || zone != self.watch.zone {
                self.rules.rules = rules;
                self.watch.zone = zone;
                self.watch.looked = None;
                self.save_rules();
                self.look_at_hours(now);
                self.whoever_must_leaves(now, out);
            }
            RulesStatus { rules: self.rules.rules.shown(), verdicts: self.verdicts() }
        });
        out.push(Effect::RulesAnswer { call, answer });
    }

    /// The rules as they would be, with the zone of their hours.
    fn rules_with(&self, request: &RulesRequest, zones: Zones) -> Result<(Rules, Option<TimeZone>), Problem> {
        let mut rules = self.rules.rules.with(&request.set)?;
        let sets = |key: &str| request.set.contains_key(key);
        let known = rules.zone == self.rules.rules.zone && self.watch.zone.is_some();
        if known || !sets("hours") && !sets("zone") {
            return Ok((rules, self.watch.zone.clone()));
        }
        let bad =
            |title: String, fix: &str| Problem::new(Code::BadRequest, title).with_detail(fix.to_owned());
        let zone = match (&rules.zone, zones) {
            (_, Zones { named: None, .. }) if rules.hours.are_always() && !sets("zone") => None,
            (None, _) if rules.hours.are_always() => None,
            (None, Zones { here, .. }) => {
                rules.zone = here.as_ref().and_then(|zone| zone.iana_name()).map(str::to_owned);
                if rules.zone.is_none() {
                    let title = "It is not known in which zone these hours are".to_owned();
                    return Err(bad(title, "Name it: gpunion rules zone=Europe/Berlin"));
                }
                here
            }
            (Some(_), Zones { named: Some(zone), .. }) => Some(zone),
            // One that was set before, and that this machine's table has lost.
            (Some(name), Zones { named: None, .. }) if rules.zone == self.rules.rules.zone => {
                let title = format!("The zone {name:?} of your hours is not known on this machine any more");
                return Err(bad(title, "Install tzdata, or name another: gpunion rules zone=Europe/Berlin"));
            }
            (Some(name), Zones { named: None, .. }) => {
                let title = format!("zone can't be {name:?}: this machine knows no such zone");
                return Err(bad(
                    title,
                    "For example: gpunion rules zone=Europe/Berlin (zones come with tzdata)",
                ));
            }
        };
        Ok((rules, zone))
    }

    fn save_rules(&mut self) {
        self.dirty.insert(RulesRecord::key());
    }

    /// What the hours say now; they are gone through again only when they may say something else.
    pub(super) fn look_at_hours(&mut self, now: Now) {
        let (State::Open { until } | State::Closed { until }) = self.watch.hours;
        let since = self.watch.looked.is_some_and(|looked| looked <= now.wall);
        if since && until.is_none_or(|until| now.wall < until) {
            return;
        }
        self.watch.looked = Some(now.wall);
        self.watch.hours = match &self.watch.zone {
            _ if self.rules.rules.hours.are_always() => State::Open { until: None },
            Some(zone) => self.rules.rules.hours.at(now.wall, zone),
            // Unsure which time it is for its owner: nothing is lent.
            None => State::Closed { until: None },
        };
    }

    pub(super) fn battery_says(&mut self, discharging: Option<bool>) {
        self.watch.battery = discharging;
    }

    /// Why nothing of this machine may be lent now, whatever the wish, for whoever asks.
    pub(super) fn ruled_out(&self) -> Option<String> {
        if let State::Closed { .. } = self.watch.hours {
            return Some("It is outside the hours in which its owner lends".to_owned());
        }
        self.drains().then(|| "It runs on its battery".to_owned())
    }

    fn drains(&self) -> bool {
        self.watch.battery == Some(true) && !self.rules.rules.on_battery
    }

    /// A rule keeps this GPU for its owner now.
    pub(super) fn is_kept(&self, gpu: &GpuUuid) -> bool {
        self.kept_because(gpu).is_some()
    }

    pub fn kept_because(&self, gpu: &GpuUuid) -> Option<String> {
        let says = self.gpu_says(gpu).into_iter().map(|(_, says, _)| says);
        says.filter(|says| !says.allows).map(|says| says.reason).next()
    }

    /// When the hours will have ended what is lent now, and when they say something else.
    pub(super) fn hours_end(&self) -> Option<WallMs> {
        match self.watch.hours {
            State::Open { until } => until,
            State::Closed { .. } => None,
        }
    }

    pub(super) fn hours_change(&self) -> Option<WallMs> {
        let (State::Open { until } | State::Closed { until }) = self.watch.hours;
        until
    }

    /// What each rule says of the machine, and of each GPU.
    pub fn verdicts(&self) -> Vec<Verdict> {
        let told = |rule: &str, gpu: Option<&GpuUuid>, says: Says, until: Option<WallMs>| Verdict {
            rule: rule.to_owned(),
            gpu: gpu.cloned(),
            allows: says.allows,
            reason: says.reason,
            until,
        };
        let mut verdicts = Vec::new();
        if !self.rules.rules.hours.are_always() {
            verdicts.push(told("hours", None, self.hours_say(), self.hours_change()));
        }
        if let Some(drains) = self.watch.battery.filter(|_| !self.rules.rules.on_battery) {
            let says =
                if drains { Says::no("It runs on its battery") } else { Says::yes("It is plugged in") };
            verdicts.push(told("battery", None, says, None));
        }
        for gpu in self.gpus.gpus.keys() {
            let of_gpu = self.gpu_says(gpu).into_iter();
            verdicts.extend(of_gpu.map(|(rule, says, until)| told(rule, Some(gpu), says, until)));
        }
        verdicts
    }

    fn hours_say(&self) -> Says {
        let Rules { hours, zone, .. } = &self.rules.rules;
        let zone = zone.as_deref().unwrap_or("no zone");
        match self.watch.hours {
            State::Open { .. } => Says::yes(format!("It is within {hours} ({zone})")),
            State::Closed { .. } if self.watch.zone.is_none() => Says::no(format!(
                "The zone {zone} of your hours is not known on this machine: install tzdata"
            )),
            State::Closed { .. } => Says::no(format!("It is outside {hours} ({zone})")),
        }
    }

    fn gpu_says(&self, gpu: &GpuUuid) -> Vec<(&'static str, Says, Option<WallMs>)> {
        let Some(of_gpu) = self.watch.gpus.get(gpu) else { return Vec::new() };
        let rules = &self.rules.rules;
        let mut all = Vec::new();
        if rules.own_work != Yields::Stays {
            all.push(("own_work", of_gpu.own_work.says(rules), of_gpu.own_work.until()));
        }
        for (rule, band, latch, unit) in [
            ("temperature", rules.temperature, &of_gpu.temperature, "°C"),
            ("power", rules.power, &of_gpu.power, "W"),
        ] {
            let Some(band) = band else { continue };
            let says = if latch.is_over() {
                Says::no(format!("It was above {} {unit} and is not at {} {unit} yet", band.stop, band.again))
            } else {
                Says::yes(format!("It is not above {} {unit}", band.stop))
            };
            all.push((rule, says, None));
        }
        all
    }

    /// A reading of the GPUs: whose work is on each, and how warm it is.
    pub(super) fn watch_gpus(&mut self, now: Now, out: &mut Vec<Effect>) {
        let well = self.gpus.gpus.values().filter(|sample| sample.state == GpuState::Ok);
        let seen: Vec<(GpuSample, Foreign)> =
            well.map(|sample| (sample.clone(), self.foreign_on(sample))).collect();
        for (sample, foreign) in seen {
            let baseline = self.baseline(&sample.uuid, &foreign);
            let rules = &self.rules.rules;
            let of_gpu = self.watch.gpus.entry(sample.uuid.clone()).or_default();
            of_gpu.own_work.see(rules, &foreign, baseline, now);
            if let Some(band) = rules.temperature {
                of_gpu.temperature.see(band, sample.temperature_c, sample.taken_at);
            }
            if let Some(band) = rules.power {
                of_gpu.power.see(band, sample.power_mw.map(|milliwatts| milliwatts / 1_000), sample.taken_at);
            }
            if rules.own_work == Yields::Stops && of_gpu.own_work.is_taken() {
                self.stop_guests_on(&sample.uuid, now, out);
            }
        }
    }

    fn foreign_on(&self, sample: &GpuSample) -> Foreign {
        let uses = |gpus: &[GpuUuid]| gpus.contains(&sample.uuid);
        let here = self.attempts.values().any(|a| a.may_live() && uses(&a.record.assignment.gpus));
        let vestige = self.vestiges.get(&sample.uuid);
        let left = vestige.into_iter().flat_map(|vestige| &vestige.traces);
        let of_guests: Vec<&GuestTraces> =
            self.attempts.values().map(|attempt| &attempt.record.traces).chain(left).collect();
        let guest = here || vestige.is_some();
        let busy = sample.utilisation.filter(|_| !guest && !sample.telemetry_latch());
        let Some(listed) = &sample.processes else {
            let drawn = sample.memory_used.unwrap_or(0);
            return Foreign { drawn, busy, guest, ..Foreign::default() };
        };
        // Whom nobody may look at (hidepid) can be the guest's: it is not sent away for its own work.
        let foreign = || {
            let known = listed.iter().filter(|p| !guest || p.start_time.is_some());
            known.filter(|p| !of_guests.iter().any(|traces| traces.owns(p)))
        };
        let bytes = |draws: bool| {
            let held = foreign().filter(|p| p.draws_only == draws).filter_map(|p| p.memory);
            held.fold(0u64, u64::saturating_add)
        };
        let computing = foreign().filter(|p| !p.draws_only).map(|p| p.pid);
        Foreign {
            computing: Some(computing.collect()),
            compute: bytes(false),
            drawn: bytes(true),
            busy,
            guest,
        }
    }

    /// What was drawn on it when lending began: the desktop's. A pause is no new beginning, nor is a
    /// start of the agent.
    fn baseline(&mut self, gpu: &GpuUuid, foreign: &Foreign) -> Option<u64> {
        let wish = self.wish.gpus.get(gpu).unwrap_or(&self.wish.machine);
        let drawn = &mut self.rules.drawn;
        let changed = if !matches!(wish, Wish::Sharing { .. }) {
            drawn.remove(gpu).is_some()
        } else if drawn.contains_key(gpu) || foreign.computing.is_none() && foreign.guest {
            false
        } else {
            drawn.insert(gpu.clone(), foreign.drawn);
            true
        };
        let baseline = drawn.get(gpu).copied();
        if changed {
            self.save_rules();
        }
        baseline
    }

    /// The owner does not want to wait: what a guest left may be salvaged.
    fn stop_guests_on(&mut self, gpu: &GpuUuid, now: Now, out: &mut Vec<Effect>) {
        let hit = self.attempts.values().filter(|attempt| {
            let ends = matches!(attempt.record.phase, Phase::Finishing { .. } | Phase::Leaving { .. });
            attempt.uses_gpus() && !ends && attempt.record.assignment.gpus.contains(gpu)
        });
        let hit: Vec<AttemptRef> = hit.map(|attempt| attempt.name().clone()).collect();
        for name in hit {
            self.end(&name, EndCause::Reclaimed, now, out);
        }
    }
}
