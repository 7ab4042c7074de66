//! Keys, and what is sealed with them apart from packs and manifests: job keys wrapped for
//! devices, and small secrets.
//!
//! Key bytes are wiped when dropped, never shown, and have no serde form on purpose: a key can't
//! get into a message by being part of a struct.

use std::fmt;

use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, XChaCha20Poly1305};
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::error::{Error, Result};
use crate::random::Randomness;

pub const KEY_LEN: usize = 32;
pub(crate) const TAG_LEN: usize = 16;
pub(crate) const NONCE_LEN: usize = 24;

/// Longest plain text of a sealed secret, in bytes.
pub const MAX_SECRET: usize = 64 * 1024;
/// Exact length of a wrapped job key, in bytes.
pub const WRAPPED_LEN: usize = WRAP_MAGIC.len() + KEY_LEN + KEY_LEN + TAG_LEN;

const WRAP_MAGIC: &[u8; 8] = b"GPUWRAP1";
const SECRET_MAGIC: &[u8; 8] = b"GPUSECR1";

macro_rules! key {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
        pub struct $name([u8; KEY_LEN]);

        impl $name {
            #[must_use]
            pub fn from_bytes(bytes: [u8; KEY_LEN]) -> Self {
                Self(bytes)
            }

            pub fn generate(random: &mut dyn Randomness) -> Result<Self> {
                let mut key = Self([0; KEY_LEN]);
                random.fill(&mut key.0)?;
                Ok(key)
            }

            /// The bytes themselves, for the keyring and for sealed records only.
            #[must_use]
            pub fn expose(&self) -> &[u8; KEY_LEN] {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}(..)", stringify!($name))
            }
        }
    };
}

key!(
    /// Opens the manifests and secrets of one job.
    JobKey
);
key!(
    /// Keys the chunk ids and chunk boundaries of one member.
    ChunkKey
);
key!(
    /// Opens one pack.
    PackKey
);
key!(
    /// The secret half of a device's key pair (X25519).
    DeviceSecret
);

impl DeviceSecret {
    #[must_use]
    pub fn public(&self) -> DevicePublic {
        DevicePublic(PublicKey::from(&StaticSecret::from(self.0)).to_bytes())
    }
}

/// The public half of a device's key pair (X25519).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicePublic(pub [u8; KEY_LEN]);

/// Wraps a job's key for one device. Bound to both names: a key wrapped for another job or
/// device does not open, even where the key pair is the same.
pub fn wrap_job_key(
    job_key: &JobKey,
    device: &DevicePublic,
    job_id: &str,
    device_id: &str,
    random: &mut dyn Randomness,
) -> Result<Vec<u8>> {
    let ephemeral = DeviceSecret::generate(random)?;
    let public = ephemeral.public();
    let key = wrapping_key(&ephemeral, device, &public, device, job_id, device_id)?;
    let mut sealed = Vec::with_capacity(WRAPPED_LEN);
    sealed.extend_from_slice(WRAP_MAGIC);
    sealed.extend_from_slice(&public.0);
    let mut body = Zeroizing::new(*job_key.expose());
    // The wrapping key is used once, since the ephemeral key is: a zero nonce is safe.
    let tag = ChaCha20Poly1305::new(&(*key).into())
        .encrypt_inout_detached(&[0; 12].into(), WRAP_MAGIC, body.as_mut_slice().into())
        .map_err(|_| Error::NotOpened { what: "job key" })?;
    sealed.extend_from_slice(body.as_slice());
    sealed.extend_from_slice(&tag);
    Ok(sealed)
}

/// Opens what [`wrap_job_key`] made.
pub fn unwrap_job_key(
    wrapped: &[u8],
    device: &DeviceSecret,
    job_id: &str,
    device_id: &str,
) -> Result<JobKey> {
    const WHAT: &str = "wrapped job key";
    let rest = wrapped
        .strip_prefix(WRAP_MAGIC)
        .filter(|_| wrapped.len() == WRAPPED_LEN)
        .ok_or(Error::Malformed { what: WHAT, reason: "wrong length or version" })?;
    let (public, sealed) = rest.split_at(KEY_LEN);
    let (body, tag) = sealed.split_at(KEY_LEN);
    let public = DevicePublic(array(public));
    let key = wrapping_key(device, &public, &public, &device.public(), job_id, device_id)?;
    let mut opened = Zeroizing::new(array::<KEY_LEN>(body));
    ChaCha20Poly1305::new(&(*key).into())
        .decrypt_inout_detached(
            &[0; 12].into(),
            WRAP_MAGIC,
            opened.as_mut_slice().into(),
            &array::<TAG_LEN>(tag).into(),
        )
        .map_err(|_| Error::NotOpened { what: WHAT })?;
    Ok(JobKey::from_bytes(*opened))
}

fn wrapping_key(
    secret: &DeviceSecret,
    other: &DevicePublic,
    ephemeral: &DevicePublic,
    device: &DevicePublic,
    job_id: &str,
    device_id: &str,
) -> Result<Zeroizing<[u8; KEY_LEN]>> {
    let shared = StaticSecret::from(*secret.expose()).diffie_hellman(&PublicKey::from(other.0));
    if !shared.was_contributory() {
        return Err(Error::Malformed { what: "device key", reason: "it is a point of low order" });
    }
    let mut hasher = blake3::Hasher::new_derive_key("gpunion 2026 job key wrap v1");
    hasher.update(shared.as_bytes());
    hasher.update(&ephemeral.0);
    hasher.update(&device.0);
    for name in [job_id, device_id] {
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
    }
    Ok(Zeroizing::new(*hasher.finalize().as_bytes()))
}

/// Seals a small secret with the job's key. `name` says what it is (`env/HF_TOKEN`) and must be
/// the same when it is opened.
pub fn seal_secret(
    job_key: &JobKey,
    name: &str,
    plain: &[u8],
    random: &mut dyn Randomness,
) -> Result<Vec<u8>> {
    if plain.len() > MAX_SECRET {
        return Err(Error::OverLimit {
            what: "bytes of a secret",
            found: plain.len() as u64,
            limit: MAX_SECRET as u64,
        });
    }
    seal(SECRET_MAGIC, &secret_key(job_key), name, plain, random)
}

/// Opens what [`seal_secret`] made; the result is wiped when dropped.
pub fn open_secret(job_key: &JobKey, name: &str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
    if sealed.len() > MAX_SECRET + SECRET_MAGIC.len() + NONCE_LEN + TAG_LEN {
        return Err(Error::Malformed { what: "secret", reason: "too long" });
    }
    open(SECRET_MAGIC, "secret", &secret_key(job_key), name, sealed)
}

fn secret_key(job_key: &JobKey) -> Zeroizing<[u8; KEY_LEN]> {
    derive("gpunion 2026 job secret v1", job_key.expose())
}

/// A key for one use, made from a job's or a member's key.
pub(crate) fn derive(context: &str, key: &[u8; KEY_LEN]) -> Zeroizing<[u8; KEY_LEN]> {
    Zeroizing::new(blake3::derive_key(context, key))
}

/// `magic ‖ nonce ‖ ciphertext ‖ tag`, the magic and the name authenticated with it.
pub(crate) fn seal(
    magic: &[u8; 8],
    key: &[u8; KEY_LEN],
    name: &str,
    plain: &[u8],
    random: &mut dyn Randomness,
) -> Result<Vec<u8>> {
    let mut nonce = [0; NONCE_LEN];
    random.fill(&mut nonce)?;
    let start = magic.len() + NONCE_LEN;
    let mut sealed = Vec::with_capacity(start + plain.len() + TAG_LEN);
    sealed.extend_from_slice(magic);
    sealed.extend_from_slice(&nonce);
    sealed.extend_from_slice(plain);
    let tag = XChaCha20Poly1305::new(&(*key).into())
        .encrypt_inout_detached(&nonce.into(), &named(magic, name), (&mut sealed[start..]).into())
        .map_err(|_| Error::NotOpened { what: "secret" })?;
    sealed.extend_from_slice(&tag);
    Ok(sealed)
}

pub(crate) fn open(
    magic: &[u8; 8],
    what: &'static str,
    key: &[u8; KEY_LEN],
    name: &str,
    sealed: &[u8],
) -> Result<Zeroizing<Vec<u8>>> {
    let rest = sealed
        .strip_prefix(magic)
        .filter(|rest| rest.len() >= NONCE_LEN + TAG_LEN)
        .ok_or(Error::Malformed { what, reason: "too short, or another version" })?;
    let (nonce, rest) = rest.split_at(NONCE_LEN);
    let (body, tag) = rest.split_at(rest.len() - TAG_LEN);
    let mut plain = Zeroizing::new(body.to_vec());
    XChaCha20Poly1305::new(&(*key).into())
        .decrypt_inout_detached(
            &array::<NONCE_LEN>(nonce).into(),
            &named(magic, name),
            plain.as_mut_slice().into(),
            &array::<TAG_LEN>(tag).into(),
        )
        .map_err(|_| Error::NotOpened { what })?;
    Ok(plain)
}

fn named(magic: &[u8; 8], name: &str) -> Vec<u8> {
    [magic.as_slice(), name.as_bytes()].concat()
}

/// Copies a slice whose length the caller has just made sure of.
pub(crate) fn array<const N: usize>(slice: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let len = N.min(slice.len());
    out[..len].copy_from_slice(&slice[..len]);
    out
}
