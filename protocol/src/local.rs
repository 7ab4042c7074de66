//! The agent's local API: HTTP and SSE over a unix socket. docs/protocol.md lists the routes.
//!
//! One whole snapshot, pushed on change: a face never assembles its picture from pieces.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::egress::{Contacts, EgressRule};
use crate::gpu::GpuSample;
use crate::http::Role;
use crate::ids::{AttemptRef, DeviceId, GpuUuid, JobId, MemberId};
use crate::job::AttemptState;
use crate::receipt::Receipt;
use crate::rules::Verdict;
use crate::spec::JobSpec;
use crate::time::WallMs;
use crate::units::{Bytes, Span};

/// Everything a face shows of this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Grows with each change.
    pub version: u64,
    pub agent: AgentStatus,
    pub group: Option<GroupStatus>,
    pub share: ShareStatus,
    pub engine: EngineStatus,
    /// Why there are no GPUs, in a plain sentence; absent when NVML answers.
    pub gpus_absent: Option<String>,
    pub gpus: Vec<GpuStatus>,
    pub guests: Vec<GuestStatus>,
    pub last_receipt: Option<Receipt>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    pub version: String,
    pub pid: u32,
    pub device_name: String,
    pub data: PathBuf,
    /// Where the device token is kept: "keyring", or "file" with a warning in `doctor`.
    pub token_in: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStatus {
    pub name: String,
    pub member: MemberId,
    pub member_name: String,
    pub role: Role,
    pub device: DeviceId,
    pub relay: String,
    pub connected: bool,
    /// Why it is not connected, in a sentence.
    pub trouble: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "wish")]
pub enum Wish {
    Sharing {
        /// The owner's own clock; absent: until switched off.
        #[serde(default)]
        until: Option<WallMs>,
    },
    NotSharing,
    PausedUntil {
        /// Absent: until resumed.
        #[serde(default)]
        until: Option<WallMs>,
    },
}

/// What the owner wishes, and what is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareStatus {
    pub wish: Wish,
    /// GPUs whose wish differs from the machine's.
    pub gpus: BTreeMap<String, Wish>,
    pub caps: Caps,
    /// The longest that a job gets to save when it must leave, whatever its spec asks for.
    #[serde(default)]
    pub grace: Span,
    /// What a reclaimed job left in its workspace may be saved for it afterwards.
    #[serde(default)]
    pub salvage: bool,
    /// Guests that were told to leave and still run or are still being saved.
    #[serde(default)]
    pub leaving: u32,
    /// What guests may reach.
    #[serde(default)]
    pub egress: EgressRule,
    /// What each of the owner's rules says now.
    #[serde(default)]
    pub rules: Vec<Verdict>,
    /// Attempts are taken now.
    pub open: bool,
    /// One sentence: why not, or what is lent.
    pub why: String,
}

/// The most that all guests together may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caps {
    pub cpus: u32,
    pub memory: Bytes,
    pub disk: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "engine")]
pub enum EngineStatus {
    Ready {
        name: String,
        version: String,
        gpu: String,
    },
    /// Nothing is concluded from it; the agent goes on asking (F63, F74).
    Unknown {
        why: String,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuStatus {
    #[serde(flatten)]
    pub sample: GpuSample,
    pub wish: Wish,
    /// Why one of the owner's rules keeps it from being lent, whatever the wish; absent: none does.
    #[serde(default)]
    pub kept: Option<String>,
    pub lent_to: Option<AttemptRef>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestStatus {
    pub attempt: AttemptRef,
    pub name: String,
    pub member: String,
    pub image: String,
    pub gpus: Vec<GpuUuid>,
    pub state: AttemptState,
    pub since: WallMs,
    pub note: Option<String>,
    /// Last checkpoint that counts, and how long the job stood still for it.
    pub checkpoint: Option<WallMs>,
    pub stopped_ms: Option<u64>,
    /// How long it is from one to the next now, unless the program says that it saved.
    #[serde(default)]
    pub checkpoint_every: Option<Span>,
    pub disk_used: Option<u64>,
    pub processes: Option<u32>,
    /// What it contacted; absent for a guest without egress.
    #[serde(default)]
    pub contacts: Option<Contacts>,
}

/// `POST /v1/share`
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ShareRequest {
    /// Absent: only the limits change.
    #[serde(default)]
    pub on: Option<bool>,
    #[serde(default)]
    pub gpu: Option<GpuUuid>,
    #[serde(default)]
    pub until: Option<WallMs>,
    #[serde(default)]
    pub cpus: Option<u32>,
    #[serde(default)]
    pub memory: Option<Bytes>,
    #[serde(default)]
    pub disk: Option<Bytes>,
    #[serde(default)]
    pub grace: Option<Span>,
    #[serde(default)]
    pub salvage: Option<bool>,
}

/// `POST /v1/pause`: lend nothing for a while, then again what was lent before; the answer is
/// `ShareStatus`. With neither `length` nor `until` the pause lasts until it is ended.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PauseRequest {
    /// So long, whatever becomes of the clock on the wall meanwhile.
    #[serde(default)]
    pub length: Option<Span>,
    /// Until the owner's own clock shows this.
    #[serde(default)]
    pub until: Option<WallMs>,
    /// End it instead.
    #[serde(default)]
    pub resume: bool,
}

/// The answer to `POST /v1/wipe`: how much of what jobs left here is gone.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Wiped {
    /// Workspaces of reclaimed jobs that were still being saved for them.
    pub salvages: u32,
    /// Read-only inputs that were kept for the next attempt.
    pub inputs: u32,
    /// Images that were not here before a guest came.
    pub images: u32,
    /// What could not be removed now, a sentence each.
    #[serde(default)]
    pub troubles: Vec<String>,
}

/// `POST /v1/reclaim`; the answer is the receipt.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ReclaimRequest {
    /// Absent: all of them, and CPU guests too.
    #[serde(default)]
    pub gpu: Option<GpuUuid>,
}

/// `POST /v1/join`
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    pub link: String,
    #[serde(default)]
    pub member_name: Option<String>,
    #[serde(default)]
    pub device_name: Option<String>,
}

impl std::fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinRequest").finish_non_exhaustive()
    }
}

/// The answer to `POST /v1/leave-group`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// What could not be done, in a sentence: the relay was not told.
    #[serde(default)]
    pub trouble: Option<String>,
}

/// One SSE message of `GET /v1/jobs/{id}/log?from=N&follow=1`: the relay's pieces as they are, or
/// why there are no more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LogEvent {
    Piece(crate::http::LogPiece),
    Problem { problem: crate::problem::Problem },
}

/// `POST /v1/preview`: what would be sent.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct PreviewRequest {
    /// An absolute path of a folder or a `gpunion.toml`, or an image reference.
    pub thing: Thing,
    #[serde(default)]
    pub image: Option<String>,
    #[serde(default)]
    pub name: Option<String>,
    /// Replaces the spec's command when not empty.
    #[serde(default)]
    pub args: Vec<String>,
    /// Values for the spec's secrets; the caller's environment is the caller's to read.
    #[serde(default)]
    pub secrets: BTreeMap<String, String>,
}

impl std::fmt::Debug for PreviewRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&String> = self.secrets.keys().collect();
        f.debug_struct("PreviewRequest")
            .field("thing", &self.thing)
            .field("image", &self.image)
            .field("secrets", &names)
            .finish_non_exhaustive()
    }
}

/// `POST /v1/jobs`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubmitRequest {
    #[serde(flatten)]
    pub what: PreviewRequest,
    /// The member has seen what will be sent; nothing is sent without.
    #[serde(default)]
    pub accepted: bool,
    /// `Preview::digest` of what the member has seen: another spec or tree is refused. Absent:
    /// whatever is there now is sent.
    #[serde(default)]
    pub seen: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "value")]
pub enum Thing {
    Folder(PathBuf),
    Image(String),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Preview {
    pub spec: JobSpec,
    /// Secrets of the spec whose values are not known yet.
    pub secrets_missing: Vec<String>,
    /// An image that fits what is in the folder, when none is named.
    pub image_suggested: Option<String>,
    pub image_from: String,
    pub files: u64,
    pub bytes: u64,
    /// Up to ten, largest first.
    pub largest: Vec<(String, u64)>,
    pub left_out: u64,
    pub warnings: Vec<String>,
    /// Where each `[[data]]` comes from on this machine.
    #[serde(default)]
    pub data: Vec<DataPreview>,
    /// Names this spec with these files; goes back as `SubmitRequest::seen`.
    #[serde(default)]
    pub digest: String,
}

/// One `[[data]]`, as it would be sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataPreview {
    /// The folder on this machine, links resolved.
    pub from: PathBuf,
    /// Where the job finds it.
    pub at: String,
    pub files: u64,
    pub bytes: u64,
}

/// Progress of `POST /v1/jobs` (SSE), beginning with `Begun`, ending in `Submitted` or `Failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "step")]
pub enum SubmitProgress {
    /// The id that the job will have, so that whoever lets go of the stream can look whether it
    /// was submitted all the same.
    Begun {
        job: JobId,
    },
    Reading {
        files: u64,
        bytes: u64,
        total: u64,
    },
    Image {
        bytes: u64,
        total: Option<u64>,
    },
    Sending {
        sent: u64,
        total: u64,
        files: u64,
        rate: u64,
        left_ms: Option<u64>,
    },
    Submitted {
        job: JobId,
        sent: u64,
        reused: u64,
    },
    Failed {
        problem: crate::problem::Problem,
    },
}

/// `POST /v1/jobs/{id}/fetch`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchRequest {
    pub into: PathBuf,
    /// The newest checkpoint instead of the result.
    #[serde(default)]
    pub checkpoint: bool,
    /// Write over files that are there.
    #[serde(default)]
    pub overwrite: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "step")]
pub enum FetchProgress {
    Fetching { bytes: u64, total: u64, files: u64, rate: u64, left_ms: Option<u64> },
    Done { into: PathBuf, files: u64, bytes: u64 },
    Failed { problem: crate::problem::Problem },
}

/// One finding of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Engine, rights, GPU, disk, clock, relay, keyring, limits, …
    pub about: String,
    pub grade: Grade,
    /// What is, in the user's words.
    pub what: String,
    /// The exact fix, when there is one.
    pub fix: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    Good,
    /// Works, but less is promised.
    Warning,
    Bad,
}
