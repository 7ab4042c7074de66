//! The hours in which the owner lends: windows of the week, as a clock on the owner's wall shows
//! them, with the zone by its IANA name (F44: an offset, or UTC, is an hour off for half the year).
//!
//! Pure: the zone's data is handed in. Windows are half-open, may cross midnight, and are never
//! longer than the owner said: where a clock that is set back shows a time twice, a window ends at the
//! first and begins at the second; where one is set forward past a time, that time is the moment at
//! which it is set.

use std::fmt;
use std::str::FromStr;

use gpunion_protocol::time::WallMs;
use jiff::civil::{Date, DateTime, Weekday};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Span, Timestamp};
use serde::{Deserialize, Serialize};

const DAY: u16 = 24 * 60;
const WEEK: u16 = 7 * DAY;
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
pub const ALWAYS: &str = "always";
const EXAMPLE: &str = "write them as \"Mon-Fri 18:00-08:00; Sat-Sun\", or \"always\"";

/// Minutes since Monday, 00:00: `from` below a week, `until` at most a week later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Window {
    from: u16,
    until: u16,
}

/// Kept and told as the owner wrote them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hours {
    text: String,
    /// Sorted, apart from each other; none: always.
    windows: Vec<Window>,
}

/// What they say at an instant, and when they say something else; absent: never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Open { until: Option<WallMs> },
    Closed { until: Option<WallMs> },
}

impl Default for Hours {
    fn default() -> Self {
        Self { text: ALWAYS.to_owned(), windows: Vec::new() }
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Hours> for String {
    fn from(hours: Hours) -> Self {
        hours.text
    }
}

impl TryFrom<String> for Hours {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Hours {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.eq_ignore_ascii_case(ALWAYS) {
            return Ok(Self::default());
        }
        let mut windows = Vec::new();
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            add_part(part, &mut windows)?;
        }
        if windows.is_empty() {
            return Err(format!("they name no time; {EXAMPLE}"));
        }
        Ok(Self { text: text.to_owned(), windows: joined(&windows) })
    }
}

/// `Mon-Fri,Sun 18:00-08:00,12:00-13:00`: days, times, or both.
fn add_part(part: &str, windows: &mut Vec<Window>) -> Result<(), String> {
    let starts_with_time = part.starts_with(|c: char| c.is_ascii_digit());
    let (days, times) = match part.split_once(char::is_whitespace) {
        _ if starts_with_time => ("daily", part),
        Some((days, times)) => (days, times.trim()),
        None => (part, "00:00-24:00"),
    };
    let days = days_of(days)?;
    for time in times.split(',').map(str::trim) {
        let bad = || format!("{time:?} is no time from one to another; {EXAMPLE}");
        let (from, until) = time.split_once('-').ok_or_else(bad)?;
        let (from, until) = (minute(from).ok_or_else(bad)?, minute(until).ok_or_else(bad)?);
        if from == DAY || from == until {
            return Err(format!("{time:?} begins where it ends; a whole day is 00:00-24:00"));
        }
        let until = if until < from { until + DAY } else { until };
        windows.extend(days.iter().map(|day| Window { from: day * DAY + from, until: day * DAY + until }));
    }
    Ok(())
}

/// `Mon-Fri,Sun` as numbers from Monday; a range may go over the end of the week.
fn days_of(text: &str) -> Result<Vec<u16>, String> {
    if text.eq_ignore_ascii_case("daily") {
        return Ok((0..7).collect());
    }
    let day = |name: &str| {
        let known = DAYS.iter().position(|known| known.eq_ignore_ascii_case(name.trim()));
        let why = || format!("{:?} is no day; days are {} and \"daily\"", name.trim(), DAYS.join(", "));
        known.and_then(|at| u16::try_from(at).ok()).ok_or_else(why)
    };
    let mut days = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        days.extend((0..=(last + 7 - first) % 7).map(|after| (first + after) % 7));
    }
    Ok(days)
}

fn minute(text: &str) -> Option<u16> {
    let (hour, minute) = text.trim().split_once(':')?;
    let plain = |text: &str| text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
    let (hour, minute) = (
        plain(hour).then(|| hour.parse::<u16>().ok())??,
        plain(minute).then(|| minute.parse::<u16>().ok())??,
    );
    let time = hour * 60 + minute;
    (minute < 60 && time <= DAY).then_some(time)
}

/// Windows that touch or overlap are one, also over the end of the week; none when all of it is open.
fn joined(windows: &[Window]) -> Vec<Window> {
    let mut sorted = Vec::new();
    for window in windows {
        if window.until > WEEK {
            sorted.push(Window { from: 0, until: window.until - WEEK });
        }
        sorted.push(Window { from: window.from, until: window.until.min(WEEK) });
    }
    sorted.sort_unstable();
    let mut joined: Vec<Window> = Vec::new();
    for window in sorted {
        match joined.last_mut() {
            Some(last) if window.from <= last.until => last.until = last.until.max(window.until),
            Some(_) | None => joined.push(window),
        }
    }
    let first = joined.first().copied();
    match (first, joined.last_mut()) {
        (Some(Window { from: 0, until: WEEK }), _) => joined.clear(),
        (Some(first @ Window { from: 0, .. }), Some(last)) if last.until == WEEK && *last != first => {
            last.until = WEEK + first.until;
            joined.remove(0);
        }
        (Some(_) | None, _) => {}
    }
    joined
}

impl Hours {
    pub fn are_always(&self) -> bool {
        self.windows.is_empty()
    }

    pub fn at(&self, wall: WallMs, zone: &TimeZone) -> State {
        if self.are_always() {
            return State::Open { until: None };
        }
        // A clock that shows no year that there is opens nothing.
        let Some(open) = self.around(wall, zone) else { return State::Closed { until: None } };
        match open.iter().find(|(_, until)| wall < *until) {
            Some((from, until)) if *from <= wall => State::Open { until: Some(*until) },
            Some((from, _)) => State::Closed { until: Some(*from) },
            None => State::Closed { until: None },
        }
    }

    /// From the week before to the second one after, in order, apart from each other.
    fn around(&self, wall: WallMs, zone: &TimeZone) -> Option<Vec<(WallMs, WallMs)>> {
        let today = zone.to_datetime(Timestamp::from_millisecond(wall.0).ok()?).date();
        let since_monday = today.weekday().since(Weekday::Monday);
        let monday = today.checked_sub(Span::new().days(i64::from(since_monday))).ok()?;
        let weeks = (-1..=2_i64).filter_map(|week| monday.checked_add(Span::new().weeks(week)).ok());
        let starts = weeks.flat_map(|monday| self.windows.iter().map(move |window| (monday, window)));
        let mut open: Vec<(WallMs, WallMs)> = Vec::new();
        for (from, until) in starts.filter_map(|(monday, window)| instants(monday, *window, zone)) {
            match open.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(until),
                Some(_) | None => open.push((from, until)),
            }
        }
        Some(open)
    }
}

fn instants(monday: Date, window: Window, zone: &TimeZone) -> Option<(WallMs, WallMs)> {
    let time = |minutes: u16| {
        let day = monday.checked_add(Span::new().days(i64::from(minutes / DAY))).ok()?;
        let (hour, minute) = (minutes % DAY / 60, minutes % 60);
        Some(day.at(i8::try_from(hour).ok()?, i8::try_from(minute).ok()?, 0, 0))
    };
    let (from, until) = (time(window.from)?, time(window.until)?);
    let (late, end) = (shown(from, zone, Which::Second)?, shown(until, zone, Which::First)?);
    // One that lies whole in an hour that comes twice is open in the first.
    let start = if late < end { late } else { shown(from, zone, Which::First)? };
    (start < end).then_some((start, end))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    First,
    Second,
}

/// When a clock in the zone shows this time, or is set forward past it.
fn shown(time: DateTime, zone: &TimeZone, which: Which) -> Option<WallMs> {
    let known = zone.to_ambiguous_timestamp(time);
    let at = match (known.offset(), which) {
        (AmbiguousOffset::Gap { .. }, _) => zone.following(known.earlier().ok()?).next()?.timestamp(),
        (AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. }, Which::First) => {
            known.earlier().ok()?
        }
        (AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. }, Which::Second) => {
            known.later().ok()?
        }
    };
    Some(WallMs(at.as_millisecond()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Berlin's rules, without a table of the machine's.
    fn berlin() -> TimeZone {
        TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap()
    }

    fn at(text: &str) -> WallMs {
        let stamp: Timestamp = text.parse().unwrap();
        WallMs(stamp.as_millisecond())
    }

    fn state(hours: &str, time: &str) -> State {
        hours.parse::<Hours>().unwrap().at(at(time), &berlin())
    }

    fn open(until: &str) -> State {
        State::Open { until: Some(at(until)) }
    }

    fn closed(until: &str) -> State {
        State::Closed { until: Some(at(until)) }
    }

    #[test]
    fn a_window_is_half_open_and_goes_over_midnight() {
        let nights = "Mon-Fri 18:00-08:00; Sat-Sun";
        // A Tuesday in winter.
        assert_eq!(state(nights, "2026-12-01T17:59:59.999+01"), closed("2026-12-01T18:00+01"));
        assert_eq!(state(nights, "2026-12-01T18:00+01"), open("2026-12-02T08:00+01"));
        assert_eq!(state(nights, "2026-12-02T07:59:59.999+01"), open("2026-12-02T08:00+01"));
        assert_eq!(state(nights, "2026-12-02T08:00+01"), closed("2026-12-02T18:00+01"));
        // Friday evening runs into the weekend, and that ends on Monday at midnight.
        assert_eq!(state(nights, "2026-12-04T20:00+01"), open("2026-12-07T00:00+01"));
        assert_eq!(state(nights, "2026-12-07T00:00+01"), closed("2026-12-07T18:00+01"));
    }

    #[test]
    fn sunday_night_goes_over_the_end_of_the_week() {
        assert_eq!(state("Sun 22:00-06:00", "2026-12-07T05:00+01"), open("2026-12-07T06:00+01"));
        assert_eq!(state("Sun 22:00-06:00", "2026-12-07T06:00+01"), closed("2026-12-13T22:00+01"));
        assert_eq!(state("Fri-Mon", "2026-12-08T00:00+01"), closed("2026-12-11T00:00+01"));
    }

    #[test]
    fn f44_six_in_the_evening_is_six_in_summer_and_in_winter() {
        assert_eq!(state("daily 18:00-20:00", "2026-07-01T17:00+02"), closed("2026-07-01T16:00Z"));
        assert_eq!(state("daily 18:00-20:00", "2026-12-01T17:00+01"), closed("2026-12-01T17:00Z"));
        // Over the night in which the clock is set back: closed at eight, as it shows.
        assert_eq!(state("daily 18:00-08:00", "2026-10-24T20:00+02"), open("2026-10-25T08:00+01"));
        assert_eq!(state("daily 18:00-08:00", "2026-03-28T20:00+01"), open("2026-03-29T08:00+02"));
    }

    #[test]
    fn f44_an_hour_that_does_not_exist_opens_and_closes_when_the_clock_is_set() {
        // From 02:00 to 03:00 on 2026-03-29.
        let set = "2026-03-29T01:00Z";
        assert_eq!(state("Sun 02:30-06:00", "2026-03-29T00:59:59.999Z"), closed(set));
        assert_eq!(state("Sun 02:30-06:00", set), open("2026-03-29T06:00+02"));
        assert_eq!(state("Sat 22:00-02:30", "2026-03-29T00:59:59.999Z"), open(set));
        assert_eq!(state("Sat 22:00-02:30", set), closed("2026-04-04T22:00+02"));
        assert_eq!(state("Sun 02:00-03:00", "2026-03-29T00:59:59Z"), closed("2026-04-05T02:00+02"));
    }

    #[test]
    fn f44_an_hour_that_comes_twice_is_lent_no_longer_than_was_said() {
        // 02:00 to 03:00 comes twice on 2026-10-25: at 00:00Z and at 01:00Z.
        assert_eq!(state("Sat 22:00-02:30", "2026-10-25T00:29:59.999Z"), open("2026-10-25T00:30Z"));
        assert_eq!(state("Sat 22:00-02:30", "2026-10-25T01:10Z"), closed("2026-10-31T22:00+01"));
        assert_eq!(state("Sun 02:30-06:00", "2026-10-25T00:40Z"), closed("2026-10-25T01:30Z"));
        assert_eq!(state("Sun 02:30-06:00", "2026-10-25T01:30Z"), open("2026-10-25T06:00+01"));
        assert_eq!(state("Sun 02:15-02:45", "2026-10-25T00:20Z"), open("2026-10-25T00:45Z"));
        assert_eq!(state("Sun 02:15-02:45", "2026-10-25T01:20Z"), closed("2026-11-01T02:15+01"));
        // Two that touch are one, in that night too.
        assert_eq!(
            state("Sun 00:00-02:30; Sun 02:30-06:00", "2026-10-25T00:40Z"),
            open("2026-10-25T06:00+01")
        );
    }

    #[test]
    fn a_week_that_is_open_throughout_has_no_end() {
        for text in ["always", "daily", "Mon-Sun 12:00-12:01,12:01-12:00", "Sat-Sun; Mon-Fri 00:00-24:00"] {
            assert_eq!(state(text, "2026-12-01T00:00Z"), State::Open { until: None }, "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (text, word) in [
            ("Mon-Fry 18:00-08:00", "\"Fry\""),
            ("Mon 18-08", "\"18-08\""),
            ("Mon 25:00-08:00", "\"25:00-08:00\""),
            ("Mon 08:60-09:00", "\"08:60-09:00\""),
            ("Mon 08:00-08:00", "begins where it ends"),
            ("Mon 24:00-08:00", "24:00-08:00"),
            (" ; ", "name no time"),
        ] {
            let why = text.parse::<Hours>().unwrap_err();
            assert!(why.contains(word), "{text}: {why}");
        }
    }

    #[test]
    fn they_are_kept_as_they_were_written() {
        let hours: Hours = " Mon-Fri 18:00-08:00; Sat-Sun ".parse().unwrap();
        assert_eq!(hours.to_string(), "Mon-Fri 18:00-08:00; Sat-Sun");
        let text = serde_json::to_string(&hours).unwrap();
        assert_eq!(serde_json::from_str::<Hours>(&text).unwrap(), hours);
    }

    fn window() -> impl Strategy<Value = String> {
        (0usize..7, 0usize..7, 0u16..1440, 1u16..=1440).prop_map(|(first, last, from, length)| {
            let until = (from + length) % DAY;
            let until = if until == from { (until + 1) % DAY } else { until };
            let (from, until) = ((from / 60, from % 60), (until / 60, until % 60));
            format!(
                "{}-{} {:02}:{:02}-{:02}:{:02}",
                DAYS[first], DAYS[last], from.0, from.1, until.0, until.1
            )
        })
    }

    proptest! {
        /// A clock on the wall decides, and nothing is lent that it does not show; whatever is open or
        /// closed stays so until it is said to change, and then does.
        #[test]
        fn the_clock_on_the_wall_decides(
            parts in proptest::collection::vec(window(), 1..4),
            minutes in 0i64..3 * 366 * 24 * 60,
        ) {
            let hours: Hours = parts.join("; ").parse().unwrap();
            let zone = berlin();
            let wall = WallMs(1_767_000_000_000 + minutes * 60_000);
            let shows = zone.to_datetime(Timestamp::from_millisecond(wall.0).unwrap());
            let minute = u16::from(shows.weekday().since(Weekday::Monday).unsigned_abs()) * DAY
                + u16::from(shows.hour().unsigned_abs()) * 60
                + u16::from(shows.minute().unsigned_abs());
            let said = hours.are_always() || hours.windows.iter().any(|w| {
                (w.from..w.until).contains(&minute) || (w.from..w.until).contains(&(minute + WEEK))
            });
            let twice = matches!(zone.to_ambiguous_timestamp(shows).offset(), AmbiguousOffset::Fold { .. });
            let is = hours.at(wall, &zone);
            match is {
                State::Open { until } => {
                    prop_assert!(said, "{hours} is open at {shows}");
                    if let Some(until) = until {
                        prop_assert!(until > wall);
                        prop_assert_eq!(hours.at(WallMs(until.0 - 1), &zone), is);
                        let closed = matches!(hours.at(until, &zone), State::Closed { .. });
                        prop_assert!(closed, "{} is to close at {:?}", hours, until);
                    }
                }
                State::Closed { until } => {
                    prop_assert!(!said || twice, "{hours} is closed at {shows}");
                    let until = until.expect("it opens again");
                    prop_assert!(until > wall);
                    prop_assert_eq!(hours.at(WallMs(until.0 - 1), &zone), is);
                    let opens = matches!(hours.at(until, &zone), State::Open { .. });
                    prop_assert!(opens, "{} is to open at {:?}", hours, until);
                }
            }
        }
    }
}
