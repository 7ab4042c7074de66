//! The WebSocket session between an agent and the relay: one a device, JSON text messages.
//!
//! The agent dials out. Both sides send `Beat` when they were silent for `heartbeat`; a side that
//! heard nothing for three of them closes and the agent dials again. Silence is not death: only
//! leases decide about attempts. Every message may come twice; none relies on coming at all
//! except through repetition (offers, renewals and states are repeated until answered).

use serde::{Deserialize, Serialize};

use crate::ids::{AttemptNo, AttemptRef, DeviceId, Epoch, GpuUuid, JobId, SnapshotId};
use crate::job::{AttemptState, Blob, Checkpoint, DataInput, EndCause, Image, WrappedKey};
use crate::offer::Offer;
use crate::spec::JobSpec;
use crate::time::Millis;

/// No message is longer.
pub const MESSAGE_MAX: usize = 1 << 20;
/// At most so many bytes of log travel in one message.
pub const LOG_PIECE_MAX: usize = 64 << 10;

/// The relay's terms, told at the start of each session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// How long an attempt counts after the renewal that was answered.
    pub lease: Millis,
    /// How often the agent renews.
    pub renew: Millis,
    /// What the relay waits beyond a lease before it places the next attempt.
    pub margin: Millis,
    pub heartbeat: Millis,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            lease: Millis::from_secs(45),
            renew: Millis::from_secs(10),
            margin: Millis::from_secs(5),
            // A proxy in between may cut what is silent for 10 s (F103).
            heartbeat: Millis::from_secs(6),
        }
    }
}

/// What the agent tells the relay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "say")]
pub enum ToRelay {
    Hello {
        wire: u32,
        agent: String,
    },
    /// Replaces the offer before it; sent at each session's start and on change.
    Offer {
        offer: Offer,
    },
    /// All attempts that this device holds and that have not ended. `seq` counts up per process
    /// of the agent; the agent keeps when it sent which.
    Renew {
        seq: u64,
        attempts: Vec<AttemptRef>,
    },
    /// Sent on change, and again for all at each session's start.
    State {
        attempt: AttemptRef,
        state: AttemptState,
        /// Progress or trouble in words, for `show` ("pulling image, 40 %").
        #[serde(default)]
        note: Option<String>,
    },
    /// Its program was told to leave, and runs for a while still: the next provider may be prepared
    /// ahead. Sent with each `State` of it until it ends.
    Leaving {
        attempt: AttemptRef,
    },
    /// The first preparation found this digest.
    ImageDigest {
        attempt: AttemptRef,
        digest: String,
    },
    /// Its manifest and packs are at the relay. Repeated until answered.
    Publish {
        attempt: AttemptRef,
        checkpoint: Checkpoint,
        /// How long ago its content was complete, when this is said.
        #[serde(default)]
        age: Millis,
    },
    /// The attempt is over; `result` is the workspace at the program's own end. Repeated until
    /// answered.
    Ended {
        attempt: AttemptRef,
        cause: EndCause,
        #[serde(default)]
        result: Option<SnapshotId>,
    },
    /// A piece of the attempt's output. `offset` counts all bytes it ever wrote; a gap means that
    /// some were dropped.
    Log {
        attempt: AttemptRef,
        offset: u64,
        bytes: Blob,
    },
    /// The answer to `WrapFor`.
    Wrapped {
        job: JobId,
        key: WrappedKey,
    },
    Beat,
}

/// What the relay tells an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "say")]
pub enum ToAgent {
    Welcome {
        wire: u32,
        relay: String,
        epoch: Epoch,
        terms: Terms,
        device: DeviceId,
        /// `host:port` under which the relay is to be reached from now on, the best first; empty:
        /// it does not say. A relay that moves tells both places for a while.
        #[serde(default)]
        addresses: Vec<String>,
    },
    /// Prepare and run it. Repeated until a `State` of it comes.
    Assign(Box<Assignment>),
    /// Run what was prepared ahead: it counts from now on, and goes on from here. Repeated until a
    /// `State` says that it runs.
    Go {
        attempt: AttemptRef,
        from: Option<SnapshotId>,
    },
    /// The answer to `Renew`: which of them still count. What is in neither list is unknown to
    /// the relay and must end as stale.
    Renewed {
        seq: u64,
        counting: Vec<AttemptRef>,
        stale: Vec<AttemptRef>,
        /// For the owner: why this provider gets no jobs for now, though it lends.
        #[serde(default)]
        put_aside: Option<String>,
    },
    /// End it: cancelled, or a newer attempt counts. Repeated until `Ended` comes.
    End {
        attempt: AttemptRef,
        cause: EndCause,
    },
    Published {
        attempt: AttemptRef,
        snapshot: SnapshotId,
    },
    /// Not accepted: a newer token has written, or the job is final.
    PublishRefused {
        attempt: AttemptRef,
        snapshot: SnapshotId,
        reason: String,
    },
    /// The end is on the relay's disk; the agent may forget the attempt.
    EndSeen {
        attempt: AttemptRef,
    },
    /// So many bytes of the attempt's output are kept; after a break the agent goes on from here.
    LogKept {
        attempt: AttemptRef,
        offset: u64,
    },
    /// A later device may run this job: wrap its key, if you hold it.
    WrapFor {
        job: JobId,
        device: DeviceId,
        public_key: Blob,
    },
    Beat,
}

/// All that a provider needs to run an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assignment {
    pub attempt: AttemptRef,
    pub member_name: String,
    pub spec: JobSpec,
    pub image: Image,
    pub gpus: Vec<GpuUuid>,
    /// The job's input.
    pub input: Option<SnapshotId>,
    /// Where to go on from; absent: from the input.
    pub from: Option<SnapshotId>,
    pub data: Vec<DataInput>,
    /// The job's key for this device.
    pub key: Blob,
    /// Sealed with the job's key: the member's chunk key and the values of secrets.
    pub sealed: Blob,
    /// The number of the job's first attempt is 1; from the second on `GPUNION_RESUMED=1`.
    pub resumed: bool,
    /// The attempt before this one, if any.
    #[serde(default)]
    pub previous: Option<AttemptNo>,
    /// Prepare it, and wait for `Go`: the attempt before it still runs, and alone counts.
    #[serde(default)]
    pub wait: bool,
}
