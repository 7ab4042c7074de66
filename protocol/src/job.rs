//! Jobs and attempts: their states, why they wait, how they end and whose doing that was.

use serde::{Deserialize, Serialize};

use crate::ids::{AttemptNo, DeviceId, JobId, MemberId, SnapshotId, Token};
use crate::spec::JobSpec;
use crate::time::{Millis, WallMs};

/// Where an attempt is. `Ended` is final.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum AttemptState {
    /// The broker has set the GPUs aside; the provider has not answered yet.
    Reserved,
    Preparing {
        step: PrepareStep,
    },
    Ready,
    Running,
    Stopped {
        why: StopWhy,
    },
    Saving,
    Ended {
        cause: EndCause,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrepareStep {
    Pull,
    Stage,
}

/// Why a guest's processes stand still.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopWhy {
    Checkpoint,
    /// The lease ran out on a guest with egress.
    LeaseOver,
    Suspended,
    Away,
    Reclaim,
}

/// How an attempt ended. Only what init reported is the program's own end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum EndCause {
    Exited {
        code: i32,
    },
    Signalled {
        signal: i32,
    },
    /// The spec's `memory`, as the cgroup's own events tell it.
    MemoryLimit,
    /// The spec's `disk`.
    DiskLimit,
    Cancelled,
    /// The owner wanted the GPU now.
    Reclaimed,
    /// The owner went with notice.
    Left,
    /// The provider vanished without a word, or its lease ran out.
    Lost,
    /// A newer attempt counts.
    Stale,
    CouldNotStart {
        reason: String,
    },
    /// The guest ended without a report of init: killed from outside, or the engine went.
    Broken {
        reason: String,
    },
}

/// Who has to answer for an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whose {
    Program,
    Member,
    Provider,
}

impl EndCause {
    pub fn whose(&self) -> Whose {
        match self {
            Self::Exited { .. } | Self::Signalled { .. } => Whose::Program,
            Self::MemoryLimit | Self::DiskLimit | Self::Cancelled => Whose::Member,
            Self::Reclaimed
            | Self::Left
            | Self::Lost
            | Self::Stale
            | Self::CouldNotStart { .. }
            | Self::Broken { .. } => Whose::Provider,
        }
    }

    /// One sentence for people.
    pub fn sentence(&self) -> String {
        match self {
            Self::Exited { code: 0 } => "The program finished".to_owned(),
            Self::Exited { code } => format!("The program ended with exit code {code}"),
            Self::Signalled { signal } => format!("The program was ended by signal {signal} of its own"),
            Self::MemoryLimit => {
                "The job needed more memory than its spec allows (resources.memory)".to_owned()
            }
            Self::DiskLimit => "The job wrote more than its spec allows (resources.disk)".to_owned(),
            Self::Cancelled => "Cancelled".to_owned(),
            Self::Reclaimed => "The owner took the GPU back".to_owned(),
            Self::Left => "The provider left".to_owned(),
            Self::Lost => "The provider vanished".to_owned(),
            Self::Stale => "A newer attempt of the job counts".to_owned(),
            Self::CouldNotStart { reason } => format!("The job could not start there: {reason}"),
            Self::Broken { reason } => format!("The guest broke off: {reason}"),
        }
    }
}

impl AttemptState {
    pub fn is_ended(&self) -> bool {
        matches!(self, Self::Ended { .. })
    }

    /// Still before `running`: reserved, preparing or ready.
    pub fn is_before_running(&self) -> bool {
        match self {
            Self::Reserved | Self::Preparing { .. } | Self::Ready => true,
            Self::Running | Self::Stopped { .. } | Self::Saving | Self::Ended { .. } => false,
        }
    }
}

/// Where a job is, as everybody sees it: a function of its spec and its attempts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum JobState {
    /// `why` is one sentence that a person understands.
    Queued {
        why: String,
    },
    Placed,
    Running,
    Moving,
    Held {
        why: String,
    },
    Succeeded,
    Failed {
        cause: EndCause,
    },
    Cancelled,
}

impl JobState {
    pub fn is_final(&self) -> bool {
        match self {
            Self::Succeeded | Self::Failed { .. } | Self::Cancelled => true,
            Self::Queued { .. } | Self::Placed | Self::Running | Self::Moving | Self::Held { .. } => false,
        }
    }

    pub fn word(&self) -> &'static str {
        match self {
            Self::Queued { .. } => "queued",
            Self::Placed => "placed",
            Self::Running => "running",
            Self::Moving => "moving",
            Self::Held { .. } => "held",
            Self::Succeeded => "succeeded",
            Self::Failed { .. } => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// How far a checkpoint can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quality {
    /// Taken while the program computed: at best crash-consistent.
    Running,
    /// The program had said that it saved, or had ended.
    Quiet,
}

/// One published checkpoint of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub snapshot: SnapshotId,
    /// Counts up within an attempt, so that one that was overtaken on its way is known; 0 from an
    /// agent that does not count.
    #[serde(default)]
    pub number: u64,
    pub quality: Quality,
    pub token: Token,
    /// Bytes of the workspace it holds, and how many of them had to travel.
    pub bytes: u64,
    pub new_bytes: u64,
    /// How long the job stood still for it.
    pub stopped: Millis,
    /// The relay's wall time when it was published, for display.
    #[serde(default)]
    pub at: Option<WallMs>,
    /// The relay's wall time when its content was complete: when the program said that it had saved,
    /// else when it stood still. Work since then is lost when the job goes on from here.
    #[serde(default)]
    pub taken: Option<WallMs>,
}

/// What it cost a job that it goes on in a later attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// Where it computed before.
    pub from: DeviceId,
    /// How long nobody computed.
    pub idle: Millis,
    /// Work that is lost, at most.
    pub lost: Millis,
}

/// Where the image of a job comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "from")]
pub enum Image {
    /// `digest` is `sha256:…`; the first preparation fixes it for all later attempts.
    Registry { reference: String, digest: Option<String> },
    /// An image that no registry has: a snapshot whose files are those of a `docker save` archive.
    Layers { reference: String, image_id: String, snapshot: SnapshotId },
}

impl Image {
    pub fn reference(&self) -> &str {
        match self {
            Self::Registry { reference, .. } | Self::Layers { reference, .. } => reference,
        }
    }
}

/// A read-only input with its own snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataInput {
    /// Absolute path in the guest.
    pub at: String,
    pub snapshot: SnapshotId,
    pub bytes: u64,
}

/// A job's key, wrapped for one device. Base 64 on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrappedKey {
    pub device: DeviceId,
    pub wrapped: Blob,
}

/// Bytes as base 64 text on the wire.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Blob(pub Vec<u8>);

impl std::fmt::Debug for Blob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Blob({} bytes)", self.0.len())
    }
}

impl Serialize for Blob {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        use base64::Engine as _;
        s.serialize_str(&base64::engine::general_purpose::STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        use base64::Engine as _;
        let text = String::deserialize(d)?;
        base64::engine::general_purpose::STANDARD.decode(text).map(Self).map_err(serde::de::Error::custom)
    }
}

/// One attempt, as `show` tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptView {
    pub number: AttemptNo,
    pub device: DeviceId,
    pub device_name: String,
    pub state: AttemptState,
    /// How far it is, or what is wrong, as the provider told it last.
    #[serde(default)]
    pub note: Option<String>,
    pub started: Option<WallMs>,
    pub ended: Option<WallMs>,
    /// True when a GPU of it was a stand-in: no figure of it is a GPU figure.
    #[serde(default)]
    pub standin: bool,
    /// Absent for a first attempt, and until it runs.
    #[serde(default)]
    pub moved: Option<Moved>,
}

/// One job, as its member sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobView {
    pub id: JobId,
    pub member: MemberId,
    pub member_name: String,
    pub spec: JobSpec,
    pub image: Image,
    #[serde(flatten)]
    pub state: JobState,
    pub submitted: WallMs,
    pub attempts: Vec<AttemptView>,
    /// The last two checkpoints, oldest first.
    pub checkpoints: Vec<Checkpoint>,
    pub result: Option<SnapshotId>,
    /// What the member's device needs to open the result; absent for other people's jobs.
    #[serde(default)]
    pub sealed: Option<Blob>,
    #[serde(default)]
    pub wrapped: Vec<WrappedKey>,
}
