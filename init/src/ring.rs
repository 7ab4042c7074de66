//! The writer of the bounded ring that holds the program's output.
//!
//! The file is the agent's; its layout is `gpunion_protocol::guest::ring`. Writing never waits
//! for a reader: the oldest bytes are overwritten. A write that fails loses those bytes only.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use gpunion_protocol::guest::ring;

#[derive(Debug)]
pub(crate) struct Ring {
    file: File,
    capacity: u64,
    total: u64,
}

impl Ring {
    /// Goes on where the header says; a file without a whole header is made a new ring.
    pub(crate) fn adopt(file: File) -> io::Result<Self> {
        let mut header = [0; ring::HEADER as usize];
        let read = file.read_exact_at(&mut header, 0);
        if let (Ok(()), Some((capacity, total))) = (read, ring::parse(&header)) {
            return Ok(Self { file, capacity, total });
        }
        file.write_all_at(&ring::header(ring::CAPACITY, 0), 0)?;
        Ok(Self { file, capacity: ring::CAPACITY, total: 0 })
    }

    /// Appends to the stream. When it fails, the stream is as if these bytes had never been.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let total = self.total + bytes.len() as u64;
        // Of more than fits only the end would be left.
        let kept = &bytes[bytes.len().saturating_sub(usize::try_from(self.capacity).unwrap_or(usize::MAX))..];
        let mut rest = kept;
        for (offset, length) in ring::pieces(self.capacity, total - kept.len() as u64, total) {
            let (piece, after) = rest.split_at(usize::try_from(length).unwrap_or(rest.len()).min(rest.len()));
            self.file.write_all_at(piece, offset)?;
            rest = after;
        }
        self.file.write_all_at(&total.to_le_bytes(), 16)?;
        self.file.write_all_at(&total.to_le_bytes(), 24)?;
        self.total = total;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read_back(file: &File) -> (u64, Vec<u8>) {
        let mut header = [0; 32];
        file.read_exact_at(&mut header, 0).unwrap();
        let (capacity, total) = ring::parse(&header).unwrap();
        let mut out = Vec::new();
        for (offset, length) in ring::pieces(capacity, total.saturating_sub(capacity), total) {
            let mut piece = vec![0; length as usize];
            file.read_exact_at(&mut piece, offset).unwrap();
            out.extend(piece);
        }
        (total, out)
    }

    proptest! {
        #[test]
        fn the_ring_holds_the_end_of_the_stream(
            capacity in 1u64..40,
            writes in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..100), any::<bool>()), 0..12),
        ) {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&ring::header(capacity, 0), 0).unwrap();
            let mut ring = Ring::adopt(file.try_clone().unwrap()).unwrap();
            let mut stream = Vec::new();
            for (bytes, adopt_again) in writes {
                ring.write(&bytes).unwrap();
                stream.extend(bytes);
                if adopt_again {
                    ring = Ring::adopt(file.try_clone().unwrap()).unwrap();
                }
            }
            let kept = stream.len().saturating_sub(capacity as usize);
            prop_assert_eq!(read_back(&file), (stream.len() as u64, stream[kept..].to_vec()));
        }
    }

    #[test]
    fn a_file_without_a_header_is_made_a_ring() {
        let file = tempfile::tempfile().unwrap();
        Ring::adopt(file.try_clone().unwrap()).unwrap().write(b"hello").unwrap();
        assert_eq!(read_back(&file), (5, b"hello".to_vec()));
    }
}
