//! The owner's own work on a lent GPU: when it has begun, and when it has been over for long enough
//! that the GPU may be lent again (F55).
//!
//! Of each GPU by itself (F57), and of what the driver lists alone: a foreign process that computes, or
//! that draws more than the desktop did when lending began. How busy a GPU is counts only while no
//! guest is on it, as nobody can tell then whose doing it is. What the driver does not tell concludes
//! nothing.

use std::fmt;

use gpunion_protocol::time::{BootMs, Now, WallMs};
use gpunion_protocol::units::Span;
use serde::{Deserialize, Serialize};

use super::{Rules, Says};

/// What the guest of such a GPU does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Yields {
    /// It is told, saves within its grace, and goes on elsewhere.
    Leaves,
    /// It is ended at once.
    Stops,
    /// Own work is nothing to a guest.
    Stays,
}

impl fmt::Display for Yields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leaves => "leave",
            Self::Stops => "stop",
            Self::Stays => "off",
        })
    }
}

/// What of a GPU is no guest's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Foreign {
    /// Who computes there; absent: the driver gives no list.
    pub computing: Option<Vec<u32>>,
    /// Bytes of those who compute.
    pub compute: u64,
    /// Bytes of those who only draw; without a list all bytes that are used.
    pub drawn: u64,
    /// Percent of the time in which the GPU was busy; absent where a guest may have had part in it.
    pub busy: Option<u32>,
    /// A guest is on it, or may still hold something.
    pub guest: bool,
}

/// How far it is with one GPU.
#[derive(Debug, Default)]
pub struct OwnWork {
    state: State,
    pids: Vec<u32>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Never looked at: work that is there now may have been there for long.
    #[default]
    New,
    Free,
    Begun {
        since: BootMs,
    },
    Works,
    /// Nothing of it is there any more.
    Rests {
        since: BootMs,
        until: WallMs,
    },
}

impl Foreign {
    /// None: it can't be told.
    fn is_work(&self, rules: &Rules, baseline: Option<u64>) -> Option<bool> {
        let drawn = self.drawn >= baseline.unwrap_or(self.drawn).saturating_add(rules.own_memory.0);
        let busy = self.busy.is_some_and(|busy| busy >= rules.own_busy);
        match &self.computing {
            // Without a list the guest's memory can't be told from others'.
            None if self.guest => None,
            None => Some(drawn || busy),
            Some(computing) => {
                let holds = self.compute >= rules.own_memory.0;
                Some(holds && !computing.is_empty() || drawn || busy && !computing.is_empty())
            }
        }
    }
}

impl OwnWork {
    /// `baseline`: what was drawn when lending began.
    pub fn see(&mut self, rules: &Rules, foreign: &Foreign, baseline: Option<u64>, now: Now) {
        let Some(is_work) = foreign.is_work(rules, baseline) else {
            if let State::Begun { .. } = self.state {
                self.state = State::Free;
            }
            return;
        };
        if is_work {
            self.pids = foreign.computing.clone().unwrap_or_default();
        }
        let now_free = State::Rests {
            since: now.boot,
            until: WallMs(now.wall.0.saturating_add(i64::try_from(rules.own_free.0).unwrap_or(i64::MAX))),
        };
        self.state = match (self.state, is_work) {
            (State::New | State::Works | State::Rests { .. }, true) => State::Works,
            (State::Free, true) => State::Begun { since: now.boot },
            (State::Begun { since }, true) if now.boot - since >= rules.own_after => State::Works,
            (begun @ State::Begun { .. }, true) => begun,
            (State::New | State::Free | State::Begun { .. }, false) => State::Free,
            (State::Works, false) => now_free,
            (State::Rests { since, .. }, false) if now.boot - since >= rules.own_free => State::Free,
            (rests @ State::Rests { .. }, false) => rests,
        };
    }

    /// It is the owner's alone for now.
    pub fn is_taken(&self) -> bool {
        match self.state {
            State::Works | State::Rests { .. } => true,
            State::New | State::Free | State::Begun { .. } => false,
        }
    }

    pub fn says(&self, rules: &Rules) -> Says {
        match self.state {
            State::New | State::Free => Says::yes("No work of yours is on it"),
            State::Begun { .. } => {
                Says::yes(format!("Work of yours has begun on it, less than {} ago", Span(rules.own_after)))
            }
            State::Works => match self.pids.as_slice() {
                [] => Says::no("Your own work is on it"),
                [pid] => Says::no(format!("Your own work is on it (process {pid})")),
                [pid, more @ ..] => {
                    Says::no(format!("Your own work is on it (process {pid} and {} more)", more.len()))
                }
            },
            State::Rests { .. } => Says::no(format!(
                "Your own work on it is over; it is lent again when it has been free for {}",
                Span(rules.own_free)
            )),
        }
    }

    /// When it is lent again if nothing comes.
    pub fn until(&self) -> Option<WallMs> {
        match self.state {
            State::Rests { until, .. } => Some(until),
            State::New | State::Free | State::Begun { .. } | State::Works => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use gpunion_protocol::time::Millis;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn at(second: u64) -> Now {
        Now { boot: BootMs(second * 1_000), wall: WallMs(second as i64 * 1_000) }
    }

    fn computing(bytes: u64) -> Foreign {
        Foreign { computing: Some(vec![7]), compute: bytes, ..Foreign::default() }
    }

    fn nobody() -> Foreign {
        Foreign { computing: Some(vec![]), ..Foreign::default() }
    }

    fn free() -> OwnWork {
        let mut work = OwnWork::default();
        work.see(&Rules::default(), &nobody(), Some(0), at(0));
        work
    }

    #[test]
    fn f55_work_counts_when_it_has_lasted_and_is_over_when_it_has_been_gone_for_long() {
        let (rules, mut work) = (Rules::default(), free());
        for second in 1..=10 {
            work.see(&rules, &computing(GIB), Some(0), at(second));
            assert!(!work.is_taken(), "{second}");
        }
        work.see(&rules, &computing(GIB), Some(0), at(11));
        assert!(work.is_taken());
        work.see(&rules, &nobody(), Some(0), at(20));
        assert_eq!(work.until(), Some(WallMs(320_000)));
        work.see(&rules, &nobody(), Some(0), at(319));
        assert!(work.is_taken());
        // A run that begins anew, however short, begins the rest anew.
        work.see(&rules, &computing(GIB), Some(0), at(319));
        work.see(&rules, &nobody(), Some(0), at(320));
        work.see(&rules, &nobody(), Some(0), at(619));
        assert!(work.is_taken());
        work.see(&rules, &nobody(), Some(0), at(620));
        assert!(!work.is_taken());
    }

    #[test]
    fn a_moment_of_work_and_little_of_it_are_nothing() {
        let (rules, mut work) = (Rules::default(), free());
        work.see(&rules, &computing(GIB), Some(0), at(1));
        work.see(&rules, &nobody(), Some(0), at(2));
        for second in 3..100 {
            work.see(&rules, &computing(GIB - 1), Some(0), at(second));
        }
        work.see(&rules, &computing(GIB), Some(0), at(100));
        assert!(!work.is_taken());
    }

    #[test]
    fn work_that_is_there_when_the_agent_comes_needs_to_last_no_longer() {
        let mut work = OwnWork::default();
        work.see(&Rules::default(), &computing(GIB), Some(0), at(1));
        assert!(work.is_taken());
    }

    #[test]
    fn the_desktop_is_no_work_and_a_game_is() {
        let (rules, mut work) = (Rules::default(), free());
        let draws = |bytes, busy| Foreign { drawn: bytes, busy: Some(busy), ..nobody() };
        for second in 1..100 {
            work.see(&rules, &draws(3 * GIB, 60), Some(2 * GIB + 1), at(second));
            assert!(!work.is_taken(), "a browser and a film");
        }
        for second in 100..=110 {
            work.see(&rules, &draws(3 * GIB, 60), Some(2 * GIB), at(second));
        }
        assert!(work.is_taken());
    }

    #[test]
    fn a_busy_gpu_is_work_only_of_whoever_computes_on_it() {
        let (rules, mut work) = (Rules::default(), free());
        let small = Foreign { busy: Some(20), ..computing(1) };
        for second in 1..=11 {
            work.see(&rules, &small, Some(0), at(second));
        }
        assert!(work.is_taken());
        let mut work = free();
        for second in 1..=30 {
            work.see(&rules, &Foreign { busy: Some(100), ..nobody() }, Some(0), at(second));
        }
        assert!(!work.is_taken(), "a counter that latched");
    }

    #[test]
    fn f22_without_a_list_a_guest_hides_the_owner_and_nothing_is_concluded() {
        let rules = Rules { own_after: Millis(0), ..Rules::default() };
        let all = |guest| Foreign { drawn: 5 * GIB, guest, ..Foreign::default() };
        let mut work = free();
        for second in 1..=30 {
            work.see(&rules, &all(true), Some(0), at(second));
        }
        assert!(!work.is_taken());
        for second in 31..=32 {
            work.see(&rules, &all(false), Some(GIB), at(second));
        }
        assert!(work.is_taken());
        work.see(&rules, &all(true), Some(GIB), at(33));
        assert!(work.is_taken(), "what was known stays known");
    }
}
