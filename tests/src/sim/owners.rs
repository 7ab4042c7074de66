//! A model of owners: when their machines leave, how, and for how long. Made up, and written down here
//! whole: no figure of it was measured on a campus.
//!
//! Three classes. A desktop of an office is taken back when its owner comes in the morning, now and then
//! in working hours, and hardly at night. A workstation of a lab is quiet for days, and then for two hours
//! taken back again and again, for minutes. A laptop is closed, carried away and loses its network at any
//! time of the day, and at night mostly lies still. A reclaim ends guests at once; a notice is "stop
//! lending", with the owner's grace; away is asleep and unreachable; lost is power that goes.
//!
//! Rates are departures in a thousand hours of lending, drawn minute by minute from the seed alone. The
//! world begins on a Monday at midnight.

use super::chance::{Chance, Stream};

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
/// A burst of a workstation lasts so long, and one hour in so many begins one.
const BURST_HOURS: u64 = 2;
const BURST_ONE_IN: u64 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Office,
    Bursts,
    Laptop,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Notice,
    Reclaim,
    Away,
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Departure {
    /// World time, and how long until it lends again, in milliseconds.
    pub(super) at: u64,
    pub(super) lasts: u64,
    pub(super) how: How,
}

/// Departures in a thousand hours, and how long they last in minutes, from and to.
#[derive(Debug, Clone, Copy)]
struct Rates {
    notice: u64,
    reclaim: u64,
    away: u64,
    lost: u64,
    minutes: (u64, u64),
}

/// Of this hour of the week.
fn rates(class: Class, hour: u64, burst: bool) -> Rates {
    let (of_day, workday) = (hour % 24, hour / 24 % 7 < 5);
    match class {
        // Whoever comes in takes their own machine.
        Class::Office if workday && of_day == 8 => {
            Rates { notice: 100, reclaim: 700, away: 0, lost: 2, minutes: (30, 240) }
        }
        Class::Office if workday && (9..18).contains(&of_day) => {
            Rates { notice: 60, reclaim: 200, away: 0, lost: 4, minutes: (10, 120) }
        }
        Class::Office => Rates { notice: 4, reclaim: 10, away: 0, lost: 2, minutes: (10, 120) },
        Class::Bursts if burst => Rates { notice: 400, reclaim: 1_600, away: 0, lost: 5, minutes: (2, 20) },
        Class::Bursts => Rates { notice: 10, reclaim: 15, away: 0, lost: 3, minutes: (10, 120) },
        Class::Laptop if (7..23).contains(&of_day) => {
            Rates { notice: 100, reclaim: 100, away: 400, lost: 60, minutes: (5, 180) }
        }
        Class::Laptop => Rates { notice: 5, reclaim: 5, away: 40, lost: 10, minutes: (5, 180) },
    }
}

impl Rates {
    /// Which of them comes in this minute, if any does.
    fn draw(&self, chance: &mut Chance) -> Option<How> {
        let kinds = [
            (How::Notice, self.notice),
            (How::Reclaim, self.reclaim),
            (How::Away, self.away),
            (How::Lost, self.lost),
        ];
        let mut lot = chance.between(0, 1_000 * 60 - 1);
        for (how, rate) in kinds {
            if lot < rate {
                return Some(how);
            }
            lot -= rate;
        }
        None
    }
}

/// All departures of one machine in so many hours, oldest first; none begins while another lasts.
pub(super) fn departures(class: Class, seed: u64, machine: u64, hours: u64) -> Vec<Departure> {
    let mut chance = Chance::of(seed, Stream::Owners, machine);
    let (mut all, mut burst_until) = (Vec::new(), 0);
    let mut at = MINUTE;
    while at < hours * HOUR {
        if at.is_multiple_of(HOUR) && chance.one_in(BURST_ONE_IN) {
            burst_until = at + BURST_HOURS * HOUR;
        }
        let rates = rates(class, at / HOUR % (7 * 24), at < burst_until);
        if let Some(how) = rates.draw(&mut chance) {
            let lasts = chance.between(rates.minutes.0, rates.minutes.1) * MINUTE;
            // Not on the minute, on which much else happens.
            let second = chance.between(0, MINUTE - 1);
            all.push(Departure { at: at + second, lasts, how });
            at += lasts + MINUTE;
        }
        at += MINUTE;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_owners_and_another_gives_others() {
        let of = |seed, machine| departures(Class::Laptop, seed, machine, 14 * 24);
        assert_eq!(of(1, 0), of(1, 0));
        assert_ne!(of(1, 0), of(2, 0));
        assert_ne!(of(1, 0), of(1, 1));
    }

    #[test]
    fn departures_do_not_overlap() {
        for class in [Class::Office, Class::Bursts, Class::Laptop] {
            let all = departures(class, 3, 0, 60 * 24);
            assert!(all.windows(2).all(|two| two[0].at + two[0].lasts <= two[1].at), "{class:?}");
        }
    }

    /// Of the time in which it lends: as often as its rates say, within a tenth.
    #[test]
    fn an_hour_has_as_many_departures_as_its_rate_says() {
        let mut chance = Chance::of(9, Stream::Owners, 0);
        let office = rates(Class::Office, 10, false);
        let (mut reclaims, mut notices, mut away) = (0, 0, 0);
        for _ in 0..2_000 * 60 * 10 {
            match office.draw(&mut chance) {
                Some(How::Reclaim) => reclaims += 1,
                Some(How::Notice) => notices += 1,
                Some(How::Away) => away += 1,
                Some(How::Lost) | None => {}
            }
        }
        // Twenty thousand hours: 4,000 and 1,200 and none are expected.
        assert!((3_600..4_400).contains(&reclaims), "{reclaims}");
        assert!((1_080..1_320).contains(&notices), "{notices}");
        assert_eq!(away, 0, "a desktop is not carried away");
    }

    #[test]
    fn each_class_leaves_when_its_owner_is_there() {
        let all = departures(Class::Office, 5, 0, 700 * 24);
        let by_day = |from, to| {
            all.iter()
                .filter(|d| (from..to).contains(&(d.at / HOUR % 24)) && d.at / HOUR / 24 % 7 < 5)
                .count()
        };
        assert!(by_day(8, 18) > 5 * by_day(18, 24), "{} {}", by_day(8, 18), by_day(18, 24));
        let laptop = departures(Class::Laptop, 5, 0, 100 * 24);
        assert!(laptop.iter().filter(|d| d.how == How::Away).count() > laptop.len() / 3);
    }
}
