//! The labels and names by which a device knows its own containers and volumes again.

use std::collections::HashMap;

use gpunion_protocol::ids::{AttemptNo, AttemptRef, DeviceId, Epoch, SnapshotId, Token};

pub const DEVICE: &str = "gpunion.device";
pub const KIND: &str = "gpunion.kind";
pub const JOB: &str = "gpunion.job";
pub const ATTEMPT: &str = "gpunion.attempt";
pub const EPOCH: &str = "gpunion.epoch";
/// What a helper is there for.
pub const VERB: &str = "gpunion.verb";
/// Which conversation a helper belongs to; another one for each.
pub const TALK: &str = "gpunion.talk";
pub const SNAPSHOT: &str = "gpunion.snapshot";
/// What the second way was made from.
pub const SHAPE: &str = "gpunion.shape";

/// What a container of ours is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Guest,
    Helper,
    SecondWay,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Helper => "helper",
            Self::SecondWay => "second-way",
        }
    }
}

pub type Labels = HashMap<String, String>;

pub fn of_device(device: &DeviceId, kind: &str) -> Labels {
    let pairs = [(DEVICE, device.to_string()), (KIND, kind.to_owned())];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

pub fn of_attempt(device: &DeviceId, kind: &str, attempt: &AttemptRef) -> Labels {
    let mut labels = of_device(device, kind);
    labels.insert(JOB.to_owned(), attempt.job.to_string());
    labels.insert(ATTEMPT.to_owned(), attempt.token.attempt.to_string());
    labels.insert(EPOCH.to_owned(), attempt.token.epoch.0.to_string());
    labels
}

pub fn are_ours(device: &DeviceId, labels: &Labels) -> bool {
    labels.get(DEVICE).is_some_and(|owner| *owner == device.to_string())
}

pub fn kind(labels: &Labels) -> Option<Kind> {
    match labels.get(KIND).map(String::as_str) {
        Some("guest") => Some(Kind::Guest),
        Some("helper") => Some(Kind::Helper),
        Some("second-way") => Some(Kind::SecondWay),
        Some(_) | None => None,
    }
}

pub fn attempt(labels: &Labels) -> Option<AttemptRef> {
    Some(AttemptRef {
        job: labels.get(JOB)?.parse().ok()?,
        token: Token {
            epoch: Epoch(labels.get(EPOCH)?.parse().ok()?),
            attempt: AttemptNo(labels.get(ATTEMPT)?.parse().ok()?),
        },
    })
}

pub fn guest_name(device: &DeviceId, attempt: &AttemptRef) -> String {
    format!("gpunion-{device}-{}-{}-{}", attempt.job, attempt.token.epoch.0, attempt.token.attempt)
}

/// One volume for each attempt: what one left must never be another's start by accident.
pub fn workspace_name(device: &DeviceId, attempt: &AttemptRef) -> String {
    format!("gpunion-{device}-{}-{}-{}-workspace", attempt.job, attempt.token.epoch.0, attempt.token.attempt)
}

pub fn data_name(device: &DeviceId, snapshot: &SnapshotId) -> String {
    format!("gpunion-data-{device}-{snapshot}")
}

#[cfg(test)]
mod tests {
    use gpunion_protocol::ids::JobId;

    use super::*;

    #[test]
    fn an_attempt_is_read_back_from_its_labels() {
        let device = DeviceId::new(1, [1; 10]);
        let attempt_ref = AttemptRef {
            job: JobId::new(2, [2; 10]),
            token: Token { epoch: Epoch(7), attempt: AttemptNo(3) },
        };
        let labels = of_attempt(&device, Kind::Guest.word(), &attempt_ref);
        assert_eq!(attempt(&labels), Some(attempt_ref));
        assert_eq!(kind(&labels), Some(Kind::Guest));
        assert!(are_ours(&device, &labels));
        assert!(!are_ours(&DeviceId::new(1, [9; 10]), &labels));
        assert!(!are_ours(&device, &Labels::new()));
    }
}
