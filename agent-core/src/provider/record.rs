//! What the provider half keeps on disk. The same types are saved and loaded by the product and
//! by the simulation.

use std::collections::BTreeMap;

use gpunion_protocol::egress::Contacts;
use gpunion_protocol::guest::Exit;
use gpunion_protocol::ids::{AttemptNo, AttemptRef, Epoch, GpuUuid, SnapshotId, Token};
use gpunion_protocol::job::EndCause;
use gpunion_protocol::local::{Caps, Wish};
use gpunion_protocol::receipt::{HistoryEntry, Receipt};
use gpunion_protocol::session::Assignment;
use gpunion_protocol::time::{Millis, WallMs};
use serde::{Deserialize, Serialize};

use crate::gpu::verify::{BeforeGuest, GuestTraces, ProcessId};
use crate::rules::Rules;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "record")]
pub enum Record {
    Wish(WishRecord),
    Rules(Box<RulesRecord>),
    Attempt(Box<AttemptRecord>),
    History(Box<HistoryEntry>),
}

/// Where a record lies: kind and key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub &'static str, pub String);

#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    Put(Record),
    Delete(Key),
}

impl Record {
    pub fn key(&self) -> Key {
        match self {
            Self::Wish(_) => Key("wish", String::new()),
            Self::Rules(_) => RulesRecord::key(),
            Self::Attempt(a) => Key("attempt", attempt_key(&a.assignment.attempt)),
            Self::History(h) => Key("history", format!("{:020}-{}", h.until.0, attempt_key(&h.attempt))),
        }
    }
}

pub fn attempt_key(attempt: &AttemptRef) -> String {
    format!("{}-{}-{}", attempt.job, attempt.token.epoch.0, attempt.token.attempt)
}

/// The attempt that has this key.
pub fn attempt_of_key(key: &str) -> Option<AttemptRef> {
    let mut parts = key.rsplitn(3, '-');
    let (attempt, epoch, job) = (parts.next()?, parts.next()?, parts.next()?);
    let token = Token { epoch: Epoch(epoch.parse().ok()?), attempt: AttemptNo(attempt.parse().ok()?) };
    Some(AttemptRef { job: job.parse().ok()?, token })
}

/// What the owner wants; kept apart from what is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WishRecord {
    pub machine: Wish,
    pub gpus: BTreeMap<GpuUuid, Wish>,
    pub caps: Caps,
    /// The longest that a job which must leave is waited for, whatever its spec asks for.
    #[serde(default = "WishRecord::grace")]
    pub grace: Millis,
    /// What a reclaimed job left may be saved for it afterwards.
    #[serde(default = "WishRecord::salvage")]
    pub salvage: bool,
    /// Lies over the wishes: what they lend is lent again when it is over.
    #[serde(default)]
    pub paused: Option<Pause>,
}

/// The owner's rules, and what one of them must know after a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesRecord {
    #[serde(default)]
    pub rules: Rules,
    /// Bytes that were drawn on each GPU when lending began.
    #[serde(default)]
    pub drawn: BTreeMap<GpuUuid, u64>,
}

impl RulesRecord {
    pub(super) fn key() -> Key {
        Key("rules", String::new())
    }
}

/// The owner lends nothing for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Absent: until the owner ends it.
    #[serde(default)]
    pub until: Option<WallMs>,
    /// It was given as a length of time: a clock that is set meanwhile makes it neither longer nor
    /// shorter.
    #[serde(default)]
    pub measured: bool,
}

impl WishRecord {
    /// What the owner wishes before saying anything: to lend nothing.
    pub fn new(caps: Caps) -> Self {
        Self {
            machine: Wish::NotSharing,
            gpus: BTreeMap::new(),
            caps,
            grace: Self::grace(),
            salvage: Self::salvage(),
            paused: None,
        }
    }

    fn salvage() -> bool {
        true
    }

    fn grace() -> Millis {
        Millis::from_secs(60)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttemptRecord {
    pub assignment: Assignment,
    pub phase: Phase,
    pub accepted: WallMs,
    pub started: Option<WallMs>,
    pub container: Option<String>,
    pub process: Option<ProcessId>,
    /// The image's digest was found here: the relay is to be told.
    #[serde(default)]
    pub found_digest: bool,
    /// This device has left the attempt's group: nobody is to be told of it.
    #[serde(default)]
    pub orphaned: bool,
    /// Since then it must leave; written before the program hears of it.
    #[serde(default)]
    pub told_to_leave: Option<WallMs>,
    /// When its guest was gone; what it left may be saved for a while after that.
    #[serde(default)]
    pub gone: Option<WallMs>,
    /// The receipt of the reclaim that ended it, until its entry in the history is made.
    #[serde(default)]
    pub receipt: Option<Box<Receipt>>,
    /// Its GPUs as they were before the guest came, and who was seen on them for it.
    pub before: Vec<BeforeGuest>,
    pub traces: GuestTraces,
    /// The newest snapshot of this attempt that the relay has accepted.
    pub published: Option<SnapshotId>,
    /// Checkpoints that were taken of it, to be told or not.
    #[serde(default)]
    pub checkpoints: u64,
    /// What it contacted; absent for a guest without egress.
    #[serde(default)]
    pub contacts: Option<Contacts>,
}

/// How far an attempt has come, as far as it must survive a crash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "phase")]
pub enum Phase {
    Pull,
    Stage,
    Create,
    Start,
    Running,
    /// Init reported the program's exit; the workspace is being saved as the result.
    Finishing {
        exit: Exit,
        memory_limit: bool,
    },
    /// It was told to leave, and has ended (`exited`: by itself) or is being ended, or it was
    /// `reclaimed`; what it left is being saved as its last checkpoint.
    Leaving {
        exited: bool,
        #[serde(default)]
        reclaimed: bool,
    },
    /// It must end for a reason of ours; its processes may still live.
    Ending {
        cause: EndCause,
    },
    /// No process lives; `told`: the relay knows; `cleaned`: nothing of it is left on this machine.
    Over {
        cause: EndCause,
        result: Option<SnapshotId>,
        told: bool,
        cleaned: bool,
    },
}

impl Phase {
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Over { .. })
    }
}

#[cfg(test)]
mod tests {
    use gpunion_protocol::ids::JobId;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_attempt_is_known_by_its_key(time in 0u64..1 << 40, epoch: u64, number: u32) {
            let token = Token { epoch: Epoch(epoch), attempt: AttemptNo(number) };
            let attempt = AttemptRef { job: JobId::new(time, [7; 10]), token };
            prop_assert_eq!(attempt_of_key(&attempt_key(&attempt)), Some(attempt));
        }

        #[test]
        fn what_is_no_key_is_nobody_s(text in "\\PC{0,60}") {
            prop_assert_eq!(attempt_of_key(&text), None);
        }
    }
}
