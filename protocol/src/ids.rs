//! Every id of the project, each its own type, so that one can't be taken for another.
//!
//! Text ids are `PREFIX_` and 26 characters of Crockford base 32 (48 bits of time, 80 random
//! bits: the ULID layout). The random part is passed in: this crate has no randomness.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An id that does not have the form its kind demands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {kind} id (expected {prefix}_ and 26 characters)")]
pub struct BadId {
    pub kind: &'static str,
    pub prefix: &'static str,
    pub text: String,
}

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

fn encode(wall_ms: u64, random: [u8; 10]) -> String {
    let mut bits: u128 = u128::from(wall_ms & 0xffff_ffff_ffff) << 80;
    for (i, byte) in random.iter().enumerate() {
        bits |= u128::from(*byte) << (72 - 8 * i);
    }
    (0..26).rev().map(|i| char::from(ALPHABET[((bits >> (5 * i)) & 31) as usize])).collect()
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $kind:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            pub const PREFIX: &'static str = $prefix;

            /// A new id from a wall time in milliseconds and ten random bytes.
            pub fn new(wall_ms: u64, random: [u8; 10]) -> Self {
                Self(format!("{}_{}", $prefix, encode(wall_ms, random)))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                let bad = || BadId { kind: $kind, prefix: $prefix, text: text.chars().take(80).collect() };
                let rest = text.strip_prefix(concat!($prefix, "_")).ok_or_else(bad)?;
                if rest.len() == 26 && rest.bytes().all(|b| ALPHABET.contains(&b)) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(bad())
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadId;

            fn try_from(text: String) -> Result<Self, BadId> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
    };
}

text_id!(
    /// What a member asked to have run.
    JobId, "job", "job"
);
text_id!(
    /// A person in the group.
    MemberId, "mem", "member"
);
text_id!(
    /// A machine paired with the group.
    DeviceId, "dev", "device"
);
text_id!(
    /// An invitation, named without its secret code.
    InviteId, "inv", "invite"
);

macro_rules! hash_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(pub [u8; 32]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), &hex::encode(self.0)[..12])
            }
        }

        impl FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                let bad = || BadId { kind: $kind, prefix: "64 hex digits, not", text: text.chars().take(80).collect() };
                let mut bytes = [0; 32];
                hex::decode_to_slice(text, &mut bytes).map_err(|_| bad())?;
                Ok(Self(bytes))
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadId;

            fn try_from(text: String) -> Result<Self, BadId> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }
    };
}

hash_id!(
    /// BLAKE3 of a sealed manifest's bytes: one immutable version of a workspace.
    SnapshotId, "snapshot"
);
hash_id!(
    /// BLAKE3 of a pack's sealed bytes.
    PackId, "pack"
);
hash_id!(
    /// Keyed BLAKE3 of a chunk's plain bytes; the key is its member's.
    ChunkId, "chunk"
);

/// A placement of a job, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttemptNo(pub u32);

impl fmt::Display for AttemptNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Grows at each start of the relay, so that a restored backup can't reuse an attempt number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// What every message and write of an attempt carries; ordered: a later one is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Token {
    pub epoch: Epoch,
    pub attempt: AttemptNo,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch.0, self.attempt.0)
    }
}

/// One attempt of one job, named in full.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptRef {
    pub job: JobId,
    pub token: Token,
}

impl fmt::Display for AttemptRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.job, self.token.attempt)
    }
}

/// A GPU's UUID as the driver prints it (`GPU-…`, `MIG-…`). Never an index: orders differ (F28).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuUuid(pub String);

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ids_round_trip_and_refuse_other_kinds() {
        let job = JobId::new(1_764_000_000_000, [7; 10]);
        assert_eq!(job.to_string().parse::<JobId>().unwrap(), job);
        assert!(job.to_string().parse::<MemberId>().is_err());
        assert!("job_short".parse::<JobId>().is_err());
        assert!(serde_json::from_str::<JobId>("\"../../etc\"").is_err());
    }

    #[test]
    fn later_ids_sort_later() {
        assert!(JobId::new(1, [255; 10]) < JobId::new(2, [0; 10]));
    }

    #[test]
    fn a_later_epoch_is_newer_than_any_attempt_of_an_earlier_one() {
        let old = Token { epoch: Epoch(1), attempt: AttemptNo(9) };
        let new = Token { epoch: Epoch(2), attempt: AttemptNo(1) };
        assert!(new > old);
    }
}
