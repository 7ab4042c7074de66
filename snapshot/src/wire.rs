//! Reading and writing little-endian fields. Every read is bounded by what is there, so a decoder
//! built on it can neither panic nor allocate by a number in hostile bytes.

use crate::error::{Error, Result};
use crate::keys::array;

pub(crate) struct Fields<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, rest: bytes }
    }

    pub(crate) fn bad<T>(&self, reason: &'static str) -> Result<T> {
        Err(Error::Malformed { what: self.what, reason })
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(len) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => self.bad("it ends too early"),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(array(self.take(N)?))
    }

    pub(crate) fn magic(&mut self, magic: &[u8; 8]) -> Result<()> {
        if self.rest.starts_with(magic) {
            self.take(magic.len())?;
            return Ok(());
        }
        self.bad("another kind or version")
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    /// A count of items of at least `each` bytes: refused when they can't all be there, so
    /// reserving for it is safe.
    pub(crate) fn count(&mut self, each: usize, limit: usize) -> Result<usize> {
        let count = self.u32()? as usize;
        if count > limit {
            return self.bad("a count is over its limit");
        }
        if count.saturating_mul(each) > self.rest.len() {
            return self.bad("a count is more than what follows");
        }
        Ok(count)
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn end(self) -> Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        self.bad("bytes are left over")
    }
}

/// A length or index that fits by construction; saturates instead of wrapping, and the decoder's
/// limits then refuse it.
pub(crate) fn u32_of(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
