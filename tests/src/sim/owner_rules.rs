//! Owners with rules, and what must be true of them: written down from what rules promise (nothing is
//! taken outside the hours, on battery, or on a GPU on which its owner computes) and from nothing else.

use std::collections::BTreeMap;

use gpunion_agent_core::provider::event::{Event, Zones};
use gpunion_protocol::gpu::{GpuState, GpuView};
use gpunion_protocol::ids::GpuUuid;
use gpunion_protocol::rules::RulesRequest;
use gpunion_protocol::time::{BootMs, Now, WallMs};
use jiff::tz::TimeZone;

use super::machine::GIB;
use super::people::Owner;
use super::world::{Due, World};

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const DAY: i64 = 24 * 60;
const WEEK: i64 = 7 * DAY;
/// Own work that was seen for so long keeps its GPU; the owners here do not change that.
const OWN_AFTER: u64 = 10_000;

/// What an owner has set.
#[derive(Debug, Clone, Default)]
pub(super) struct Said {
    /// Minutes of the week, in UTC; none: always.
    hours: Vec<(i64, i64)>,
    own_work_is_nothing: bool,
    battery_is_nothing: bool,
}

/// What an agent was told since it started.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    discharging: bool,
    /// From when to when own work was on a GPU each time that was read.
    own_work: BTreeMap<GpuUuid, (BootMs, BootMs)>,
}

impl Said {
    pub(super) fn hear(&mut self, request: &RulesRequest) {
        for (key, value) in &request.set {
            match key.as_str() {
                "hours" if value == "always" => self.hours.clear(),
                // What is not understood here is never: then the first job that is taken fails the run.
                "hours" => self.hours = value.split("; ").map(|one| window(one).unwrap_or((0, 0))).collect(),
                "own_work" => self.own_work_is_nothing = value == "off",
                "battery" => self.battery_is_nothing = value == "off",
                _ => {}
            }
        }
    }

    fn within_hours(&self, wall: WallMs) -> bool {
        let minute = minute_of_week(wall);
        let within = |(from, until): &(i64, i64)| {
            (*from..*until).contains(&minute) || (*from..*until).contains(&(minute + WEEK))
        };
        self.hours.is_empty() || self.hours.iter().any(within)
    }

    /// Why nothing, or nothing on this GPU, may be taken now.
    pub(super) fn forbids(&self, gpu: Option<&GpuUuid>, seen: &Seen, now: Now) -> Option<&'static str> {
        if !self.within_hours(now.wall) {
            return Some("outside its owner's hours");
        }
        if seen.discharging && !self.battery_is_nothing {
            return Some("on battery");
        }
        let (from, until) = gpu.and_then(|gpu| seen.own_work.get(gpu))?;
        let long = (*until - *from).0 >= OWN_AFTER;
        (long && !self.own_work_is_nothing).then_some("on a GPU on which its owner computes")
    }
}

impl Seen {
    pub(super) fn battery(&mut self, discharging: Option<bool>) {
        self.discharging = discharging == Some(true);
    }

    pub(super) fn gpus(&mut self, view: &GpuView, now: Now) {
        let works = |gpu: &GpuUuid| {
            let sample = view.gpus.get(gpu).filter(|sample| sample.state == GpuState::Ok);
            let listed = sample.and_then(|sample| sample.processes.as_ref());
            listed.is_some_and(|list| {
                list.iter().any(|p| p.container.is_none() && p.memory.is_some_and(|memory| memory >= GIB))
            })
        };
        self.own_work.retain(|gpu, _| works(gpu));
        for gpu in view.gpus.keys().filter(|gpu| works(gpu)) {
            self.own_work.entry(gpu.clone()).or_insert((now.boot, now.boot)).1 = now.boot;
        }
    }
}

/// Monday at midnight is 0; the first day of all was a Thursday.
fn minute_of_week(wall: WallMs) -> i64 {
    (wall.0.div_euclid(60_000) + 3 * DAY).rem_euclid(WEEK)
}

/// As owners here write one: "Mon 08:05-08:15".
fn window(text: &str) -> Option<(i64, i64)> {
    let (day, times) = text.split_once(' ')?;
    let (from, until) = times.split_once('-')?;
    let minutes = |text: &str| {
        let (hour, minute) = text.split_once(':')?;
        Some(hour.parse::<i64>().ok()? * 60 + minute.parse::<i64>().ok()?)
    };
    let day = DAYS.iter().position(|known| *known == day)? as i64;
    let (from, until) = (minutes(from)?, minutes(until)?);
    let until = if until <= from { until + DAY } else { until };
    Some((day * DAY + from, day * DAY + until))
}

fn written(from: i64, length: i64) -> String {
    let from = from.rem_euclid(WEEK);
    let until = (from + length) % DAY;
    let (day, from) = (DAYS[(from / DAY) as usize], from % DAY);
    format!("{day} {:02}:{:02}-{:02}:{:02}", from / 60, from % 60, until / 60, until % 60)
}

impl World {
    pub(super) fn owner_sets(&mut self, host: usize, words: Vec<(&'static str, String)>) {
        let set = words.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let zones = Zones { named: None, here: Some(TimeZone::UTC) };
        let call = self.hosts[host].call();
        self.agent(host, Event::Rules { call, request: RulesRequest { set }, zones });
        self.leaves_from_now(host);
    }

    pub(super) fn battery_is(&mut self, host: usize, discharging: bool) {
        self.hosts[host].discharging = discharging;
        if self.hosts[host].agent.is_some() {
            self.agent(host, Event::Battery { discharging: Some(discharging) });
            self.leaves_from_now(host);
        }
    }

    /// Hours that are open now, close soon, and open again; some time later it is always.
    pub(super) fn some_rule(&mut self, host: usize) {
        let again = self.chance.mostly_short(20_000, 400_000);
        match self.chance.between(0, 3) {
            0 | 1 => {
                let wall = self.hosts[host].machine.clock.now(self.at).wall;
                let minute = minute_of_week(wall);
                let (open, closed) = (self.chance.between(1, 4) as i64, self.chance.between(1, 3) as i64);
                let first = written(minute - 1, open + 1);
                let hours = format!("{first}; {}", written(minute + open + closed, 5));
                self.after(1, Due::Owner { host, what: Owner::Sets(vec![("hours", hours)]) });
                let closes = (open * 60_000 - wall.0.rem_euclid(60_000)) as u64;
                self.after(closes + 5, Due::Owner { host, what: Owner::HoursEnd });
                let always = vec![("hours", "always".to_owned())];
                self.after(again.max(closes), Due::Owner { host, what: Owner::Sets(always) });
            }
            2 => {
                let word = ["leave", "stop", "off"][self.chance.index(3)].to_owned();
                self.after(1, Due::Owner { host, what: Owner::Sets(vec![("own_work", word)]) });
            }
            _ => {
                self.after(1, Due::Owner { host, what: Owner::Battery(true) });
                self.after(again, Due::Owner { host, what: Owner::Battery(false) });
            }
        }
    }

    /// All rules as they are when nobody has said anything, but for a rest that is short.
    pub(super) fn rules_of_calm(&mut self, host: usize) {
        let words = [("hours", "always"), ("own_work", "leave"), ("own_work_free", "20 s")];
        let words = words.map(|(key, value)| (key, value.to_owned())).to_vec();
        self.after(1_000, Due::Owner { host, what: Owner::Sets(words) });
        self.after(1_000, Due::Owner { host, what: Owner::Battery(false) });
    }
}
