//! Between whoever ends a guest whose init does not answer, and the second way: a small program
//! that sees the guests' cgroups and nothing else.
//!
//! It listens on a unix socket in a folder of the agent's owner. One frame is asked, one is
//! answered (`guest::encode`), and the connection is over.

use serde::{Deserialize, Serialize};

/// Its name in the folder.
pub const SECOND_WAY_SOCKET: &str = "second-way.sock";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "say")]
pub enum ToSecondWay {
    /// End the guests in these containers, by their ids. None: only a sign of life.
    End { containers: Vec<String> },
    /// End every guest of this device.
    EndAll,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FromSecondWay {
    #[serde(default)]
    pub guests: Vec<GuestEnd>,
    /// A sentence why nothing could be tried.
    #[serde(default)]
    pub trouble: Option<String>,
}

/// What became of one guest. Times are from the moment that the word was read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestEnd {
    pub container: String,
    /// It has a cgroup here. Nothing is concluded about one that has none.
    pub found: bool,
    /// Processes that were killed.
    #[serde(default)]
    pub killed: u32,
    /// None of its threads ran any more.
    #[serde(default)]
    pub stopped_us: Option<u64>,
    /// None of its processes existed any more.
    #[serde(default)]
    pub ended_us: Option<u64>,
    #[serde(default)]
    pub trouble: Option<String>,
}
