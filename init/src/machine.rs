//! What init decides: one pure machine, told what happened and when, that answers what to do.
//!
//! No clock, no files, no processes here. It must never lose the report of how the program
//! ended, never let anything run past the deadline of a guest with egress, and do nothing more
//! once the end was asked for: these are the owner's and the member's guarantees, and the
//! property tests beside it hold them.

use std::collections::BTreeMap;

use gpunion_protocol::WIRE_VERSION;
use gpunion_protocol::guest::{Begin, Exit, FromInit, ToInit};
use gpunion_protocol::time::BootMs;

use crate::events::{BootUs, Census, Effect, Event, ToAll, Usage};
use crate::saved::Saved;

const MILLISECOND: u64 = 1_000;
const SECOND: u64 = 1_000_000;
/// Between two looks at processes that were told to stop.
const LOOK_EVERY: u64 = MILLISECOND;
/// A Stop is answered with what still runs after so long.
pub(crate) const STOP_LIMIT: u64 = 2 * SECOND;
/// A thread in an uninterruptible wait can't run the guest's code, but may be writing: so long
/// it is waited for, then it counts as standing still (the parent of a vfork waits for ever).
const WAIT_GRACE: u64 = 50 * MILLISECOND;
/// A stopped guest is told again, in case somebody from outside woke it or entered it.
const RECHECK_EVERY: u64 = SECOND;
/// What the program left behind gets so long to be gone before its exit is reported anyway.
pub(crate) const CLEAR_LIMIT: u64 = 2 * SECOND;
const RETRY_FIRST: u64 = 20 * MILLISECOND;
const RETRY_LAST: u64 = SECOND;
const COUNT_EVERY: u64 = 10 * SECOND;
/// Counting the workspace takes at most one part in so many of the time.
const COUNT_SHARE: u64 = 20;
/// Less than this taken of the disk is no reason to count early.
const TAKEN_LEAST: u64 = 1 << 20;
/// So many Stop words may wait for their answer at a time.
const ASKED_MAX: usize = 64;
/// What the engine sees when init was told to end: as if killed.
const CODE_ENDED: i32 = 137;
const CODE_NOT_STARTED: i32 = 127;

#[derive(Debug)]
enum Link {
    Away { retry_at: BootUs, pause: u64 },
    Up,
}

#[derive(Debug, Clone)]
enum Outcome {
    NotStarted(String),
    Ended(Exit),
}

#[derive(Debug)]
enum Phase {
    Idle,
    /// Begun, but something forbids to run yet.
    Pending(Box<Begin>),
    Launching,
    Running {
        pid: i32,
    },
    /// The program ended; what it left behind is being killed and its last output passed on.
    Clearing {
        exit: Exit,
        since: BootUs,
        look_at: BootUs,
        cleared: bool,
    },
    /// Held until the agent says that it has seen it.
    Over(Outcome),
    Gone,
}

/// Stopping is under way and not yet seen done.
#[derive(Debug)]
struct Settling {
    since: BootUs,
    look_at: BootUs,
}

#[derive(Debug)]
pub(crate) struct Machine {
    link: Link,
    phase: Phase,
    held_by_word: bool,
    held_by_deadline: bool,
    deadline_told: bool,
    deadline: Option<BootMs>,
    settling: Option<Settling>,
    recheck_at: BootUs,
    /// Stop words without an answer yet: their number, and when they were read.
    asked: BTreeMap<u64, BootUs>,
    census: Census,
    output_ended: bool,
    started: Option<i32>,
    saved: Saved,
    /// When to count the workspace next; absent when it is not watched or is being counted.
    count_at: Option<BootUs>,
    /// Before then it isn't counted, whatever happens.
    count_not_before: BootUs,
    disk_limit: u64,
    told_to_leave: bool,
}

impl Machine {
    pub(crate) fn new(now: BootUs) -> Self {
        Self {
            link: Link::Away { retry_at: now, pause: RETRY_FIRST },
            phase: Phase::Idle,
            held_by_word: false,
            held_by_deadline: false,
            deadline_told: false,
            deadline: None,
            settling: None,
            recheck_at: now,
            asked: BTreeMap::new(),
            census: Census::default(),
            output_ended: false,
            started: None,
            saved: Saved::new(now),
            count_at: None,
            count_not_before: now,
            disk_limit: 0,
            told_to_leave: false,
        }
    }

    pub(crate) fn handle(&mut self, event: Event, now: BootUs) -> Vec<Effect> {
        let mut out = Vec::new();
        if matches!(self.phase, Phase::Gone) {
            return out;
        }
        match event {
            Event::ControlChanged => {
                if let Link::Away { retry_at, pause } = &mut self.link {
                    (*retry_at, *pause) = (now, RETRY_FIRST);
                }
            }
            Event::Connected => self.connected(&mut out),
            Event::ConnectFailed => {
                if let Link::Away { retry_at, pause } = &mut self.link {
                    *retry_at = now.plus(*pause);
                    *pause = (*pause * 2).min(RETRY_LAST);
                }
            }
            Event::Disconnected => {
                self.link = Link::Away { retry_at: now.plus(RETRY_FIRST), pause: RETRY_FIRST };
                self.asked.clear();
            }
            Event::Word(word) => self.word(word, now, &mut out),
            Event::Trouble(reason) => self.say(FromInit::Confused { reason }, &mut out),
            Event::Launched { pid } => self.launched(pid, now, &mut out),
            Event::NotLaunched { reason } => {
                self.say(FromInit::NotStarted { reason: reason.clone() }, &mut out);
                self.phase = Phase::Over(Outcome::NotStarted(reason));
            }
            Event::Reaped { pid, exit } => {
                if matches!(self.phase, Phase::Running { pid: main } if main == pid) {
                    self.phase = Phase::Clearing { exit, since: now, look_at: now, cleared: false };
                }
            }
            Event::Census(census) => self.counted(census, now, &mut out),
            Event::OutputEnded => self.output_ended = true,
            Event::Saved { at_ns } => self.saved.seen(at_ns),
            Event::EndAsked => self.exit(CODE_ENDED, &mut out),
            Event::Counted { usage, took_us } => self.usage_counted(usage, took_us, now, &mut out),
            Event::SpaceTaken => {
                // Only brought forward: one that is under way has a time of its own.
                self.count_at = self.count_at.map(|at| at.min(self.count_not_before.max(now)));
            }
            Event::Time => {}
        }
        self.due(now, &mut out);
        out
    }

    /// When to call again with `Event::Time` at the latest.
    pub(crate) fn poll_timeout(&self) -> Option<BootUs> {
        if matches!(self.phase, Phase::Gone) {
            return None;
        }
        let retry = match self.link {
            Link::Away { retry_at, .. } => Some(retry_at),
            Link::Up => None,
        };
        let deadline =
            self.deadline.filter(|_| self.bound_by_deadline() && !self.held_by_deadline).map(BootUs::from);
        let settle = self.settling.as_ref().map(|settling| settling.look_at);
        let recheck = (self.held() && self.settling.is_none()).then_some(self.recheck_at);
        let clear = match self.phase {
            Phase::Clearing { look_at, .. } => Some(look_at),
            Phase::Idle
            | Phase::Pending(_)
            | Phase::Launching
            | Phase::Running { .. }
            | Phase::Over(_)
            | Phase::Gone => None,
        };
        let count = self.count_at.filter(|_| self.may_count());
        [retry, deadline, settle, recheck, clear, count, self.saved.due_at()].into_iter().flatten().min()
    }

    fn say(&self, message: FromInit, out: &mut Vec<Effect>) {
        match self.link {
            Link::Up => out.push(Effect::Say(message)),
            Link::Away { .. } => {}
        }
    }

    fn say_saved(&self, saved: Option<i64>, out: &mut Vec<Effect>) {
        if let Some(at_ns) = saved {
            self.say(FromInit::Saved { at_ns }, out);
        }
    }

    /// Everything that an agent who knows nothing must hear.
    fn connected(&mut self, out: &mut Vec<Effect>) {
        self.link = Link::Up;
        let begun = !matches!(self.phase, Phase::Idle);
        self.say(FromInit::Hello { version: WIRE_VERSION, begun }, out);
        if let Some(pid) = self.started {
            self.say(FromInit::Started { pid }, out);
        }
        if let Some(at_ns) = self.saved.again() {
            self.say(FromInit::Saved { at_ns }, out);
        }
        if self.held_by_deadline && self.deadline_told {
            self.say(FromInit::DeadlinePassed, out);
        }
        if let Phase::Over(outcome) = &self.phase {
            self.say(outcome.report(), out);
        }
    }

    fn word(&mut self, word: ToInit, now: BootUs, out: &mut Vec<Effect>) {
        match word {
            ToInit::Begin(begin) => self.begin(begin, now, out),
            ToInit::Adopt { egress_deadline } => {
                if matches!(self.phase, Phase::Idle) {
                    self.confused("Adopt before Begin: there is nothing to adopt", out);
                } else {
                    out.push(Effect::TakeRing);
                    self.set_deadline(egress_deadline, now, out);
                }
            }
            ToInit::Stop { seq } => self.stop(seq, now, out),
            ToInit::GoOn { seq } => self.go_on(seq, now, out),
            ToInit::End { seq: _ } => self.exit(CODE_ENDED, out),
            ToInit::Signal { seq, signal } => out.push(Effect::SignalJob { seq, signal }),
            ToInit::Leave { seq, signal, deadline } => {
                out.push(Effect::WriteLeaving { deadline });
                // Said again by an agent that comes back; to many programs a second signal means to
                // stop saving and go.
                if !std::mem::replace(&mut self.told_to_leave, true) {
                    out.push(Effect::SignalJob { seq, signal });
                }
            }
            ToInit::Deadline { at } => self.set_deadline(Some(at), now, out),
            ToInit::ExitSeen => match &self.phase {
                Phase::Over(outcome) => {
                    let code = outcome.code();
                    self.exit(code, out);
                }
                Phase::Idle
                | Phase::Pending(_)
                | Phase::Launching
                | Phase::Running { .. }
                | Phase::Clearing { .. }
                | Phase::Gone => self.confused("ExitSeen, but no exit was reported", out),
            },
            ToInit::Ping { seq } => out.push(Effect::Pong { seq }),
        }
    }

    fn begin(&mut self, begin: Begin, now: BootUs, out: &mut Vec<Effect>) {
        if !matches!(self.phase, Phase::Idle) {
            self.confused("a second Begin: this guest has begun already", out);
            return;
        }
        out.push(Effect::TakeRing);
        self.deadline = begin.egress_deadline;
        self.disk_limit = begin.disk_limit;
        self.count_at = (begin.disk_limit > 0).then_some(now);
        self.phase = Phase::Pending(Box::new(begin));
    }

    /// Counted now and then, and at once when the disk has lost half of what this guest may still
    /// take: a program can write all that it may and much more between two counts.
    fn usage_counted(&mut self, usage: Option<Usage>, took_us: u64, now: BootUs, out: &mut Vec<Effect>) {
        let pause = took_us.saturating_mul(COUNT_SHARE);
        self.count_not_before = now.plus(pause);
        self.count_at = Some(now.plus(COUNT_EVERY.max(pause)));
        if let Some(Usage { bytes, files }) = usage {
            self.say(FromInit::Usage { bytes, files }, out);
            let least = (self.disk_limit.saturating_sub(bytes) / 2).max(TAKEN_LEAST);
            out.push(Effect::WatchSpace { least, for_us: COUNT_EVERY });
        }
    }

    fn launched(&mut self, pid: i32, now: BootUs, out: &mut Vec<Effect>) {
        self.phase = Phase::Running { pid };
        self.started = Some(pid);
        self.say(FromInit::Started { pid }, out);
        if self.held() {
            // It may have been born after the others were told to stop.
            self.settle(now);
        }
    }

    fn stop(&mut self, seq: u64, now: BootUs, out: &mut Vec<Effect>) {
        self.held_by_word = true;
        self.settle(now);
        if self.asked.len() < ASKED_MAX {
            self.asked.entry(seq).or_insert(now);
        } else {
            self.confused(
                "too many Stop words at once; the guest is being stopped, this one gets no answer",
                out,
            );
        }
    }

    fn go_on(&mut self, seq: u64, now: BootUs, out: &mut Vec<Effect>) {
        self.answer_stops(now, out);
        self.held_by_word = false;
        if self.held_by_deadline {
            // Only a later deadline lets a guest with egress run again.
            self.say(FromInit::DeadlinePassed, out);
            return;
        }
        self.release(out);
        self.say(FromInit::GoingOn { seq }, out);
    }

    fn set_deadline(&mut self, at: Option<BootMs>, now: BootUs, out: &mut Vec<Effect>) {
        self.deadline = at;
        let over = at.is_some_and(|at| BootUs::from(at) <= now);
        if self.held_by_deadline && !over {
            self.held_by_deadline = false;
            self.deadline_told = false;
            if !self.held_by_word {
                self.release(out);
            }
        }
    }

    /// Looks from now on, and for no longer than the limit since the first reason to.
    fn settle(&mut self, now: BootUs) {
        let since = self.settling.as_ref().map_or(now, |settling| settling.since);
        self.settling = Some(Settling { since, look_at: now });
    }

    fn release(&mut self, out: &mut Vec<Effect>) {
        self.settling = None;
        out.push(Effect::SignalAll(ToAll::GoOn));
    }

    fn held(&self) -> bool {
        self.held_by_word || self.held_by_deadline
    }

    fn bound_by_deadline(&self) -> bool {
        matches!(self.phase, Phase::Pending(_) | Phase::Launching | Phase::Running { .. })
    }

    fn may_count(&self) -> bool {
        matches!(self.phase, Phase::Running { .. }) && !self.held()
    }

    fn confused(&self, reason: &str, out: &mut Vec<Effect>) {
        self.say(FromInit::Confused { reason: reason.to_owned() }, out);
    }

    fn exit(&mut self, code: i32, out: &mut Vec<Effect>) {
        self.phase = Phase::Gone;
        out.push(Effect::Exit { code });
    }

    fn counted(&mut self, census: Census, now: BootUs, out: &mut Vec<Effect>) {
        self.census = census;
        if let Phase::Clearing { cleared, .. } = &mut self.phase {
            *cleared = census.alive == 0;
        }
        let Some(settling) = &self.settling else { return };
        let waited = now.since(settling.since);
        let unborn = matches!(self.phase, Phase::Launching) && census.alive == 0;
        let still = census.running == 0 && !unborn && (census.waiting == 0 || waited >= WAIT_GRACE);
        if still || waited >= STOP_LIMIT {
            self.settling = None;
            self.recheck_at = now.plus(RECHECK_EVERY);
            self.answer_stops(now, out);
            if self.held_by_deadline && !self.deadline_told {
                self.deadline_told = true;
                self.say(FromInit::DeadlinePassed, out);
            }
        }
    }

    fn answer_stops(&mut self, now: BootUs, out: &mut Vec<Effect>) {
        let Census { alive, running, .. } = self.census;
        let saved = if self.asked.is_empty() { None } else { self.saved.at_once(now) };
        self.say_saved(saved, out);
        for (seq, since) in std::mem::take(&mut self.asked) {
            self.say(FromInit::Stopped { seq, processes: alive, took_us: now.since(since), running }, out);
        }
    }

    /// All that time alone brings about. Runs after every event, so that no order of events can
    /// carry a guest past its deadline.
    fn due(&mut self, now: BootUs, out: &mut Vec<Effect>) {
        if matches!(self.phase, Phase::Gone) {
            return;
        }
        if let Link::Away { retry_at, pause } = &mut self.link
            && *retry_at <= now
        {
            *retry_at = now.plus(*pause);
            out.push(Effect::Connect);
        }
        let over = self.deadline.is_some_and(|at| BootUs::from(at) <= now);
        if over && self.bound_by_deadline() && !self.held_by_deadline {
            self.held_by_deadline = true;
            self.settle(now);
        }
        if !self.held()
            && matches!(self.phase, Phase::Pending(_))
            && let Phase::Pending(begin) = std::mem::replace(&mut self.phase, Phase::Launching)
        {
            out.push(Effect::Launch(begin));
        }
        if let Some(settling) = &mut self.settling {
            if settling.look_at <= now {
                settling.look_at = now.plus(LOOK_EVERY);
                out.extend([Effect::SignalAll(ToAll::Stop), Effect::Look]);
            }
        } else if self.held() && self.recheck_at <= now {
            self.recheck_at = now.plus(RECHECK_EVERY);
            out.push(Effect::SignalAll(ToAll::Stop));
        }
        let saved = self.saved.due(now);
        self.say_saved(saved, out);
        self.clear(now, out);
        if self.may_count() && self.count_at.is_some_and(|at| at <= now) {
            self.count_at = None;
            out.push(Effect::CountUsage);
        }
    }

    fn clear(&mut self, now: BootUs, out: &mut Vec<Effect>) {
        let Phase::Clearing { exit, since, look_at, cleared } = &mut self.phase else { return };
        let waited = now.since(*since);
        if (*cleared && self.output_ended) || waited >= CLEAR_LIMIT {
            let outcome = Outcome::Ended(*exit);
            let saved = self.saved.at_once(now);
            self.say_saved(saved, out);
            self.say(outcome.report(), out);
            self.phase = Phase::Over(outcome);
        } else if *look_at <= now {
            *look_at = now.plus(LOOK_EVERY.max(waited / 4));
            out.extend([Effect::SignalAll(ToAll::Kill), Effect::Look]);
        }
    }
}

impl Outcome {
    fn report(&self) -> FromInit {
        match self {
            Self::NotStarted(reason) => FromInit::NotStarted { reason: reason.clone() },
            Self::Ended(exit) => FromInit::Exited(*exit),
        }
    }

    /// What the engine sees; a courtesy to people who inspect, nothing decides by it.
    fn code(&self) -> i32 {
        match self {
            Self::NotStarted(_) => CODE_NOT_STARTED,
            Self::Ended(Exit::Code { code }) => *code,
            Self::Ended(Exit::Signal { signal }) => 128 + signal,
        }
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
