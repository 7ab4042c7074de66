//! What of a world happens: each fault, each job, each kind of small trouble can be left out, and
//! all else stays as near to what it was as can be. So a failure can be made small (`shorten`).
//!
//! Whoever acts draws from a stream of chance of its own, and a fault or a job from one that
//! depends on its number alone: what is left out moves the others' luck no more than it must.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Something that can be left out of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The fault of this number.
    Fault(u64),
    /// The job of this number.
    Job(u64),
    Small(Small),
}

/// Small troubles that may come at any time while the world is rough.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Small {
    /// A message is lost inside a session that lasts.
    Lost,
    /// A message overtakes others, or is overtaken.
    Reordered,
    /// An operation is in trouble.
    Operation,
    /// A commit takes its time, and things happen meanwhile.
    SlowDisk,
    /// A guest can't be begun.
    CannotBegin,
    /// What it takes to begin a guest is long in coming.
    SlowBegin,
    /// An init is slow to stop its guest, or can't stop all of it in time.
    SlowStop,
    /// A word of an init is read late.
    SlowWord,
    /// A client's call or its answer is lost.
    Client,
}

impl Small {
    pub(super) const ALL: [Self; 9] = [
        Self::Lost,
        Self::Reordered,
        Self::Operation,
        Self::SlowDisk,
        Self::CannotBegin,
        Self::SlowBegin,
        Self::SlowStop,
        Self::SlowWord,
        Self::Client,
    ];

    const fn word(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Reordered => "reordered",
            Self::Operation => "operation",
            Self::SlowDisk => "slow-disk",
            Self::CannotBegin => "cannot-begin",
            Self::SlowBegin => "slow-begin",
            Self::SlowStop => "slow-stop",
            Self::SlowWord => "slow-word",
            Self::Client => "client",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fault(number) => write!(f, "f{number}"),
            Self::Job(number) => write!(f, "j{number}"),
            Self::Small(small) => f.write_str(small.word()),
        }
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(small) = Small::ALL.into_iter().find(|small| small.word() == text) {
            return Ok(Self::Small(small));
        }
        let number = |digits: &str| digits.parse().map_err(|_| format!("no part of a world: {text}"));
        match (text.strip_prefix('f'), text.strip_prefix('j')) {
            (Some(digits), _) => number(digits).map(Self::Fault),
            (_, Some(digits)) => number(digits).map(Self::Job),
            (None, None) => Err(format!("no part of a world: {text}")),
        }
    }
}

/// Which parts happen.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// These alone; absent: all.
    pub only: Option<BTreeSet<Part>>,
}

impl Script {
    pub fn of(parts: impl IntoIterator<Item = Part>) -> Self {
        Self { only: Some(parts.into_iter().collect()) }
    }

    pub(super) fn has(&self, part: Part) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(&part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_as_it_is_written() {
        let parts = Small::ALL.map(Part::Small).into_iter().chain([Part::Fault(0), Part::Job(77)]);
        for part in parts {
            assert_eq!(part.to_string().parse(), Ok(part));
        }
        assert!("x3".parse::<Part>().is_err());
    }
}
