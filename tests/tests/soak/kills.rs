//! Who is killed when, and for how long it is away.

use std::fmt;
use std::time::{Duration, Instant};

use gpunion_protocol::guest::INIT_PATH;
use gpunion_protocol::job::{AttemptState, EndCause, JobView};
use system_tests::campus::{Luck, Pair};

use crate::now;

/// Between two kills, and how long who was killed is away.
const EACH_MS: (u64, u64) = (1_500, 5_000);
const AWAY_MS: (u64, u64) = (0, 2_000);
const AGAIN_MS: (u64, u64) = (100, 300);
/// Of each kind of kill at least so many, else the test has not tested it.
const LEAST: usize = 3;
/// A job that breaks off four times in a row without getting any further is held for its member.
/// That is as it should be, and not what is asked here.
const SPARED_AFTER: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Agent,
    Init,
    Relay,
    Engine,
}

const VICTIMS: [Victim; 4] = [Victim::Agent, Victim::Init, Victim::Relay, Victim::Engine];

pub(crate) struct Kills {
    /// Each once before any again.
    turn: Vec<Victim>,
    next: Instant,
    /// Who is away, at which provider, and until when.
    away: Vec<(Victim, usize, Instant)>,
    killed: [usize; VICTIMS.len()],
}

impl fmt::Display for Kills {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let killed = VICTIMS.iter().zip(self.killed).map(|(victim, times)| format!("{victim:?} {times}"));
        write!(f, "killed: {}", killed.collect::<Vec<_>>().join(", "))
    }
}

impl Kills {
    pub(crate) fn from_now_on() -> Self {
        Self { turn: Vec::new(), next: now(), away: Vec::new(), killed: [0; VICTIMS.len()] }
    }

    pub(crate) fn tick(&mut self, pair: &mut Pair, jobs: &[JobView], luck: &mut Luck, goes_on: bool) {
        let back: Vec<_> = self.away.extract_if(.., |(_, _, until)| *until <= now()).collect();
        for (victim, at, _) in back {
            raise(pair, victim, at);
        }
        if !goes_on || now() < self.next {
            return;
        }
        if self.turn.is_empty() {
            self.turn = VICTIMS.to_vec();
            luck.shuffle(&mut self.turn);
        }
        let (victim, at) = (self.turn[0], luck.index(pair.providers.len()));
        // One that is away, or nobody there: the same again in a moment.
        if self.is_away(victim, at) || is_spared(pair, jobs, victim, at) || !kill(pair, victim, at, luck) {
            self.next = in_a_while(luck, AGAIN_MS);
            return;
        }
        self.turn.remove(0);
        self.killed[victim as usize] += 1;
        self.away.push((victim, at, in_a_while(luck, AWAY_MS)));
        self.next = in_a_while(luck, EACH_MS);
    }

    fn is_away(&self, victim: Victim, at: usize) -> bool {
        self.away.iter().any(|(who, there, _)| *who == victim && (*there == at || victim == Victim::Relay))
    }

    pub(crate) fn raise_all(&mut self, pair: &mut Pair) {
        for (victim, at, _) in std::mem::take(&mut self.away) {
            raise(pair, victim, at);
        }
    }

    pub(crate) fn were_many(&self) {
        assert!(self.killed.iter().all(|times| *times >= LEAST), "{self}");
    }
}

fn in_a_while(luck: &mut Luck, (from, to): (u64, u64)) -> Instant {
    now() + Duration::from_millis(luck.between(from, to))
}

/// A job there has broken off so often that it could come to be held.
fn is_spared(pair: &Pair, jobs: &[JobView], victim: Victim, at: usize) -> bool {
    let breaks = matches!(victim, Victim::Init | Victim::Engine);
    let name = &pair.providers[at].name;
    breaks
        && jobs.iter().filter(|job| !job.state.is_final()).any(|job| {
            let there = job.attempts.last().is_some_and(|attempt| attempt.device_name == *name);
            let broken = |state: &AttemptState| {
                matches!(state, AttemptState::Ended { cause: EndCause::Broken { .. } })
            };
            there && job.attempts.iter().filter(|one| broken(&one.state)).count() >= SPARED_AFTER
        })
}

/// kill -9; false when there is nobody.
fn kill(pair: &mut Pair, victim: Victim, at: usize, luck: &mut Luck) -> bool {
    match victim {
        Victim::Agent => pair.providers[at].kill_agent().unwrap(),
        Victim::Relay => pair.relay.kill().unwrap(),
        Victim::Engine => pair.engines[at].kill_both().unwrap(),
        Victim::Init => return pair.engines[at].kill_first_process(INIT_PATH, luck.index(16)).unwrap(),
    }
    true
}

/// As a system's service manager would.
fn raise(pair: &mut Pair, victim: Victim, at: usize) {
    match victim {
        Victim::Agent => pair.providers[at].start_agent().unwrap(),
        Victim::Relay => pair.relay.start_again().unwrap(),
        Victim::Engine => pair.engines[at].start().unwrap(),
        // A guest is its agent's.
        Victim::Init => {}
    }
}
