//! Everything that the loop waits for, and the waiting itself.
//!
//! epoll and not poll: poll obeys the limit on open files, which a process of the same user may
//! lower for init at any time; what was opened before must go on working then. The timer runs on
//! boot time, because the kernel's own time-outs stand still while the machine sleeps.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::event::epoll::{EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::channel::Channel;
use crate::events::BootUs;
use crate::signals::Signals;
use crate::threads::Reports;

const TIMER: u64 = 0;
const SIGNALS: u64 = 1;
const REPORTS: u64 = 2;
const CHANNEL: u64 = 3;

#[derive(Debug)]
pub(crate) struct Sources {
    epoll: OwnedFd,
    timer: OwnedFd,
}

/// What was ready after one wait.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    pub(crate) signals: bool,
    pub(crate) reports: bool,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

impl Sources {
    pub(crate) fn new(signals: &Signals, reports: &Reports) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        epoll::add(&epoll, signals, EventData::new_u64(SIGNALS), EventFlags::IN)?;
        epoll::add(&epoll, reports, EventData::new_u64(REPORTS), EventFlags::IN)?;
        Ok(Self { epoll, timer })
    }

    /// Waits for this connection too, until it is dropped.
    pub(crate) fn add(&self, channel: &Channel) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, channel, EventData::new_u64(CHANNEL), EventFlags::IN)
    }

    /// Waits until something is ready or the time has come.
    pub(crate) fn wait(&self, until: BootUs, channel: Option<&Channel>) -> io::Result<Ready> {
        arm(&self.timer, until)?;
        if let Some(channel) = channel {
            let out = if channel.wants_to_write() { EventFlags::OUT } else { EventFlags::empty() };
            epoll::modify(&self.epoll, channel, EventData::new_u64(CHANNEL), EventFlags::IN | out)?;
        }
        let mut happened = Vec::with_capacity(8);
        match epoll::wait(&self.epoll, spare_capacity(&mut happened), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = Ready::default();
        for event in happened {
            let flags = event.flags;
            match event.data.u64() {
                SIGNALS => ready.signals = true,
                REPORTS => ready.reports = true,
                CHANNEL => {
                    ready.readable = flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR);
                    ready.writable = flags.contains(EventFlags::OUT);
                }
                _ => {}
            }
        }
        Ok(ready)
    }
}

fn arm(timer: impl AsFd, at: BootUs) -> io::Result<()> {
    // Zero would switch it off.
    let at = at.0.max(1);
    let it_value = Timespec {
        tv_sec: i64::try_from(at / 1_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(at % 1_000_000 * 1_000).unwrap_or(0),
    };
    let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &Itimerspec { it_interval, it_value })?;
    Ok(())
}
