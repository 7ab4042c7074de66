//! What a job's key opens besides its snapshots, and for whom it is wrapped.

use std::collections::BTreeMap;
use std::fmt;

use gpunion_protocol::http::DeviceView;
use gpunion_protocol::ids::JobId;
use gpunion_protocol::job::{Blob, JobView, WrappedKey};
use gpunion_protocol::problem::{Code, Problem};
use gpunion_snapshot::{
    ChunkKey, DevicePublic, JobKey, SystemRandomness, open_secret, seal_secret, unwrap_job_key, wrap_job_key,
};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize as _, Zeroizing};

use crate::config::Membership;

/// The name under which it is sealed.
const NAME: &str = "job";

/// The sealed part of a job: what its provider must know and its relay must not.
#[derive(Clone, PartialEq, Eq)]
pub struct JobSecrets {
    /// Names the chunks of the job's checkpoints, so that they build on its input.
    pub chunk_key: ChunkKey,
    /// Values of the spec's secrets.
    pub secrets: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct Wire {
    chunk_key: String,
    #[serde(default)]
    secrets: BTreeMap<String, String>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.chunk_key.zeroize();
        self.secrets.values_mut().for_each(|value| value.zeroize());
    }
}

impl fmt::Debug for JobSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobSecrets").field("secrets", &self.secrets.keys()).finish_non_exhaustive()
    }
}

impl JobSecrets {
    pub fn seal(&self, job_key: &JobKey) -> Result<Blob, Problem> {
        let wire = Wire { chunk_key: hex::encode(self.chunk_key.expose()), secrets: self.secrets.clone() };
        let plain = Zeroizing::new(serde_json::to_vec(&wire).map_err(|error| internal(&error))?);
        seal_secret(job_key, NAME, &plain, &mut SystemRandomness).map(Blob).map_err(|error| {
            Problem::new(Code::TooLarge, "the values of the job's secrets can't be sealed")
                .with_detail(error.to_string())
        })
    }

    pub fn open(job_key: &JobKey, sealed: &Blob) -> Result<Self, Problem> {
        let plain = open_secret(job_key, NAME, &sealed.0).map_err(|error| {
            Problem::new(Code::Corrupt, "the job's sealed part does not open").with_detail(error.to_string())
        })?;
        let damaged = || Problem::new(Code::Corrupt, "the job's sealed part makes no sense");
        let wire: Wire = serde_json::from_slice(&plain).map_err(|_| damaged())?;
        let mut key = [0; 32];
        hex::decode_to_slice(&wire.chunk_key, &mut key).map_err(|_| damaged())?;
        Ok(Self { chunk_key: ChunkKey::from_bytes(key), secrets: wire.secrets.clone() })
    }
}

/// Wraps a job's key for every device that is not revoked: any of them may run it.
pub fn wrap_for(job_key: &JobKey, job: &JobId, devices: &[DeviceView]) -> Result<Vec<WrappedKey>, Problem> {
    let mut wrapped = Vec::with_capacity(devices.len());
    for device in devices.iter().filter(|device| !device.revoked) {
        let Ok(public) = <[u8; 32]>::try_from(device.public_key.0.as_slice()) else {
            tracing::warn!(device = %device.id, "its public key is damaged; it can't run this job");
            continue;
        };
        let bytes = wrap_job_key(
            job_key,
            &DevicePublic(public),
            job.as_str(),
            device.id.as_str(),
            &mut SystemRandomness,
        )
        .map_err(|error| internal(&error))?;
        wrapped.push(WrappedKey { device: device.id.clone(), wrapped: Blob(bytes) });
    }
    Ok(wrapped)
}

/// The key of one's own job.
pub fn key_of(member: &Membership, job: &JobView) -> Result<JobKey, Problem> {
    let device = &member.group.device;
    let mine = job.wrapped.iter().find(|key| key.device == *device).ok_or_else(|| {
        Problem::new(Code::Forbidden, format!("the key of {} is not here", job.id)).with_detail(
            "it was wrapped for the devices that its member had when it was submitted; fetch it on one of those",
        )
    })?;
    unwrap_job_key(&mine.wrapped.0, &member.identity.secret, job.id.as_str(), device.as_str()).map_err(
        |error| {
            Problem::new(Code::Corrupt, format!("the key of {} does not open", job.id))
                .with_detail(error.to_string())
        },
    )
}

fn internal(error: &dyn fmt::Display) -> Problem {
    Problem::new(Code::Internal, "the job's key can't be used").with_detail(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_open_with_the_jobs_key_only_and_are_not_shown() {
        let key = JobKey::generate(&mut SystemRandomness).unwrap();
        let secrets = JobSecrets {
            chunk_key: ChunkKey::from_bytes([3; 32]),
            secrets: BTreeMap::from([("HF_TOKEN".to_owned(), "hunter2".to_owned())]),
        };
        let sealed = secrets.seal(&key).unwrap();
        assert!(!sealed.0.windows(7).any(|part| part == b"hunter2"));
        assert_eq!(JobSecrets::open(&key, &sealed).unwrap(), secrets);
        assert!(JobSecrets::open(&JobKey::from_bytes([1; 32]), &sealed).is_err());
        let shown = format!("{secrets:?}");
        assert!(shown.contains("HF_TOKEN") && !shown.contains("hunter2"));
    }
}
