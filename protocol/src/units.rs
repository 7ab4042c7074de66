//! Sizes and durations as people write them: "10 GiB", "5 min".
//!
//! A number without a unit is refused: "10" could be bytes or gigabytes, and a wrong guess
//! costs somebody a run.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::time::Millis;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadUnit {
    #[error("{0:?} is not a size; write a number and a unit, such as \"10 GiB\" or \"500 MB\"")]
    Size(String),
    #[error("{0:?} is not a duration; write a number and a unit, such as \"5 min\" or \"30 s\"")]
    Duration(String),
    #[error("{0:?} is larger than anything this program can count")]
    TooLarge(String),
}

/// A number of bytes; written in text with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

/// A duration; written in text with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(pub Millis);

const SIZES: &[(&str, u64)] = &[
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];
const SPANS: &[(&str, u64)] = &[
    ("ms", 1),
    ("s", 1_000),
    ("sec", 1_000),
    ("m", 60_000),
    ("min", 60_000),
    ("h", 3_600_000),
    ("hour", 3_600_000),
    ("hours", 3_600_000),
    ("d", 86_400_000),
    ("day", 86_400_000),
    ("days", 86_400_000),
];

/// Splits "1.5 GiB" and multiplies; `None` for a bad form, `Some(None)` for an overflow.
fn measure(text: &str, units: &[(&str, u64)]) -> Option<Option<u64>> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(end);
    let unit = unit.trim();
    let factor = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?.1;
    if let Ok(whole) = number.parse::<u64>() {
        return Some(whole.checked_mul(factor));
    }
    let value = number.parse::<f64>().ok()? * factor as f64;
    Some((value.is_finite() && value < u64::MAX as f64).then_some(value.round() as u64))
}

impl FromStr for Bytes {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Self, BadUnit> {
        measure(text, SIZES)
            .ok_or_else(|| BadUnit::Size(text.to_owned()))?
            .map(Self)
            .ok_or_else(|| BadUnit::TooLarge(text.to_owned()))
    }
}

impl FromStr for Span {
    type Err = BadUnit;

    fn from_str(text: &str) -> Result<Self, BadUnit> {
        measure(text, SPANS)
            .ok_or_else(|| BadUnit::Duration(text.to_owned()))?
            .map(|ms| Self(Millis(ms)))
            .ok_or_else(|| BadUnit::TooLarge(text.to_owned()))
    }
}

/// Exact when a unit divides it, else one decimal of the largest fitting binary unit.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
        for (name, factor) in binary {
            if self.0 >= factor {
                return if self.0.is_multiple_of(factor) {
                    write!(f, "{} {name}", self.0 / factor)
                } else {
                    write!(f, "{:.1} {name}", self.0 as f64 / factor as f64)
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.0;
        match ms {
            0 => write!(f, "0 s"),
            _ if ms.is_multiple_of(86_400_000) => write!(f, "{} d", ms / 86_400_000),
            _ if ms.is_multiple_of(3_600_000) => write!(f, "{} h", ms / 3_600_000),
            _ if ms.is_multiple_of(60_000) => write!(f, "{} min", ms / 60_000),
            _ if ms.is_multiple_of(1_000) => write!(f, "{} s", ms / 1_000),
            _ => write!(f, "{ms} ms"),
        }
    }
}

/// Exact text, for values that are read back.
fn exact_bytes(bytes: Bytes) -> String {
    for (name, factor) in [("TiB", 1u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes.0 >= factor && bytes.0.is_multiple_of(factor) {
            return format!("{} {name}", bytes.0 / factor);
        }
    }
    format!("{} B", bytes.0)
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&exact_bytes(*self))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.to_string())
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        assert_eq!("10 GiB".parse::<Bytes>().unwrap(), Bytes(10 << 30));
        assert_eq!("1.5GiB".parse::<Bytes>().unwrap(), Bytes(3 << 29));
        assert_eq!("500 MB".parse::<Bytes>().unwrap(), Bytes(500_000_000));
        assert!("10".parse::<Bytes>().is_err(), "a bare number has no meaning");
        assert!("-1 GiB".parse::<Bytes>().is_err());
        assert!("99999999999 TiB".parse::<Bytes>().is_err());
    }

    #[test]
    fn durations_read_as_people_write_them() {
        assert_eq!("5 min".parse::<Span>().unwrap(), Span(Millis(300_000)));
        assert_eq!("2 s".parse::<Span>().unwrap(), Span(Millis(2_000)));
        assert!("5 parsecs".parse::<Span>().is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(n in any::<u64>()) {
            let text = serde_json::to_string(&Bytes(n)).unwrap();
            prop_assert_eq!(serde_json::from_str::<Bytes>(&text).unwrap(), Bytes(n));
            let span = Span(Millis(n));
            prop_assert_eq!(span.to_string().parse::<Span>().unwrap(), span);
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = text.parse::<Bytes>();
            let _ = text.parse::<Span>();
        }
    }
}
