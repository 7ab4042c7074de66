//! How a call to the container engine can fail, told apart by what the caller does next.
//!
//! An engine that is gone or stuck makes everything *unknown*, never failed (F63): the caller
//! waits and reconciles. An engine that is there and says no makes this attempt impossible here.
//! The engine's API has no codes for most of its reasons, only a status and a sentence; this is
//! the one place that reads those sentences.

use std::time::Duration;

use bollard::errors::Error as ApiError;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// Not reachable, or broken inside: nothing is known. Try again, then reconcile.
    #[error("{doing}: the container engine does not answer ({why})")]
    Away { doing: &'static str, why: String },
    /// The request can't work on this machine as it is.
    #[error("{doing}: {reason}")]
    Refused { doing: &'static str, reason: String },
}

impl EngineError {
    pub fn refused(doing: &'static str, reason: impl Into<String>) -> Self {
        Self::Refused { doing, reason: reason.into() }
    }

    pub fn away(doing: &'static str, why: impl Into<String>) -> Self {
        Self::Away { doing, why: why.into() }
    }

    pub fn is_away(&self) -> bool {
        match self {
            Self::Away { .. } => true,
            Self::Refused { .. } => false,
        }
    }

    pub(super) fn timed_out(doing: &'static str, limit: Duration) -> Self {
        Self::away(doing, format!("no answer within {} s", limit.as_secs()))
    }

    pub(super) fn of_api(doing: &'static str, error: ApiError) -> Self {
        match error {
            ApiError::DockerResponseServerError { status_code, message } => {
                of_status(doing, status_code, &message)
            }
            ApiError::DockerStreamError { error } | ApiError::DockerContainerWaitError { error, .. } => {
                of_status(doing, 500, &error)
            }
            ApiError::JsonDataError { message, .. } => {
                Self::refused(doing, format!("the engine answered what can't be read: {message}"))
            }
            // Everything else happened on the way to the engine.
            other => Self::away(doing, on_the_way(&root_cause(&other))),
        }
    }
}

/// What stands for a part of the engine being gone, in messages of a status of 500 and more.
const AWAY: &[&str] = &[
    "containerd.sock",
    "connection error: desc",
    "transport is closing",
    "error while dialing",
    "daemon is shutting down",
    "context deadline exceeded",
    "context canceled",
    "ttrpc: closed",
    "containerd: not running",
];

fn of_status(doing: &'static str, status: u16, message: &str) -> EngineError {
    let message = message.trim();
    let lower = message.to_ascii_lowercase();
    if status >= 502 || (status >= 500 && AWAY.iter().any(|sign| lower.contains(sign))) {
        return EngineError::away(doing, message);
    }
    if status == 500 && message.is_empty() {
        return EngineError::away(doing, "internal error without a reason");
    }
    EngineError::refused(doing, explained(message, &lower))
}

/// The engine's sentence, with the fix where there is a known one.
fn explained(message: &str, lower: &str) -> String {
    let fixes: &[(&str, &str)] = &[
        ("no space left on device", "free disk space where the engine keeps its data"),
        (
            "could not select device driver",
            "install the NVIDIA container toolkit and restart the container engine",
        ),
        (
            "unresolvable cdi devices",
            "write the device list anew: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
        ),
        ("driver error: timed out", "turn on the persistence mode of the GPU: sudo nvidia-smi -pm 1"),
        ("pull access denied", "make the image public, or bring it to this engine by hand"),
    ];
    match fixes.iter().find(|(sign, _)| lower.contains(sign)) {
        Some((_, fix)) => format!("{message}; {fix}"),
        None => message.to_owned(),
    }
}

fn on_the_way(cause: &str) -> String {
    if cause.contains("os error 13") {
        return format!("{cause}; let this user use it: sudo usermod -aG docker USER, then log in anew");
    }
    if ["Socket not found", "os error 2)", "os error 111"].iter().any(|sign| cause.contains(sign)) {
        return format!("{cause}; start it: sudo systemctl start docker");
    }
    cause.to_owned()
}

fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut last = error;
    while let Some(inner) = last.source() {
        last = inner;
    }
    last.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(status_code: u16, message: &str) -> EngineError {
        EngineError::of_api(
            "starting the guest",
            ApiError::DockerResponseServerError { status_code, message: message.to_owned() },
        )
    }

    #[test]
    fn f63_an_engine_that_is_gone_or_broken_inside_is_unknown_not_failed() {
        assert!(EngineError::of_api("x", ApiError::RequestTimeoutError).is_away());
        assert!(
            EngineError::of_api("x", std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into())
                .is_away()
        );
        assert!(server(503, "daemon is shutting down").is_away());
        assert!(server(500, "connection error: desc = \"transport: error while dialing\"").is_away());
    }

    #[test]
    fn an_engine_that_says_no_refuses_and_names_the_fix() {
        assert!(!server(404, "No such image: digits:1").is_away());
        let error = server(500, "could not select device driver \"nvidia\" with capabilities: [[gpu]]");
        assert!(!error.is_away());
        assert!(error.to_string().contains("NVIDIA container toolkit"), "{error}");
        let full = server(500, "write /var/lib/docker/x: no space left on device");
        assert!(full.to_string().contains("free disk space"), "{full}");
    }
}
