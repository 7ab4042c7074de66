//! Everything that can go wrong with a snapshot, by name.
//!
//! A caller branches on these: a file that changed is the program's doing, a pack that does not
//! verify is a bad store, a refused manifest is an attack or a bug. So none is a plain text.

use std::io;

use crate::ids::PackId;
use crate::path::TreePath;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: can't be read: {source}")]
    Unreadable { path: TreePath, source: io::Error },
    #[error("{path}: changed while it was read")]
    Changed { path: TreePath },
    #[error("{path}: is a device; a workspace may hold files, folders and links only")]
    Device { path: TreePath },
    #[error("{path}: lies on another file system; snapshots never cross a mount")]
    OtherFilesystem { path: TreePath },
    #[error("{path}: too deep; at most {limit} folders may be nested")]
    TooDeep { path: TreePath, limit: usize },
    #[error("{shown}: this name can't be kept in a snapshot: {reason}")]
    BadPath { shown: String, reason: &'static str },
    #[error("{what}: {found} is over the limit of {limit}")]
    OverLimit { what: &'static str, found: u64, limit: u64 },
    #[error("pack {pack} is damaged or not the one asked for: {reason}")]
    BadPack { pack: PackId, reason: &'static str },
    #[error("pack {pack} can't be fetched: {source}")]
    PackSource { pack: PackId, source: io::Error },
    #[error("a pack can't be handed on: {0}")]
    PackSink(io::Error),
    #[error("this is no sealed {what}: {reason}")]
    Malformed { what: &'static str, reason: &'static str },
    #[error("the {what} can't be opened: wrong key, or changed on the way")]
    NotOpened { what: &'static str },
    #[error("the snapshots to build on use another member's chunk key")]
    OtherChunkKey,
    #[error("{path}: can't be written: {source}")]
    Unwritable { path: TreePath, source: io::Error },
    #[error("{path}: already there; restore into an empty folder")]
    AlreadyThere { path: TreePath },
    #[error("stopped on request")]
    Cancelled,
    #[error("{what}: {source}")]
    System { what: &'static str, source: io::Error },
}

impl Error {
    /// The path below the snapshot's root that the error is about, when it is about one.
    #[must_use]
    pub fn path(&self) -> Option<&TreePath> {
        match self {
            Error::Unreadable { path, .. }
            | Error::Changed { path }
            | Error::Device { path }
            | Error::OtherFilesystem { path }
            | Error::TooDeep { path, .. }
            | Error::Unwritable { path, .. }
            | Error::AlreadyThere { path } => Some(path),
            Error::BadPath { .. }
            | Error::OverLimit { .. }
            | Error::BadPack { .. }
            | Error::PackSource { .. }
            | Error::PackSink(_)
            | Error::Malformed { .. }
            | Error::NotOpened { .. }
            | Error::OtherChunkKey
            | Error::Cancelled
            | Error::System { .. } => None,
        }
    }
}
