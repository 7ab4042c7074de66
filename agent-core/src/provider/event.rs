//! What happens to the provider half: words of the owner, the relay, the engine, init, the GPUs,
//! and the answers to its own effects. Every answer may come late, twice, or never.

use std::collections::BTreeSet;

use gpunion_protocol::egress::Contacts;
use gpunion_protocol::gpu::GpuView;
use gpunion_protocol::guest::FromInit;
use gpunion_protocol::ids::{AttemptRef, Epoch, GpuUuid, SnapshotId};
use gpunion_protocol::local::{PauseRequest, ShareRequest};
use gpunion_protocol::rules::RulesRequest;
use gpunion_protocol::session::{Terms, ToAgent};
use gpunion_protocol::time::BootMs;
use gpunion_protocol::units::Bytes;
use jiff::tz::TimeZone;

use super::word::ReclaimWord;
use crate::gpu::verify::ProcessId;

/// Names one call of the owner, so that its answer finds the way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Names one run of an operation; an answer with another number is of an operation given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Share {
        call: CallId,
        request: ShareRequest,
    },
    Rules {
        call: CallId,
        request: RulesRequest,
        zones: Zones,
    },
    /// Whether the machine runs on its battery; absent: it has none, or that can't be told.
    Battery {
        discharging: Option<bool>,
    },
    Pause {
        call: CallId,
        request: PauseRequest,
    },
    Wipe {
        call: CallId,
    },
    Reclaim {
        call: CallId,
        gpu: Option<GpuUuid>,
    },
    /// This agent is to stop, with time: its guests leave first, and nothing new is taken.
    Stopping,
    /// `gpunion reclaim` did it while no agent listened; only the wish and the books remain.
    ReclaimedByHand {
        word: ReclaimWord,
    },
    LinkUp {
        terms: Terms,
        epoch: Epoch,
    },
    LinkDown {
        why: String,
    },
    Relay(Box<ToAgent>),
    /// This device is no part of the group any more that its attempts are of.
    GroupLeft,
    Engine(Engine),
    Found(Inventory),
    Gpus(Box<GpuView>),
    /// The answer to an operation.
    Done {
        attempt: AttemptRef,
        op: OpId,
        outcome: Result<Outcome, Trouble>,
    },
    /// How far a preparation has come, in words.
    Progress {
        attempt: AttemptRef,
        note: String,
    },
    /// `memory_limit`: the cgroup's own events say that the limit killed something.
    Init {
        attempt: AttemptRef,
        word: FromInit,
        memory_limit: bool,
    },
    /// No process of the guest exists any more.
    GuestGone {
        attempt: AttemptRef,
        memory_limit: bool,
    },
    /// All that the guest has contacted until now.
    Contacts {
        attempt: AttemptRef,
        contacts: Contacts,
    },
    /// What the second way made of a guest that it was shown.
    SecondWay {
        attempt: AttemptRef,
        /// Processes, init among them, that existed when it came.
        killed: u32,
        stopped: Option<BootMs>,
        /// No process of the guest exists any more.
        gone: bool,
    },
    /// The guest stands ready, but its program can never be begun on this machine.
    CannotBegin {
        attempt: AttemptRef,
        reason: String,
    },
    Timeout,
}

/// What this machine's table of zones says, for rules that name one or leave it open.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Zones {
    /// Of the name that the owner gave, if there is such a zone.
    pub named: Option<TimeZone>,
    /// The machine's own.
    pub here: Option<TimeZone>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Engine {
    Known {
        architecture: String,
        cpus: u32,
        memory: Bytes,
        disk: Bytes,
        /// What guests are promised and this engine can't hold, with the fix: nothing is lent.
        blocked: Option<String>,
    },
    /// Nothing is concluded from it (F63).
    Unknown { why: String },
}

/// All that is ours on this machine, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inventory {
    pub containers: Vec<Found>,
    /// Attempts that have a workspace, or a folder of their own.
    pub left: BTreeSet<AttemptRef>,
}

/// A container of ours as the engine lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub attempt: AttemptRef,
    pub container: String,
    /// Its init, while it runs.
    pub process: Option<ProcessId>,
}

/// What an operation brought about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The image is here; `digest` when a registry gave it.
    Image {
        digest: Option<String>,
    },
    Staged,
    Created {
        container: String,
    },
    /// The container runs and its init has connected; limits are read back.
    Started {
        process: ProcessId,
    },
    PassOne,
    Taken(Taken),
    Uploaded,
    Cleaned,
}

/// A finished snapshot, not yet at the relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    pub snapshot: SnapshotId,
    pub bytes: u64,
    pub new_bytes: u64,
    /// Newest change anywhere in the workspace, wall-clock nanoseconds of this machine.
    pub newest_change_ns: i64,
}

/// Why an operation brought nothing about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// The engine, the disk or the relay did not answer: try again.
    Away { why: String },
    /// It can't work, however often it is tried.
    Refused { reason: String },
}
