//! Wraps a job's key for a device that joined later; only a holder of the key can.

use gpunion_protocol::ids::{DeviceId, JobId};
use gpunion_protocol::job::{Blob, WrappedKey};
use gpunion_protocol::problem::{Code, Problem};
use gpunion_snapshot::{DevicePublic, SystemRandomness, unwrap_job_key, wrap_job_key};

use crate::config::Membership;
use crate::consumer::keys::key_of;

/// `mine`: the key as it was wrapped for this device with an assignment; else it is one's own job.
pub(super) async fn for_device(
    member: &Membership,
    job: &JobId,
    device: &DeviceId,
    public_key: &Blob,
    mine: Option<Blob>,
) -> Result<WrappedKey, Problem> {
    let bad = |title: &str, detail: String| Problem::new(Code::Corrupt, title).with_detail(detail);
    let key = match mine {
        Some(wrapped) => {
            let me = member.group.device.as_str();
            unwrap_job_key(&wrapped.0, &member.identity.secret, job.as_str(), me)
                .map_err(|e| bad("the job's key does not open", e.to_string()))?
        }
        None => key_of(member, &member.client.job(job).await?)?,
    };
    let public = <[u8; 32]>::try_from(public_key.0.as_slice())
        .map_err(|_| bad("the device's public key is damaged", format!("{} bytes", public_key.0.len())))?;
    let wrapped =
        wrap_job_key(&key, &DevicePublic(public), job.as_str(), device.as_str(), &mut SystemRandomness)
            .map_err(|e| bad("the job's key can't be wrapped", e.to_string()))?;
    Ok(WrappedKey { device: device.clone(), wrapped: Blob(wrapped) })
}
