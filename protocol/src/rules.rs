//! The owner's rules as the local API tells them. What they mean is the agent's alone.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::GpuUuid;
use crate::time::WallMs;

/// What one rule says now, of the machine or of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    pub rule: String,
    /// Absent: of the whole machine.
    #[serde(default)]
    pub gpu: Option<GpuUuid>,
    /// Lending is not narrowed by it now.
    pub allows: bool,
    /// One sentence.
    pub reason: String,
    /// When it says something else by itself, where that is known.
    #[serde(default)]
    pub until: Option<WallMs>,
}

/// One key of `gpunion rules`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleSetting {
    pub key: String,
    pub value: String,
    pub default: String,
    /// What it is, in a sentence.
    pub what: String,
}

/// The answer to `GET` and `POST /v1/rules`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesStatus {
    pub rules: Vec<RuleSetting>,
    pub verdicts: Vec<Verdict>,
}

/// `POST /v1/rules`: all of it is set, or nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RulesRequest {
    /// Values as people write them; "default" sets one back.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
}
