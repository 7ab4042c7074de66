//! The uid that this device's guests run as: nobody's on the host.
//!
//! It comes out of a range that no distribution gives to people, services, subordinate users or
//! containers (above 1,879,048,191), so that a file or process of a guest can never be taken for
//! the owner's. Where the host has used that very number all the same, the next one is taken.

use std::fs;
use std::ops::Range;

use gpunion_protocol::ids::DeviceId;

use super::error::EngineError;

const RANGE: Range<u32> = 0x7000_0000..0x7F00_0000;
const TRIES: u32 = 10_000;

/// The same for a device as long as the host's own users stay the same.
pub fn guest_uid(device: &DeviceId) -> Result<u32, EngineError> {
    let read = |path: &str| match fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(e) => Err(EngineError::refused("choosing a user id for guests", format!("{path}: {e}"))),
    };
    let (passwd, subuid) = (read("/etc/passwd")?, read("/etc/subuid")?);
    let (group, subgid) = (read("/etc/group")?, read("/etc/subgid")?);
    choose(device, &[&passwd, &group], &[&subuid, &subgid]).ok_or_else(|| {
        EngineError::refused(
            "choosing a user id for guests",
            "all ids from 1879048192 on are given to users in /etc/passwd or /etc/subuid; free some of them",
        )
    })
}

fn choose(device: &DeviceId, users: &[&str], subordinate: &[&str]) -> Option<u32> {
    let taken: Vec<u32> = users.iter().flat_map(|text| text.lines().filter_map(user_id)).collect();
    let ranges: Vec<Range<u64>> =
        subordinate.iter().flat_map(|text| text.lines().filter_map(id_range)).collect();
    let width = RANGE.end - RANGE.start;
    let hash = blake3::hash(device.to_string().as_bytes());
    let [a, b, c, d, ..] = *hash.as_bytes();
    let first = u32::from_le_bytes([a, b, c, d]) % width;
    // Whole ranges are stepped over by large strides: a host may have given away a million ids.
    (0..TRIES)
        .map(|i| RANGE.start + (first + i.wrapping_mul(65_537) % width) % width)
        .find(|id| !taken.contains(id) && !ranges.iter().any(|range| range.contains(&u64::from(*id))))
}

/// The third field of a line of passwd or group.
fn user_id(line: &str) -> Option<u32> {
    line.split(':').nth(2)?.parse().ok()
}

/// `name:first:count`.
fn id_range(line: &str) -> Option<Range<u64>> {
    let mut fields = line.split(':').skip(1);
    let first: u64 = fields.next()?.parse().ok()?;
    let count: u64 = fields.next()?.parse().ok()?;
    Some(first..first.saturating_add(count))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_id_of_the_host_is_never_taken() {
        let device = DeviceId::new(1, [5; 10]);
        let free = choose(&device, &[""], &[""]).unwrap();
        assert!(RANGE.contains(&free));
        let passwd = format!("root:x:0:0::/:/bin/sh\nodd:x:{free}:1::/:/bin/sh\n");
        let second = choose(&device, &[&passwd], &[""]).unwrap();
        assert_ne!(second, free);
        let third = choose(&device, &[&passwd], &[&format!("odd:{second}:1")]).unwrap();
        assert!(third != free && third != second);
        assert_eq!(choose(&device, &[""], &["all:0:4294967295"]), None);
    }

    proptest! {
        #[test]
        fn no_file_of_users_panics(text in "[a-z:0-9\n]{0,400}", seed in any::<[u8; 10]>()) {
            if let Some(id) = choose(&DeviceId::new(1, seed), &[&text], &[&text]) {
                prop_assert!(RANGE.contains(&id));
            }
        }
    }
}
