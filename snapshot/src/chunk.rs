//! Cutting a stream into chunks where its content says so, and naming them.
//!
//! Both the boundaries and the ids are keyed with the member's key: with public ones a relay could
//! recognise a known file by the lengths or the hashes of its chunks.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Read};

use fastcdc::v2020::{Normalization, cut_gear, get_gear_with_seed, select_masks};
use zeroize::Zeroizing;

use crate::ids::ChunkId;
use crate::keys::{ChunkKey, KEY_LEN, array, derive};

pub const MIN_CHUNK: usize = 512 * 1024;
pub const AVG_CHUNK: usize = 1024 * 1024;
pub const MAX_CHUNK: usize = 4 * 1024 * 1024;

/// Holds one read-ahead buffer of twice the largest chunk, reused for every file.
pub(crate) struct Chunker {
    id_key: Zeroizing<[u8; KEY_LEN]>,
    gear: (Cow<'static, [u64]>, Cow<'static, [u64]>),
    masks: (u64, u64),
    buffer: Vec<u8>,
}

impl Chunker {
    pub(crate) fn new(key: &ChunkKey) -> Self {
        let seed = derive("gpunion 2026 chunk boundaries v1", key.expose());
        Self {
            id_key: id_key(key),
            gear: get_gear_with_seed(u64::from_le_bytes(array(seed.as_slice()))),
            masks: select_masks(AVG_CHUNK, Normalization::Level1),
            buffer: Vec::new(),
        }
    }

    /// Reads to the end and hands on each chunk. Errors of the reader and of the taker are told
    /// apart by the caller's error type.
    pub(crate) fn run<E>(
        &mut self,
        from: &mut dyn Read,
        on_read: impl Fn(io::Error) -> E,
        mut take: impl FnMut(ChunkId, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.buffer.resize(2 * MAX_CHUNK, 0);
        let (mut start, mut end, mut more) = (0, 0, true);
        loop {
            if more && end - start < MAX_CHUNK {
                self.buffer.copy_within(start..end, 0);
                (start, end) = (0, end - start);
                while more && end < self.buffer.len() {
                    match from.read(&mut self.buffer[end..]) {
                        Ok(0) => more = false,
                        Ok(read) => end += read,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(on_read(error)),
                    }
                }
            }
            if start == end {
                return Ok(());
            }
            let window = &self.buffer[start..end];
            let chunk = &window[..self.cut(window)];
            take(name(&self.id_key, chunk), chunk)?;
            start += chunk.len();
        }
    }

    fn cut(&self, window: &[u8]) -> usize {
        let (strict, loose) = self.masks;
        cut_gear(
            window,
            MIN_CHUNK,
            AVG_CHUNK,
            MAX_CHUNK,
            strict,
            loose,
            strict << 1,
            loose << 1,
            &self.gear.0,
            &self.gear.1,
        )
        .1
    }
}

impl fmt::Debug for Chunker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Chunker(..)")
    }
}

/// The key that chunk ids are made with.
pub(crate) fn id_key(key: &ChunkKey) -> Zeroizing<[u8; KEY_LEN]> {
    derive("gpunion 2026 chunk id v1", key.expose())
}

pub(crate) fn name(id_key: &[u8; KEY_LEN], chunk: &[u8]) -> ChunkId {
    ChunkId(*blake3::keyed_hash(id_key, chunk).as_bytes())
}
