//! `Range: bytes=…` with one range, which is all that resuming a download needs; and
//! `Content-Range: bytes FROM-TO/TOTAL` of an upload that comes in parts.

use std::ops::Range;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Whole,
    Part(Range<u64>),
    /// It begins after the end.
    Impossible,
}

/// Anything else than one range is answered with the whole, as RFC 9110 allows.
pub(super) fn wanted(header: Option<&str>, len: u64) -> Wanted {
    let Some(range) = header.and_then(|h| h.trim().strip_prefix("bytes=")) else { return Wanted::Whole };
    let Some((from, to)) = range.split_once('-') else { return Wanted::Whole };
    let (from, to) = (from.trim(), to.trim());
    if from.is_empty() {
        let Ok(last) = to.parse::<u64>() else { return Wanted::Whole };
        return if last == 0 { Wanted::Impossible } else { Wanted::Part(len.saturating_sub(last)..len) };
    }
    let Ok(from) = from.parse::<u64>() else { return Wanted::Whole };
    let to = match to {
        "" => len,
        to => match to.parse::<u64>() {
            Ok(to) if to >= from => to.saturating_add(1).min(len),
            Ok(_) | Err(_) => return Wanted::Whole,
        },
    };
    if from >= len { Wanted::Impossible } else { Wanted::Part(from..to) }
}

/// Which bytes of how many; none of it empty.
pub(super) fn part(header: &str) -> Option<(Range<u64>, u64)> {
    let (range, total) = header.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (from, to) = range.split_once('-')?;
    let (from, to): (u64, u64) = (from.parse().ok()?, to.parse().ok()?);
    let total = total.parse().ok()?;
    (from <= to && to < total).then(|| (from..to.saturating_add(1), total))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_range_is_served() {
        assert_eq!(wanted(None, 10), Wanted::Whole);
        assert_eq!(wanted(Some("bytes=4-"), 10), Wanted::Part(4..10));
        assert_eq!(wanted(Some("bytes=4-6"), 10), Wanted::Part(4..7));
        assert_eq!(wanted(Some("bytes=4-99"), 10), Wanted::Part(4..10));
        assert_eq!(wanted(Some("bytes=-3"), 10), Wanted::Part(7..10));
        assert_eq!(wanted(Some("bytes=-99"), 10), Wanted::Part(0..10));
        assert_eq!(wanted(Some("bytes=10-"), 10), Wanted::Impossible);
        for odd in ["bytes=1-2,4-5", "lines=1-2", "bytes=b-c", "bytes=6-4", "bytes=-"] {
            assert_eq!(wanted(Some(odd), 10), Wanted::Whole, "{odd}");
        }
    }

    #[test]
    fn a_part_says_which_bytes_of_how_many() {
        assert_eq!(part("bytes 0-9/20"), Some((0..10, 20)));
        assert_eq!(part("bytes 10-19/20"), Some((10..20, 20)));
        for odd in ["bytes 10-20/20", "bytes 5-4/20", "bytes 0-9/*", "bytes */20", "lines 0-9/20", ""] {
            assert_eq!(part(odd), None, "{odd}");
        }
    }

    proptest! {
        #[test]
        fn a_part_is_never_outside(header in "bytes=[0-9]{0,20}-[0-9]{0,20}", len: u64) {
            if let Wanted::Part(range) = wanted(Some(&header), len) {
                prop_assert!(range.start <= range.end && range.end <= len);
            }
        }
    }
}
