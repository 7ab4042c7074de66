//! What the machine is told, and what it answers: the whole seam between decisions and I/O.

use gpunion_protocol::guest::{Begin, Exit, FromInit, ToInit};
use gpunion_protocol::time::BootMs;

/// Microseconds of CLOCK_BOOTTIME.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootUs(pub(crate) u64);

impl BootUs {
    pub(crate) fn plus(self, us: u64) -> Self {
        Self(self.0.saturating_add(us))
    }

    /// Microseconds since `earlier`, zero when that is later.
    pub(crate) fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl From<BootMs> for BootUs {
    fn from(ms: BootMs) -> Self {
        Self(ms.0.saturating_mul(1_000))
    }
}

/// The processes of the guest, init left out, at one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Census {
    /// Processes that are no zombies.
    pub(crate) alive: u32,
    /// Processes of them with a thread that runs or would run when its wait ends.
    pub(crate) running: u32,
    /// Processes with a thread in an uninterruptible wait and none that runs.
    pub(crate) waiting: u32,
}

/// What a workspace holds: allocated bytes, and files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
}

#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// Something changed in the control mount.
    ControlChanged,
    Connected,
    ConnectFailed,
    Disconnected,
    Word(ToInit),
    /// A frame made no sense, or something outside failed in a way the agent should know.
    Trouble(String),
    Launched {
        pid: i32,
    },
    NotLaunched {
        reason: String,
    },
    Reaped {
        pid: i32,
        exit: Exit,
    },
    Census(Census),
    /// Nobody holds the program's stdout and stderr any more, and all of it was passed on.
    OutputEnded,
    Saved {
        at_ns: i64,
    },
    /// The `end` file is there, or the engine asks for the end.
    EndAsked,
    /// The workspace was counted, in so many microseconds; absent when it could not be.
    Counted {
        usage: Option<Usage>,
        took_us: u64,
    },
    /// The disk of the workspace has lost what `Effect::WatchSpace` named; by whose hand is not known.
    SpaceTaken,
    Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToAll {
    Stop,
    GoOn,
    Kill,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    Connect,
    Say(FromInit),
    /// Say Pong with the number of processes.
    Pong {
        seq: u64,
    },
    /// Use the ring that came with the word.
    TakeRing,
    Launch(Box<Begin>),
    SignalAll(ToAll),
    /// Pass a signal of the member's to all, and say to how many.
    SignalJob {
        seq: u64,
        signal: i32,
    },
    /// Look at the processes; answered by `Event::Census`.
    Look,
    WriteLeaving {
        deadline: BootMs,
    },
    CountUsage,
    /// Watch the free space of the workspace's disk for so long; answered by `Event::SpaceTaken` when
    /// it has lost so many bytes.
    WatchSpace {
        least: u64,
        for_us: u64,
    },
    /// End init, and everything with it.
    Exit {
        code: i32,
    },
}
