//! Wrapped job keys and sealed secrets open for whom they were made, and for nobody else.

use gpunion_snapshot::*;

use crate::common::*;

#[test]
fn a_job_key_opens_for_its_device_and_job_only() {
    let device = DeviceSecret::generate(&mut SystemRandomness).unwrap();
    let other = DeviceSecret::generate(&mut SystemRandomness).unwrap();
    let wrapped =
        wrap_job_key(&job_key(), &device.public(), "job_1", "dev_1", &mut SystemRandomness).unwrap();
    assert_eq!(wrapped.len(), WRAPPED_LEN);
    assert_eq!(unwrap_job_key(&wrapped, &device, "job_1", "dev_1").unwrap(), job_key());
    for (device, job, name) in [
        (&other, "job_1", "dev_1"),
        (&device, "job_2", "dev_1"),
        (&device, "job_1", "dev_2"),
        (&device, "job_1d", "ev_1"),
    ] {
        let opened = unwrap_job_key(&wrapped, device, job, name);
        assert!(matches!(opened, Err(Error::NotOpened { .. })));
    }
    for at in 0..wrapped.len() {
        let mut bytes = wrapped.clone();
        bytes[at] ^= 1;
        assert!(unwrap_job_key(&bytes, &device, "job_1", "dev_1").is_err(), "byte {at}");
    }
}

#[test]
fn a_device_key_of_low_order_is_refused() {
    let wrapped = wrap_job_key(&job_key(), &DevicePublic([0; 32]), "j", "d", &mut SystemRandomness);
    assert!(matches!(wrapped, Err(Error::Malformed { .. })));
}

#[test]
fn a_secret_opens_under_its_name_only() {
    let sealed = seal_secret(&job_key(), "env/HF_TOKEN", b"hf_123", &mut SystemRandomness).unwrap();
    assert!(!sealed.windows(6).any(|part| part == b"hf_123"));
    assert_eq!(open_secret(&job_key(), "env/HF_TOKEN", &sealed).unwrap().as_slice(), b"hf_123");
    assert!(open_secret(&job_key(), "env/OTHER", &sealed).is_err());
    assert!(open_secret(&JobKey::from_bytes([0; 32]), "env/HF_TOKEN", &sealed).is_err());
    let long = vec![0; MAX_SECRET + 1];
    assert!(seal_secret(&job_key(), "x", &long, &mut SystemRandomness).is_err());
}

#[test]
fn keys_are_not_shown() {
    let shown = format!("{:?} {:?} {:?}", job_key(), chunk_key(), DeviceSecret::from_bytes([9; 32]));
    assert_eq!(shown, "JobKey(..) ChunkKey(..) DeviceSecret(..)");
}
