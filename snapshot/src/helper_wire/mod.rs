//! What agent and workspace program say to each other, over the program's stdin and stdout.
//!
//! Frames: length (u32, little-endian) of what follows, one byte of kind, body. Orders and answers
//! are JSON; keys, packs and long byte strings are binary. Keys come in a frame of their own:
//! never in argv, the environment or JSON. At most [`WINDOW`] packs are on their way unanswered,
//! so neither side holds more.
//!
//! ```text
//! snapshot   > Snapshot  > Keys  > Piece(Manifest, Cache, Records)*
//!            > PassOne   < Pack* (each > PackTaken)  < Progress*  < PassOneDone     (any times)
//!            > PassTwo   < Pack* …  < Piece(Manifest)*  < Piece(Cache)*  < Done
//! restore    > Restore  > Keys  > Piece(Manifest)*  > Go  < Need* (each > Pack)  < Progress*  < Done
//! others     > Usage | Clear | Prepare  < Done
//! ```
//! After `Done` another of these may follow; the end of stdin there ends it. Anything may end with `Failed`, also while packs that were asked for are still being written:
//! whoever finds the pipe broken reads on for the reason. The end of stdin before `Done` means: stop and clean up.

mod frame;

use std::io;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::ids::{PackId, SnapshotId};
use crate::tend::Usage;
use crate::walk::Report;
use crate::watch::Progress;

pub use frame::{BadFrame, Decoder, Frame, Part, Pieces, pieces};

/// Largest frame in bytes, its length field not counted.
pub const MAX_FRAME: usize = 9 * 1024 * 1024;
/// Largest piece of a long byte string, in bytes.
pub const MAX_PIECE: usize = 8 * 1024 * 1024;
/// Most packs on their way that were not answered yet.
pub const WINDOW: usize = 2;

/// From the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum Order {
    /// Begins a snapshot of the workspace.
    Snapshot {
        /// Paths that stay out, relative, as hexadecimal bytes; a folder with all that is in it.
        leave_out: Vec<String>,
        /// Write dirty pages back first: needed while the guest runs.
        sync: bool,
    },
    PassOne,
    /// The guest is stopped: the pass that counts.
    PassTwo,
    /// One pack was taken; another may come.
    PackTaken,
    /// Begins a restore into the empty workspace.
    Restore {
        uid: u32,
        gid: u32,
        max_bytes: Option<u64>,
        /// Not empty: an older snapshot of the same job lies there whole, and only what is different
        /// is fetched and written.
        update: bool,
    },
    Go,
    /// How much the workspace takes.
    Usage,
    /// Removes all that is in the workspace.
    Clear,
    /// Makes `.home`, and gives it and the workspace itself to the guest.
    Prepare {
        uid: u32,
        gid: u32,
    },
}

/// From the workspace program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    Progress(Progress),
    PassOneDone { report: Report },
    Need { pack: PackId },
    Done(Done),
    Failed(Failure),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "snake_case")]
pub enum Done {
    Snapshot { id: SnapshotId, report: Report },
    Restored(Progress),
    Usage(Usage),
    Cleared,
    Prepared,
}

/// Why it failed, for the agent to branch on, and in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub kind: FailureKind,
    /// Below the workspace; bytes that are no text are escaped.
    pub path: Option<String>,
    pub reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// A file that can't be kept: unreadable, a device, too deep, on another file system.
    File,
    /// Something changed in the pass that counts.
    Changed,
    /// A pack or manifest that does not verify, or the wrong key.
    Damaged,
    /// Over a limit that was set.
    OverLimit,
    /// The disk is full.
    NoSpace,
    /// A file can't be written, or is already there.
    Workspace,
    Cancelled,
    /// The other side broke the order of words, or went away.
    Conversation,
    /// The machine: no random bytes, an unexpected system error.
    Machine,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        let full = |source: &io::Error| source.kind() == io::ErrorKind::StorageFull;
        let kind = match error {
            Error::Unreadable { .. }
            | Error::Device { .. }
            | Error::OtherFilesystem { .. }
            | Error::TooDeep { .. }
            | Error::BadPath { .. } => FailureKind::File,
            Error::Changed { .. } => FailureKind::Changed,
            Error::OverLimit { .. } => FailureKind::OverLimit,
            Error::BadPack { .. }
            | Error::Malformed { .. }
            | Error::NotOpened { .. }
            | Error::OtherChunkKey => FailureKind::Damaged,
            Error::Unwritable { source, .. } if full(source) => FailureKind::NoSpace,
            Error::Unwritable { .. } | Error::AlreadyThere { .. } => FailureKind::Workspace,
            Error::Cancelled => FailureKind::Cancelled,
            Error::PackSource { .. } | Error::PackSink(_) => FailureKind::Conversation,
            Error::System { .. } => FailureKind::Machine,
        };
        Self { kind, path: error.path().map(ToString::to_string), reason: error.to_string() }
    }
}
