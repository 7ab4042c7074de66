//! What the broker keeps across restarts, one type for each table of the store.
//!
//! Only data. No boot time is ever in here: it means nothing after a restart, so leases start
//! anew then. Wall times are for people. Offers and sessions are not kept: agents tell them again.

use std::fmt;
use std::str::FromStr;

use gpunion_protocol::http::Role;
use gpunion_protocol::ids::{
    AttemptNo, AttemptRef, DeviceId, GpuUuid, InviteId, JobId, MemberId, SnapshotId, Token,
};
use gpunion_protocol::job::{AttemptState, Blob, Checkpoint, DataInput, EndCause, Image, Moved, WrappedKey};
use gpunion_protocol::spec::JobSpec;
use gpunion_protocol::time::WallMs;
use serde::{Deserialize, Serialize};

/// One row of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "row")]
pub enum Record {
    Member(Member),
    Device(Device),
    Invite(Invite),
    Job(Box<Job>),
    Course(Course),
    Attempt(Box<Attempt>),
    Usage(Usage),
}

/// The primary key of a row, with the table it is in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "key")]
pub enum Key {
    Member(MemberId),
    Device(DeviceId),
    Invite(InviteId),
    Job(JobId),
    Course(JobId),
    Attempt(JobId, AttemptNo),
    Usage(MemberId),
}

/// What the driver must commit before it runs the effects of the same step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Put(Record),
    Delete(Key),
}

impl Record {
    pub fn key(&self) -> Key {
        match self {
            Self::Member(row) => Key::Member(row.id.clone()),
            Self::Device(row) => Key::Device(row.id.clone()),
            Self::Invite(row) => Key::Invite(row.id.clone()),
            Self::Job(row) => Key::Job(row.id.clone()),
            Self::Course(row) => Key::Course(row.job.clone()),
            Self::Attempt(row) => Key::Attempt(row.job.clone(), row.token.attempt),
            Self::Usage(row) => Key::Usage(row.member.clone()),
        }
    }
}

/// BLAKE3 of something that is looked up by its hash alone: a token, an invite's code, a body.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(pub [u8; 32]);

impl Digest {
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({})", &hex::encode(self.0)[..8])
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// A digest that is not 64 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a digest has 64 hex digits")]
pub struct BadDigest;

impl FromStr for Digest {
    type Err = BadDigest;

    fn from_str(text: &str) -> Result<Self, BadDigest> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| BadDigest)?;
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Digest {
    type Error = BadDigest;

    fn try_from(text: String) -> Result<Self, BadDigest> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

/// A person. A removed one stays, so that old jobs keep a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub id: MemberId,
    pub name: String,
    pub role: Role,
    pub removed: bool,
}

/// A machine. A revoked one stays, so that old attempts keep a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub id: DeviceId,
    pub member: MemberId,
    pub name: String,
    /// X25519, 32 bytes.
    pub public_key: Blob,
    /// Of the token, which only the device has.
    pub token: Digest,
    pub revoked: bool,
}

/// Deleted once used, expired or of no use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invite {
    pub id: InviteId,
    /// Of the code in the link.
    pub code: Digest,
    pub role: Role,
    /// For another device of this member; absent: a new member.
    pub member: Option<MemberId>,
    /// By the relay's own wall clock.
    pub expires: WallMs,
}

/// What was asked for. Only the image's digest and the keys change later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    pub id: JobId,
    pub member: MemberId,
    /// Counts accepted jobs: the age of a job, whatever clocks say.
    pub number: u64,
    pub submitted: WallMs,
    pub spec: JobSpec,
    pub image: Image,
    pub input: Option<SnapshotId>,
    pub data: Vec<DataInput>,
    pub keys: Vec<WrappedKey>,
    pub sealed: Blob,
    pub idempotency_key: String,
    pub body: Digest,
}

/// How far a job came; kept apart from `Job`, which is large and hardly changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Course {
    pub job: JobId,
    /// Two published checkpoints, oldest first: the newest, and the last quiet one or the one before.
    pub chain: Vec<Checkpoint>,
    /// The program failed at once from this one: the next attempt goes on from the one before it.
    pub doubted: Option<SnapshotId>,
    /// Attempts in a row that a provider ended before they got any further; who left before it ran
    /// is none of them.
    pub strikes: u32,
    /// Why it is held, in words.
    pub held: Option<String>,
    pub result: Option<SnapshotId>,
    pub end: Option<JobEnd>,
    /// Counts jobs that became final: of a member's finished jobs the latest are kept.
    #[serde(default)]
    pub finished: u64,
}

/// A job's final state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "end")]
pub enum JobEnd {
    Succeeded,
    Failed { cause: EndCause },
    Cancelled,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    pub job: JobId,
    pub token: Token,
    pub device: DeviceId,
    pub gpus: Vec<GpuUuid>,
    /// The checkpoint it goes on from; absent: from the job's input.
    pub from: Option<SnapshotId>,
    pub state: AttemptState,
    /// It has been `running`.
    pub ran: bool,
    /// The newest of what it published, oldest first, so that a repeated word is known again.
    pub published: Vec<SnapshotId>,
    /// The device has nothing of it any more: its GPUs are free for others.
    pub released: bool,
    /// A GPU of it is a stand-in.
    pub standin: bool,
    pub placed: WallMs,
    pub started: Option<WallMs>,
    pub ended: Option<WallMs>,
    /// When it computed last, as far as is known; absent while it may.
    #[serde(default)]
    pub quit: Option<WallMs>,
    /// What it cost that the job goes on here.
    #[serde(default)]
    pub moved: Option<Moved>,
    /// It is prepared while the attempt before it still runs, and counts for nothing yet.
    #[serde(default)]
    pub ahead: bool,
    /// It was made ahead: its program waits for `Go`.
    #[serde(default)]
    pub prepared: bool,
}

impl Attempt {
    pub fn named(&self) -> AttemptRef {
        AttemptRef { job: self.job.clone(), token: self.token }
    }
}

/// What a member used of late, for fairness.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub member: MemberId,
    /// GPU-milliseconds, halved each half-life; as of the last time it was settled.
    pub gpu_ms: u64,
}
