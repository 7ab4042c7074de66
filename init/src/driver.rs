//! The one loop: waits for whatever happens, tells the machine, does what it answers.
//!
//! Nothing here decides, and nothing here may block: what could is in a thread of its own.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs::symlink_metadata;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use gpunion_protocol::guest::{
    BadFrame, Begin, CONTROL_DIR, CONTROL_SOCKET, END_FILE, FromInit, RUN_DIR, WORKSPACE,
};
use gpunion_protocol::time::BootMs;
use rustix::time::{ClockId, clock_gettime};

use crate::channel::{Channel, Lost};
use crate::events::{BootUs, Effect, Event, ToAll};
use crate::guestdir::GuestDir;
use crate::machine::Machine;
use crate::output::NextRing;
use crate::signals::{self, Signals};
use crate::sources::Sources;
use crate::threads::{FromThread, Reports, Wake};
use crate::{egress, launch, output, procs, threads, usage};

/// Words taken from the agent before the other sources get their turn.
const WORDS_AT_ONCE: usize = 64;
/// Microseconds between two looks for what the agent or the guest may have put down. Looked for and
/// not watched for: a process that holds an inotify instance is not gone before the kernel has let
/// that go, which takes up to 20 ms and would come on top of every reclaim (docs/decisions/0013).
const LOOK_EVERY: u64 = 50_000;

#[derive(Debug)]
pub(crate) struct Driver {
    machine: Machine,
    signals: Signals,
    sources: Sources,
    wake: Wake,
    reports: Reports,
    channel: Option<Channel>,
    guest: Option<GuestDir>,
    next_ring: NextRing,
    /// While a program is being started its refusal arrives as a child that must not be reaped.
    launching: bool,
    look_at: BootUs,
    /// The agent's socket as it was seen last: another one is another run of the agent.
    door: Option<(u64, i64, i64)>,
}

impl Driver {
    pub(crate) fn new() -> io::Result<Self> {
        let signals = Signals::take()?;
        let (wake, reports) = threads::reports()?;
        let sources = Sources::new(&signals, &reports)?;
        Ok(Self {
            machine: Machine::new(now()),
            signals,
            sources,
            wake,
            reports,
            channel: None,
            guest: GuestDir::open(Path::new(RUN_DIR)).ok(),
            next_ring: NextRing::default(),
            launching: false,
            look_at: now(),
            door: None,
        })
    }

    /// Goes on until the machine says Exit.
    pub(crate) fn run(mut self) -> io::Result<Infallible> {
        loop {
            if self.look_at <= now() {
                self.look();
            }
            self.feed(Event::Time);
            let until = self.machine.poll_timeout().map_or(self.look_at, |at| at.min(self.look_at));
            let ready = self.sources.wait(until, self.channel.as_ref())?;
            // The owner's words first.
            if ready.writable {
                self.flush();
            }
            if ready.readable {
                self.hear();
            }
            if ready.signals {
                self.take_signals();
            }
            if ready.reports {
                self.take_reports();
            }
        }
    }

    /// Looks by name for what the agent and the guest may have put down.
    fn look(&mut self) {
        self.look_at = now().plus(LOOK_EVERY);
        if symlink_metadata(control(END_FILE)).is_ok() {
            self.feed(Event::EndAsked);
        }
        if let Some(at_ns) = self.guest.as_mut().and_then(GuestDir::take_saved) {
            self.feed(Event::Saved { at_ns });
        }
        if self.channel.is_none() {
            let door = symlink_metadata(control(CONTROL_SOCKET)).ok();
            let door = door.map(|it| (it.ino(), it.ctime(), it.ctime_nsec()));
            if std::mem::replace(&mut self.door, door) != door {
                self.feed(Event::ControlChanged);
            }
        }
    }

    fn take_signals(&mut self) {
        if self.signals.end_asked() {
            self.feed(Event::EndAsked);
        }
        self.look();
        self.reap();
    }

    fn reap(&mut self) {
        while !self.launching
            && let Some((pid, exit)) = signals::reap()
        {
            self.feed(Event::Reaped { pid, exit });
        }
    }

    fn take_reports(&mut self) {
        self.reports.clear();
        while let Some(report) = self.reports.next() {
            match report {
                FromThread::Launched(result) => {
                    self.launching = false;
                    self.feed(match result {
                        Ok(pid) => Event::Launched { pid },
                        Err(reason) => Event::NotLaunched { reason },
                    });
                    self.reap();
                }
                FromThread::OutputEnded => self.feed(Event::OutputEnded),
                FromThread::Counted { usage, took_us } => self.feed(Event::Counted { usage, took_us }),
                FromThread::SpaceTaken => self.feed(Event::SpaceTaken),
            }
        }
    }

    fn hear(&mut self) {
        let Some(channel) = &mut self.channel else { return };
        if channel.read().is_err() {
            return self.lost();
        }
        // What the program had put down before is told before what is answered.
        self.look();
        for _ in 0..WORDS_AT_ONCE {
            let Some(channel) = &mut self.channel else { return };
            match channel.next_word() {
                Ok(Some(word)) => self.feed(Event::Word(word)),
                Ok(None) => return,
                // The parser's own words could quote a secret.
                Err(BadFrame::NoMessage(_)) => {
                    self.feed(Event::Trouble("a frame that is no word to init".to_owned()))
                }
                Err(BadFrame::TooLong(_)) => return self.lost(),
            }
        }
    }

    fn flush(&mut self) {
        if self.channel.as_mut().is_some_and(|channel| channel.flush().is_err()) {
            self.lost();
        }
    }

    fn lost(&mut self) {
        self.channel = None;
        self.feed(Event::Disconnected);
    }

    fn feed(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for effect in self.machine.handle(event, now()) {
                self.act(effect, &mut events);
            }
        }
    }

    fn act(&mut self, effect: Effect, events: &mut VecDeque<Event>) {
        match effect {
            Effect::Connect => events.push_back(self.connect()),
            Effect::Say(message) => self.say(&message, events),
            Effect::Pong { seq } => {
                let processes = procs::census().map_or(0, |census| census.alive);
                self.say(&FromInit::Pong { seq, processes }, events);
            }
            Effect::TakeRing => {
                if let Some(ring) = self.channel.as_mut().and_then(Channel::take_ring) {
                    self.next_ring.put(ring);
                }
            }
            Effect::Launch(begin) => match self.launch(*begin) {
                Ok(()) => self.launching = true,
                Err(error) => {
                    events.push_back(Event::NotLaunched { reason: format!("init can't start it: {error}") })
                }
            },
            Effect::SignalAll(what) => {
                if let Err(errno) = procs::signal_all(what) {
                    events
                        .push_back(Event::Trouble(format!("{what:?} did not reach the processes: {errno}")));
                }
            }
            Effect::SignalJob { seq, signal } => self.signal_job(seq, signal, events),
            Effect::Look => events.push_back(Event::Census(procs::census().unwrap_or(procs::UNSEEN))),
            Effect::WriteLeaving { deadline } => {
                let text = format!("{}\n", wall_seconds(deadline));
                let written = self.guest.as_ref().map_or(Ok(()), |guest| guest.write_leaving(&text));
                if let Err(error) = written {
                    events.push_back(Event::Trouble(format!("{RUN_DIR}/leaving can't be written: {error}")));
                }
            }
            Effect::CountUsage => self.count_usage(events),
            Effect::WatchSpace { least, for_us } => self.watch_space(least, for_us),
            Effect::Exit { code } => end(code),
        }
    }

    fn connect(&mut self) -> Event {
        let connected = Channel::connect(&control(CONTROL_SOCKET)).and_then(|channel| {
            self.sources.add(&channel)?;
            Ok(channel)
        });
        self.channel = connected.ok();
        if self.channel.is_some() { Event::Connected } else { Event::ConnectFailed }
    }

    fn say(&mut self, message: &FromInit, events: &mut VecDeque<Event>) {
        if let Some(Err(Lost)) = self.channel.as_mut().map(|channel| channel.say(message)) {
            self.channel = None;
            events.push_back(Event::Disconnected);
        }
    }

    fn signal_job(&mut self, seq: u64, signal: i32, events: &mut VecDeque<Event>) {
        let processes = procs::census().map_or(0, |census| census.alive);
        match procs::signal_job(signal) {
            Ok(()) => self.say(&FromInit::Signalled { seq, processes }, events),
            Err(errno) => events.push_back(Event::Trouble(format!("signal {signal} can't be sent: {errno}"))),
        }
    }

    fn launch(&self, begin: Begin) -> io::Result<()> {
        if begin.egress_deadline.is_some() {
            egress::start()?;
        }
        let (reader, writer) = io::pipe()?;
        let (next_ring, wake) = (self.next_ring.clone(), self.wake.clone());
        threads::start("output", move || output::copy(reader, &next_ring, &wake))?;
        let wake = self.wake.clone();
        threads::start("launch", move || {
            let started = launch::start(&begin, &writer);
            if let Err(reason) = &started {
                // Where its member looks first; the report says it too.
                let _told = writeln!(&writer, "gpunion: the program was not started: {reason}");
            }
            drop(writer);
            wake.tell(FromThread::Launched(started));
        })
    }

    fn count_usage(&self, events: &mut VecDeque<Event>) {
        let wake = self.wake.clone();
        let started = threads::start("usage", move || {
            let before = now();
            let usage = usage::count(Path::new(WORKSPACE));
            wake.tell(FromThread::Counted { usage, took_us: now().since(before) });
        });
        if started.is_err() {
            // The guest is at its limit of processes; the next time may be better.
            events.push_back(Event::Counted { usage: None, took_us: 0 });
        }
    }

    fn watch_space(&self, least: u64, for_us: u64) {
        let wake = self.wake.clone();
        let until = now().plus(for_us);
        // Without it the next count is the one that would be due anyway.
        let _started = threads::start("space", move || {
            if usage::is_taken(Path::new(WORKSPACE), least, || now() < until) {
                wake.tell(FromThread::SpaceTaken);
            }
        });
    }
}

/// Ends every process, init last; the kernel would do it, but not before each thread of init
/// has left, and one may hang on a dead disk.
#[expect(clippy::disallowed_methods, reason = "nothing may run after End, and no destructor may wait")]
fn end(code: i32) -> ! {
    let _killed = procs::signal_all(ToAll::Kill);
    std::process::exit(code)
}

pub(crate) fn now() -> BootUs {
    let time = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    BootUs(seconds.unwrap_or(0) * 1_000_000 + nanos.unwrap_or(0) / 1_000)
}

/// The wall-clock second, since the epoch, at that boot time; programs read this, not we.
#[expect(clippy::disallowed_methods, reason = "the one clock that a program in the guest can read plainly")]
fn wall_seconds(at: BootMs) -> u64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    wall.saturating_add(BootUs::from(at).since(now()) / 1_000_000)
}

fn control(name: &str) -> PathBuf {
    Path::new(CONTROL_DIR).join(name)
}
