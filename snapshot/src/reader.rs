//! Reads files out of a snapshot as streams, verifying every byte. For what is not restored into
//! a folder: an image's layers on their way into an engine, a preview.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};

use zeroize::Zeroizing;

use crate::chunk::id_key;
use crate::error::{Error, Result};
use crate::ids::PackId;
use crate::keys::KEY_LEN;
use crate::manifest::{FileBody, Manifest};
use crate::pack::OpenPack;

/// Where packs come from. What it hands out is verified, so it need not be trusted.
pub trait PackSource {
    /// Told once, beforehand, in which order packs will be asked for: a source may fetch ahead.
    fn plan(&mut self, order: &[PackId]) {
        let _ = order;
    }

    fn pack(&mut self, id: &PackId) -> io::Result<Vec<u8>>;
}

impl<F: FnMut(&PackId) -> io::Result<Vec<u8>>> PackSource for F {
    fn pack(&mut self, id: &PackId) -> io::Result<Vec<u8>> {
        self(id)
    }
}

/// Packs kept open: with two, a file whose chunks alternate between an old and a new pack does
/// not fetch each again and again.
const KEPT: usize = 2;

pub struct Reader<'a> {
    manifest: &'a Manifest,
    source: &'a mut dyn PackSource,
    id_key: Zeroizing<[u8; KEY_LEN]>,
    open: VecDeque<(u32, OpenPack)>,
}

impl<'a> Reader<'a> {
    pub fn new(manifest: &'a Manifest, source: &'a mut dyn PackSource) -> Self {
        Self { id_key: id_key(&manifest.chunk_key), manifest, source, open: VecDeque::new() }
    }

    /// Writes a file's bytes, holes as zeros; answers how many there were.
    pub fn read_file(&mut self, body: &FileBody, to: &mut dyn Write) -> Result<u64> {
        let written = |source| Error::System { what: "the file that was read can't be handed on", source };
        let mut holes = body.holes.iter().peekable();
        let mut offset = 0;
        for number in &body.chunks {
            let chunk = self.chunk(*number)?;
            let mut rest = chunk.as_slice();
            while !rest.is_empty() {
                if let Some(hole) = holes.next_if(|hole| hole.offset == offset) {
                    zeros(hole.len, to).map_err(written)?;
                    offset += hole.len;
                    continue;
                }
                let until = holes.peek().map_or(u64::MAX, |hole| hole.offset - offset);
                let len = rest.len().min(usize::try_from(until).unwrap_or(usize::MAX));
                let (part, next) = rest.split_at(len);
                to.write_all(part).map_err(written)?;
                offset += len as u64;
                rest = next;
            }
        }
        for hole in holes {
            zeros(hole.len, to).map_err(written)?;
            offset += hole.len;
        }
        Ok(offset)
    }

    /// One chunk of the manifest, by its number.
    pub(crate) fn chunk(&mut self, number: u32) -> Result<Vec<u8>> {
        const UNKNOWN: Error =
            Error::Malformed { what: "manifest", reason: "a file names a chunk that is not there" };
        let chunk = *self.manifest.chunks.get(number as usize).ok_or(UNKNOWN)?;
        let at = self.open.iter().position(|(pack, _)| *pack == chunk.pack);
        if let Some(at) = at {
            if let Some(recent) = self.open.remove(at) {
                self.open.push_front(recent);
            }
        } else {
            let pack = self.manifest.packs.get(chunk.pack as usize).ok_or(UNKNOWN)?;
            self.open.truncate(KEPT - 1);
            let bytes =
                self.source.pack(&pack.id).map_err(|source| Error::PackSource { pack: pack.id, source })?;
            let open = OpenPack::new(pack.id, bytes, &pack.key, &self.id_key)?;
            self.open.push_front((chunk.pack, open));
        }
        let (_, open) = self.open.front().ok_or(UNKNOWN)?;
        open.chunk(chunk.id, chunk.place)
    }

    pub(crate) fn plan(&mut self, order: &[PackId]) {
        self.source.plan(order);
    }
}

fn zeros(mut len: u64, to: &mut dyn Write) -> io::Result<()> {
    let block = [0; 16 * 1024];
    while len > 0 {
        let part = block.len().min(usize::try_from(len).unwrap_or(usize::MAX));
        to.write_all(&block[..part])?;
        len -= part as u64;
    }
    Ok(())
}

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reader({:?})", self.open)
    }
}
