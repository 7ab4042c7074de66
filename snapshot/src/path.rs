//! A path inside a snapshot: bytes, relative, and unable to leave its root.
//!
//! Names on Linux are any bytes but `/` and NUL, so this is never a `String`. The type can't hold
//! `..`, an absolute path or an empty name: whoever has a `TreePath` need not check again.

use std::cmp::Ordering;
use std::fmt;

use crate::error::{Error, Result};

/// Longest path in bytes, as the kernel has it (less the closing NUL).
pub const MAX_PATH: usize = 4095;
/// Longest single name in bytes.
pub const MAX_NAME: usize = 255;
/// Most folders that may be nested.
pub const MAX_DEPTH: usize = 512;

/// Ordered by components, so that a folder comes right before what is in it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TreePath(Box<[u8]>);

impl TreePath {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        let bytes = bytes.into();
        match problem(&bytes) {
            Some(reason) => Err(Error::BadPath { shown: bytes.escape_ascii().to_string(), reason }),
            None => Ok(Self(bytes.into())),
        }
    }

    /// A path for messages about the root or about a name that was never accepted.
    pub(crate) fn unchecked(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/')
    }

    /// The folder (none for the root) and the last name.
    #[must_use]
    pub fn split(&self) -> (Option<&[u8]>, &[u8]) {
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (Some(&self.0[..at]), &self.0[at + 1..]),
            None => (None, &self.0),
        }
    }
}

fn problem(bytes: &[u8]) -> Option<&'static str> {
    if bytes.is_empty() {
        return Some("it is empty");
    }
    if bytes.len() > MAX_PATH {
        return Some("it is longer than 4095 bytes");
    }
    if bytes.contains(&0) {
        return Some("it holds a zero byte");
    }
    let mut depth = 0_usize;
    for name in bytes.split(|byte| *byte == b'/') {
        depth += 1;
        match name {
            b"" => return Some("it is absolute or holds an empty name"),
            b"." | b".." => return Some("it holds . or .."),
            name if name.len() > MAX_NAME => return Some("a name is longer than 255 bytes"),
            _ => {}
        }
    }
    (depth > MAX_DEPTH).then_some("more than 512 folders are nested")
}

impl Ord for TreePath {
    fn cmp(&self, other: &Self) -> Ordering {
        self.components().cmp(other.components())
    }
}

impl PartialOrd for TreePath {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match std::str::from_utf8(&self.0) {
            Ok("") => f.write_str("."),
            Ok(text) if !text.chars().any(char::is_control) => f.write_str(text),
            Ok(_) | Err(_) => write!(f, "{}", self.0.escape_ascii()),
        }
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_can_not_leave_its_root() {
        for bad in ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "a\0b"] {
            assert!(TreePath::new(bad).is_err(), "{bad:?}");
        }
        for good in ["a", "a/b", "...", "..a/b..", "a b/\u{1}"] {
            assert!(TreePath::new(good).is_ok(), "{good:?}");
        }
        assert!(TreePath::new(vec![0xff, b'/', 0xfe]).is_ok());
    }

    #[test]
    fn a_folder_comes_right_before_what_is_in_it() {
        let mut paths: Vec<_> = ["a-b", "a/b", "a", "b", "a.b"].map(|p| TreePath::new(p).unwrap()).into();
        paths.sort();
        let shown: Vec<_> = paths.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["a", "a/b", "a-b", "a.b", "b"]);
    }
}
