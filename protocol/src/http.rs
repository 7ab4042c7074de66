//! The relay's HTTP interface under `/v1`: bodies of requests and replies. docs/protocol.md
//! lists the routes.

use serde::{Deserialize, Serialize};

use crate::ids::{DeviceId, InviteId, JobId, MemberId, PackId, SnapshotId};
use crate::job::{Blob, DataInput, Image, JobState, WrappedKey};
use crate::offer::Offer;
use crate::spec::JobSpec;
use crate::time::WallMs;

/// Header that makes a submit safe to repeat.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Header of the answer to a part of a pack or snapshot (`Content-Range` in the request): so many
/// bytes are here, go on from there.
pub const UPLOAD_OFFSET: &str = "upload-offset";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Member,
    Operator,
}

/// `POST /v1/join`, the only call without a token besides health.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    pub code: String,
    /// How the person wants to be called; ignored when the invite is for a member who exists.
    pub member_name: String,
    pub device_name: String,
    /// X25519 public key of the device, 32 bytes.
    pub public_key: Blob,
}

impl std::fmt::Debug for Join {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Join").field("device_name", &self.device_name).finish_non_exhaustive()
    }
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    pub group: String,
    pub member: MemberId,
    pub member_name: String,
    pub role: Role,
    pub device: DeviceId,
    /// 64 hex digits; shown once, hashed at the relay.
    pub token: String,
}

impl std::fmt::Debug for Joined {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Joined")
            .field("group", &self.group)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// `GET /v1/me`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Me {
    pub group: String,
    pub member: MemberId,
    pub member_name: String,
    pub role: Role,
    pub device: DeviceId,
    pub device_name: String,
}

/// `POST /v1/invites`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewInvite {
    pub role: Role,
    /// For another device of this member; absent: a new member.
    #[serde(default)]
    pub member: Option<MemberId>,
    /// Seconds that it is valid.
    pub valid_s: u64,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeInvite {
    pub id: InviteId,
    pub link: String,
    pub expires: WallMs,
}

impl std::fmt::Debug for MadeInvite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MadeInvite").field("id", &self.id).finish_non_exhaustive()
    }
}

/// `GET /v1/members`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberView {
    pub id: MemberId,
    pub name: String,
    pub role: Role,
    pub devices: Vec<DeviceView>,
}

/// `GET /v1/devices`: what a member may know of every device, its public key among it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceView {
    pub id: DeviceId,
    pub member: MemberId,
    pub name: String,
    pub public_key: Blob,
    pub connected: bool,
    #[serde(default)]
    pub offer: Option<Offer>,
    /// GPUs of the offer that no attempt holds now.
    #[serde(default)]
    pub gpus_free: u32,
    #[serde(default)]
    pub revoked: bool,
}

/// `POST /v1/jobs`, with an idempotency key. Input, data and image layers are at the relay by then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submit {
    /// Chosen by the member's device (keys are bound to it); refused if it exists with another body.
    pub job: JobId,
    pub spec: JobSpec,
    pub image: Image,
    #[serde(default)]
    pub input: Option<SnapshotId>,
    #[serde(default)]
    pub data: Vec<DataInput>,
    pub keys: Vec<WrappedKey>,
    pub sealed: Blob,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submitted {
    pub job: JobId,
    #[serde(flatten)]
    pub state: JobState,
}

/// `POST /v1/packs/have` and `POST /v1/snapshots/have`: which of these are missing here?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HavePacks {
    pub packs: Vec<PackId>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingPacks {
    pub missing: Vec<PackId>,
}

/// At most so many ids in one have-list.
pub const HAVE_MAX: usize = 4096;

/// One event of `GET /v1/events` (SSE; the id is its number, `Last-Event-ID` resumes).
/// Members get those of their own jobs; operators get all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// The job changed; fetch it, or use what is here.
    Job {
        job: JobId,
        #[serde(flatten)]
        state: JobState,
        at: WallMs,
    },
    /// Words for the member about a move, a checkpoint, an attempt.
    Note { job: JobId, text: String, at: WallMs },
    /// Members, devices or offers changed.
    Group,
    /// Events before this one are gone: fetch everything anew.
    Missed,
}

/// One SSE message of `GET /v1/jobs/{id}/log?from=N&follow=1`. `next` resumes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "log")]
pub enum LogPiece {
    Bytes {
        next: u64,
        bytes: Blob,
    },
    /// From here on it is this attempt's output.
    Attempt {
        next: u64,
        number: u32,
        device_name: String,
    },
    /// So many bytes were dropped here.
    Gap {
        next: u64,
        bytes: u64,
    },
    /// The job is final and its log complete.
    End {
        next: u64,
    },
}
