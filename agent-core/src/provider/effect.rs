//! What the provider half wants done. The driver runs effects after the changes are on disk;
//! running one twice does no harm. Each operation is answered by one `Event::Done`.

use gpunion_protocol::guest::ToInit;
use gpunion_protocol::ids::{AttemptRef, SnapshotId};
use gpunion_protocol::local::ShareStatus;
use gpunion_protocol::problem::Problem;
use gpunion_protocol::receipt::Receipt;
use gpunion_protocol::rules::RulesStatus;
use gpunion_protocol::session::ToRelay;

use super::event::{CallId, OpId};
use super::reclaim::WISH_NOT_SAVED;
use super::word::ReclaimWord;
use crate::gpu::verify::ProcessId;

#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    ToRelay(ToRelay),
    /// Run an operation on an attempt.
    Do {
        attempt: AttemptRef,
        op: OpId,
        what: Operation,
    },
    /// Give up every running operation of the attempt; its answer is not wanted any more.
    GiveUp {
        attempt: AttemptRef,
    },
    /// Listen on the guest's control channel again and watch its init, after a restart of ours.
    Attach {
        attempt: AttemptRef,
        container: String,
        process: ProcessId,
    },
    /// A word to the guest's init.
    Say {
        attempt: AttemptRef,
        word: Word,
    },
    /// The file `end` in the guest's control mount: reaches init when the channel does not.
    EndFile {
        attempt: AttemptRef,
    },
    /// The guest's cgroup frozen and killed by the second way; answered by `Event::SecondWay` when
    /// that is there.
    SecondWay {
        attempt: AttemptRef,
    },
    /// The engine's kill: the last way.
    EngineKill {
        attempt: AttemptRef,
    },
    /// A container without a record, or of an attempt that is over.
    RemoveContainer {
        container: String,
    },
    /// List what carries our label, afresh; answered by `Event::Found`.
    ListOurs,
    /// Workspace and folder of an attempt that is not on the books.
    RemoveLeft {
        attempt: AttemptRef,
    },
    /// Nobody will ask for the attempt's output here any more.
    ForgetLog {
        attempt: AttemptRef,
    },
    /// Read the GPUs ten times a second until told otherwise.
    WatchGpus {
        fast: bool,
    },
    /// What `gpunion reclaim` left word of is on our books: the word may go.
    WordHeard {
        word: ReclaimWord,
    },
    ShareAnswer {
        call: CallId,
        answer: Result<ShareStatus, Problem>,
    },
    RulesAnswer {
        call: CallId,
        answer: Result<RulesStatus, Problem>,
    },
    /// Remove inputs and images that came for guests and that no attempt on the books needs; then the
    /// call is answered.
    Wipe {
        call: CallId,
        /// Workspaces that were still being saved, and are given up.
        salvages: u32,
    },
    ReclaimAnswer {
        call: CallId,
        answer: Result<Box<Receipt>, Problem>,
    },
}

/// A word that the driver completes with what only it holds (keys, file descriptors).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// Environment, secrets and the ring go with it.
    Begin,
    Adopt,
    Plain(ToInit),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// Have the image here, by digest when it is known.
    Image,
    /// Make the workspace and fill it.
    Stage,
    Create,
    Start,
    /// First pass of a snapshot; the job computes.
    PassOne,
    /// Second pass; every process of the job stands still, or has ended.
    PassTwo,
    /// Both passes of a workspace that nobody writes to any more.
    Whole,
    /// Packs, then the manifest, to the relay.
    Upload {
        snapshot: SnapshotId,
    },
    /// Container, workspace and control folder go.
    Clean,
}

impl Effect {
    /// It goes out before the disk has what caused it: a receipt says so.
    #[must_use]
    pub fn ahead_of_disk(mut self) -> Self {
        if let Self::ReclaimAnswer { answer: Ok(receipt), .. } = &mut self
            && std::mem::take(&mut receipt.wish_saved)
        {
            receipt.troubles.push(WISH_NOT_SAVED.to_owned());
        }
        self
    }

    /// Runs before anything is written to disk: stopping never waits for a disk (invariant 1).
    pub fn is_urgent(&self) -> bool {
        match self {
            Self::Say {
                word: Word::Plain(ToInit::Stop { .. } | ToInit::GoOn { .. } | ToInit::End { .. }),
                ..
            }
            | Self::EndFile { .. }
            | Self::SecondWay { .. }
            | Self::EngineKill { .. }
            | Self::GiveUp { .. }
            | Self::WatchGpus { .. } => true,
            Self::Say { .. }
            | Self::ToRelay(_)
            | Self::Do { .. }
            | Self::RemoveContainer { .. }
            | Self::Attach { .. }
            | Self::ListOurs
            | Self::RemoveLeft { .. }
            | Self::ForgetLog { .. }
            | Self::WordHeard { .. }
            | Self::ShareAnswer { .. }
            | Self::RulesAnswer { .. }
            | Self::Wipe { .. }
            | Self::ReclaimAnswer { .. } => false,
        }
    }
}
