//! Why a relay does not start, or stopped. Problems of single requests are `http::problem`.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("another relay ({holder}) runs on the state folder {}; stop it, or name another folder with --state", .path.display())]
    StateInUse { path: PathBuf, holder: String },
    #[error("the state folder {} belongs to another user, who could read the relay's key; name one of your own with --state", .path.display())]
    NotOwned { path: PathBuf },
    #[error("cannot {doing} {}: {source}", .path.display())]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },
    #[error("the relay's key {} is damaged ({reason}); put it back from a backup: devices know the relay by it", .path.display())]
    BadKey { path: PathBuf, reason: String },
    #[error("the settings {} are wrong: {reason}", .path.display())]
    BadSettings { path: PathBuf, reason: String },
    #[error("the database {} was written by a newer gpunion (its version {found}, this program knows {known}); install that one", .path.display())]
    NewerDatabase { path: PathBuf, found: u32, known: u32 },
    #[error("cannot {doing} the database: {source}")]
    Store { doing: &'static str, source: rusqlite::Error },
    #[error("the database holds what this program can't read ({table}): {reason}")]
    BadRow { table: &'static str, reason: String },
    #[error("TLS can't be set up: {0}")]
    Tls(String),
    #[error("the system gives no random bytes: {0}")]
    Random(String),
    #[error("the relay stopped working: {0}")]
    Stopped(String),
}

impl Error {
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { doing, path, source }
    }

    pub(crate) fn store(doing: &'static str) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| Self::Store { doing, source }
    }

    /// True when a full disk is the cause: the same call may succeed later.
    pub(crate) fn is_disk_full(&self) -> bool {
        match self {
            Self::Io { source, .. } => is_full(source),
            Self::Store { source, .. } => source.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull),
            Self::StateInUse { .. }
            | Self::NotOwned { .. }
            | Self::BadKey { .. }
            | Self::BadSettings { .. }
            | Self::NewerDatabase { .. }
            | Self::BadRow { .. }
            | Self::Tls(_)
            | Self::Random(_)
            | Self::Stopped(_) => false,
        }
    }
}

/// A full disk or an exhausted quota.
pub(crate) fn is_full(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::StorageFull || error.kind() == std::io::ErrorKind::QuotaExceeded
}
