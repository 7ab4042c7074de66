//! RFC 9457 problems: the one error form of every wire. Consumers act on `code`, never on text.

use serde::{Deserialize, Serialize};

/// Content type of a problem body.
pub const CONTENT_TYPE: &str = "application/problem+json";

/// Stable codes; one is added only when somebody acts on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The request itself is wrong (400, 404, 422).
    BadRequest,
    BadSpec,
    NotFound,
    /// No token, or one that is not valid any more (401).
    Unauthorized,
    /// A valid token that may not do this (403).
    Forbidden,
    /// The invite is used, expired or unknown (410).
    InviteGone,
    /// A newer attempt counts, or the final state is reached (409).
    Stale,
    /// The same idempotency key came with another request (409).
    KeyReused,
    Conflict,
    TooLarge,
    /// What was sent does not have the id it claims (422).
    Corrupt,
    /// Something that must exist first does not: packs of a manifest, a manifest of a job (409).
    Missing,
    /// A queue or a disk is full; the same call may succeed later (503).
    Busy,
    DiskFull,
    /// The other program is of a version that can't be served.
    Version,
    /// This device belongs to no group.
    NoGroup,
    /// The relay can't be reached from the agent.
    RelayAway,
    EngineAway,
    /// No agent answers on this machine.
    AgentAway,
    /// Asked for something that this machine or version does not promise.
    Unsupported,
    Internal,
    /// A code of a newer version.
    #[serde(other)]
    Unknown,
}

impl Code {
    pub fn status(self) -> u16 {
        match self {
            Self::BadRequest | Self::Version => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::Stale | Self::KeyReused | Self::Conflict | Self::Missing | Self::NoGroup => 409,
            Self::InviteGone => 410,
            Self::TooLarge => 413,
            Self::BadSpec | Self::Corrupt | Self::Unsupported => 422,
            Self::Internal | Self::Unknown => 500,
            Self::RelayAway | Self::AgentAway => 502,
            Self::Busy | Self::EngineAway => 503,
            Self::DiskFull => 507,
        }
    }

    /// Exit code of the command line for this problem (design, section 11).
    pub fn exit(self) -> u8 {
        match self {
            Self::BadRequest | Self::BadSpec => 2,
            Self::RelayAway | Self::EngineAway | Self::AgentAway => 3,
            Self::Unauthorized | Self::Forbidden | Self::InviteGone | Self::NoGroup | Self::Unsupported => 4,
            Self::NotFound
            | Self::Stale
            | Self::KeyReused
            | Self::Conflict
            | Self::TooLarge
            | Self::Corrupt
            | Self::Missing
            | Self::Busy
            | Self::DiskFull
            | Self::Version
            | Self::Internal
            | Self::Unknown => 1,
        }
    }
}

/// `title` says what went wrong, `detail` why and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{title}{}", .detail.as_deref().map(|d| format!(": {d}")).unwrap_or_default())]
pub struct Problem {
    /// `about:blank` semantics: the code tells the type.
    #[serde(rename = "type", default = "blank")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    pub code: Code,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

fn blank() -> String {
    "about:blank".to_owned()
}

impl Problem {
    pub fn new(code: Code, title: impl Into<String>) -> Self {
        Self { kind: blank(), title: title.into(), status: code.status(), code, detail: None }
    }

    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }
}
