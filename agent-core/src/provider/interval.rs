//! How long a job computes from one checkpoint to the next, where its spec does not say it: what one
//! costs the job, against how often this provider leaves.
//!
//! Numbers alone; `checkpoint.rs` does what they say. What a checkpoint costs is the time that the
//! job stands still for it, and what reading and sending take from it while it computes. With that
//! cost C and the mean time M between departures the least work is lost at √(2·C·M) (J. W. Young,
//! "A first order approximation to the optimum checkpoint interval", Communications of the ACM 17(9),
//! 1974, 530–531), as J. T. Daly corrected it ("A higher order estimate of the optimum checkpoint
//! interval for restart dumps", Future Generation Computer Systems 22(3), 2006, 303–312, eq. 37).
//! Whatever that is, all checkpoints together cost no more than a fiftieth of the run.

use gpunion_protocol::job::EndCause;
use gpunion_protocol::time::{BootMs, Millis, Now, WallMs};

use super::Provider;

/// Of the time in which the first pass reads, so much is taken from the job: one part in this many.
/// The reader may use cores and a disk that the job would have had.
const READING: u64 = 10;
/// The same of the time in which packs travel: that is mostly waiting for the network.
const SENDING: u64 = 50;
/// Checkpoints may cost one part in this many of the run: two per cent.
const OF_RUN: u64 = 50;
/// What one is taken to cost before one was taken.
const COST_UNKNOWN: Millis = Millis(1_000);
const SHORTEST: Millis = Millis::from_secs(15);
pub(super) const LONGEST: Millis = Millis::from_secs(30 * 60);

const HOUR: i64 = 3_600_000;
const WEEK: i64 = 7 * 24 * HOUR;
/// A provider of whom nothing is known leaves once in so long.
pub(super) const DEPARTS: Millis = Millis::from_secs(4 * 3_600);
/// Hours lent that the guess weighs as much as, of the provider and of each hour of its week.
const GUESS_WEIGHS: f64 = 4.0;
/// A stay that lasted longer was not one: the clock jumped.
const STAY_MOST: i64 = 366 * 24 * HOUR;

/// What the checkpoints of an attempt have cost its job.
#[derive(Debug)]
pub(super) struct Costs {
    /// Since when it is counted.
    since: BootMs,
    spent: Millis,
    /// Of one, the newest counting half; absent before the first.
    each: Option<Millis>,
    /// Of the one that is under way.
    began: BootMs,
    stopped: Option<BootMs>,
    went_on: Option<BootMs>,
    sent: Option<BootMs>,
}

impl Costs {
    pub(super) fn new(since: BootMs) -> Self {
        Self { since, spent: Millis(0), each: None, began: since, stopped: None, went_on: None, sent: None }
    }

    pub(super) fn begins(&mut self, now: BootMs) {
        self.began = now;
        (self.stopped, self.went_on, self.sent) = (None, None, None);
    }

    pub(super) fn stops(&mut self, now: BootMs) {
        self.stopped = Some(now);
    }

    pub(super) fn goes_on(&mut self, now: BootMs) {
        self.went_on = Some(now);
    }

    pub(super) fn is_sent(&mut self, now: BootMs) {
        self.sent = Some(now);
    }

    /// It was taken, or given up. One that did not get as far as a stop tells nothing of what one costs.
    pub(super) fn is_over(&mut self, now: BootMs) {
        let Some(stopped) = self.stopped.take() else { return };
        let went_on = self.went_on.unwrap_or(now);
        let sending = self.sent.map_or(Millis(0), |sent| sent - went_on);
        let loss = loss(stopped - self.began, went_on - stopped, sending);
        self.spent = self.spent + loss;
        self.each = Some(self.each.map_or(loss, |before| Millis((before.0 + loss.0) / 2)));
    }

    /// Before then one more would make them cost more than their part of the run. Of the first nobody
    /// knows.
    pub(super) fn not_before(&self) -> BootMs {
        let all = self.each.map_or(Millis(0), |each| self.spent + each);
        self.since + Millis(all.0.saturating_mul(OF_RUN))
    }

    pub(super) fn interval(&self, departs: Millis) -> Millis {
        interval(self.each.unwrap_or(COST_UNKNOWN), departs)
    }
}

fn loss(reading: Millis, stood: Millis, sending: Millis) -> Millis {
    stood + Millis(reading.0 / READING) + Millis(sending.0 / SENDING)
}

/// Within the bounds; the part of the run wins over all.
fn interval(cost: Millis, departs: Millis) -> Millis {
    let best = Millis(optimum(cost.0 as f64, departs.0 as f64) as u64);
    best.clamp(SHORTEST, LONGEST).max(Millis(cost.0.saturating_mul(OF_RUN)))
}

/// Daly's; all of one unit.
fn optimum(cost: f64, departs: f64) -> f64 {
    if cost >= 2.0 * departs {
        return departs;
    }
    let part = cost / (2.0 * departs);
    (2.0 * cost * departs).sqrt() * (1.0 + part.sqrt() / 3.0 + part / 9.0) - cost
}

/// A guest that was here, by this machine's wall clock.
#[derive(Debug, Clone, Copy)]
struct Stay {
    from: WallMs,
    until: WallMs,
    /// It ended because the provider left.
    departed: bool,
}

#[derive(Debug, Default)]
struct Seen {
    hours: f64,
    departures: f64,
}

impl Seen {
    /// Departures in an hour, where so many were expected.
    fn rate(&self, expected: f64) -> f64 {
        (self.departures + GUESS_WEIGHS * expected) / (self.hours + GUESS_WEIGHS)
    }
}

/// The mean time between departures, as this hour of the week and the next have been. What a few
/// weeks can't tell of one hour is taken from all hours, and what those can't tell from a guess.
fn between(stays: impl Iterator<Item = Stay>, now: WallMs) -> Millis {
    let begins = now.0.rem_euclid(WEEK) / HOUR * HOUR;
    let (mut all, mut here) = (Seen::default(), Seen::default());
    for stay in stays {
        let lasted = stay.until.0.saturating_sub(stay.from.0);
        if !(0..=STAY_MOST).contains(&lasted) {
            continue;
        }
        all.hours += hours(lasted);
        here.hours += hours(overlap(stay, begins));
        if stay.departed {
            all.departures += 1.0;
            here.departures += f64::from(u8::from(since_window(stay.until, begins) < 2 * HOUR));
        }
    }
    let guess = HOUR as f64 / DEPARTS.0 as f64;
    let rate = here.rate(all.rate(guess));
    Millis((HOUR as f64 / rate) as u64)
}

fn hours(ms: i64) -> f64 {
    ms as f64 / HOUR as f64
}

/// How long ago the window of the week began last.
fn since_window(at: WallMs, begins: i64) -> i64 {
    at.0.saturating_sub(begins).rem_euclid(WEEK)
}

/// How much of it was in the two hours of each week that begin there.
fn overlap(stay: Stay, begins: i64) -> i64 {
    let mut window = stay.from.0.saturating_sub(since_window(stay.from, begins));
    let mut within = 0;
    while window < stay.until.0 {
        let ends = window.saturating_add(2 * HOUR).min(stay.until.0);
        within += (ends - window.max(stay.from.0)).max(0);
        window = window.saturating_add(WEEK);
    }
    within
}

impl Provider {
    /// How long a guest may count on this provider now, in the mean.
    pub(super) fn departs_after(&self, now: Now) -> Millis {
        let were = self.history.iter().filter_map(|entry| {
            let departed = matches!(entry.cause.as_ref()?, EndCause::Reclaimed | EndCause::Left);
            Some(Stay { from: entry.from, until: entry.until, departed })
        });
        let are = self.attempts.values().filter(|attempt| attempt.may_live()).filter_map(|attempt| {
            Some(Stay { from: attempt.record.started?, until: now.wall, departed: false })
        });
        between(were.chain(are), now.wall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MONDAY: i64 = 4 * 24 * HOUR;

    fn seconds(cost: f64, departs: f64) -> f64 {
        (optimum(cost, departs) * 1_000.0).round() / 1_000.0
    }

    /// By hand from the formula: √(2·C·M)·(1 + √(C/2M)/3 + (C/2M)/9) − C.
    #[test]
    fn the_optimum_is_that_of_the_papers() {
        // √28800 = 169.7056; C/2M = 1/28800, its root 0.0058926: 169.7056 · 1.0019680 − 1.
        assert_eq!(seconds(1.0, 14_400.0), 169.04);
        // √4000 = 63.24555; C/2M = 0.1, its root 0.3162278: 63.24555 · 1.1165204 − 20.
        assert_eq!(seconds(20.0, 100.0), 50.615);
        // √86400 = 293.9388; C/2M = 1/2400, its root 0.0204124: 293.9388 · 1.0068504 − 6.
        assert_eq!(seconds(6.0, 7_200.0), 289.952);
        assert_eq!(seconds(0.0, 14_400.0), 0.0);
        assert_eq!(seconds(200.0, 100.0), 100.0, "who leaves before one is taken twice");
        assert_eq!(seconds(500.0, 100.0), 100.0);
        let young = (2.0 * 0.1 * 14_400.0_f64).sqrt();
        assert!((optimum(0.1, 14_400.0) - young).abs() < 0.1, "a small cost leaves Young's as it is");
    }

    #[test]
    fn an_interval_is_neither_short_nor_long_and_costs_a_fiftieth_at_most() {
        let of = |cost: u64, hours: u64| interval(Millis(cost), Millis::from_secs(hours * 3_600)).0;
        assert_eq!(of(1_000, 4), 169_039);
        assert_eq!(of(0, 4), 15_000);
        assert_eq!(of(7, 4), 15_000, "14.2 s");
        assert_eq!(of(8, 4), 15_173);
        assert_eq!(of(1_000, 10_000), 1_800_000);
        assert_eq!(of(12_000, 4), 600_000, "it would be 580 s");
        assert_eq!(of(40_000, 4), 2_000_000, "also when that is longer than the longest");
        assert_eq!(of(u64::MAX, 4), u64::MAX);
    }

    #[test]
    fn what_one_costs_is_its_stop_and_a_part_of_its_reading_and_sending() {
        let mut costs = Costs::new(BootMs(1_000));
        assert_eq!(costs.not_before(), BootMs(1_000), "of the first nobody knows");
        assert_eq!(costs.interval(DEPARTS), Millis(169_039));
        costs.begins(BootMs(10_000));
        costs.stops(BootMs(12_000));
        costs.goes_on(BootMs(12_300));
        costs.is_sent(BootMs(17_300));
        costs.is_over(BootMs(17_500));
        // 300 + 2,000/10 + 5,000/50 ms.
        assert_eq!((costs.each, costs.spent), (Some(Millis(600)), Millis(600)));
        assert_eq!(costs.not_before(), BootMs(1_000 + 50 * 1_200));
        // A stop that was cut, and nothing that was sent.
        costs.begins(BootMs(70_000));
        costs.stops(BootMs(71_000));
        costs.is_over(BootMs(73_000));
        assert_eq!((costs.each, costs.spent), (Some(Millis(1_350)), Millis(2_700)));
        // One that did not get that far.
        costs.begins(BootMs(200_000));
        costs.is_over(BootMs(260_000));
        assert_eq!((costs.each, costs.spent), (Some(Millis(1_350)), Millis(2_700)));
        assert_eq!(costs.not_before(), BootMs(1_000 + 50 * 4_050));
    }

    #[test]
    fn who_is_not_known_leaves_once_in_four_hours() {
        assert_eq!(between(std::iter::empty(), WallMs(0)), DEPARTS);
    }

    /// Lends from ten on Monday until nine on the next Monday, ten times.
    fn mondays() -> Vec<Stay> {
        let stay = |n: i64| Stay {
            from: WallMs(MONDAY + n * WEEK + 10 * HOUR),
            until: WallMs(MONDAY + (n + 1) * WEEK + 9 * HOUR),
            departed: true,
        };
        (0..10).map(stay).collect()
    }

    #[test]
    fn who_comes_on_mondays_is_expected_on_mondays() {
        let at = |hour: i64| between(mondays().into_iter(), WallMs(MONDAY + 20 * WEEK + hour * HOUR + 1));
        // Of all hours: (10 + 1)/(1,670 + 4) departures in one. From nine to eleven on Mondays ten in
        // ten hours: (10 + 4·0.0065711)/(10 + 4) in one.
        assert_eq!(at(9).0 / 1_000, 5_026);
        // From eight to ten ten as well, in ten hours; the hour before, none in twenty.
        assert_eq!(at(8), at(9));
        assert!(at(7).0 > 900 * HOUR as u64, "{:?}", at(7));
        assert_eq!(at(7), at(60), "as at any other hour");
    }

    #[test]
    fn one_that_stays_is_trusted_more_each_hour() {
        let stays = |hours: i64| {
            let stay = Stay { from: WallMs(0), until: WallMs(hours * HOUR), departed: false };
            between(std::iter::once(stay), WallMs(hours * HOUR))
        };
        assert!(DEPARTS < stays(1) && stays(1) < stays(24) && stays(24) < stays(24 * 30));
    }

    #[test]
    fn a_clock_that_jumped_tells_nothing() {
        for (from, until) in [(0, i64::MAX), (i64::MIN, i64::MAX), (10 * HOUR, 0), (0, STAY_MOST + 1)] {
            let stay = Stay { from: WallMs(from), until: WallMs(until), departed: true };
            assert_eq!(between(std::iter::once(stay), WallMs(0)), DEPARTS, "{from} to {until}");
        }
        let year = Stay { from: WallMs(0), until: WallMs(STAY_MOST), departed: false };
        assert!(between(std::iter::once(year), WallMs(i64::MIN)) > DEPARTS);
    }
}
