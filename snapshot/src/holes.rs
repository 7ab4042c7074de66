//! The holes of a sparse file, and reading the data between them.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::manifest::{Hole, MAX_HOLES};

/// The holes of the first `size` bytes, in order. A file system that knows none answers none.
pub(crate) fn holes(file: &File, size: u64) -> Result<Vec<Hole>, Errno> {
    let mut found = Vec::new();
    let mut offset = 0;
    while offset < size && found.len() < MAX_HOLES {
        let data = match seek(file, SeekFrom::Data(offset)) {
            Ok(data) => data.min(size),
            Err(Errno::NXIO) => size,
            Err(error) => return Err(error),
        };
        if data > offset {
            found.push(Hole { offset, len: data - offset });
        }
        if data == size {
            break;
        }
        offset = match seek(file, SeekFrom::Hole(data)) {
            Ok(hole) => hole,
            Err(Errno::NXIO) => size,
            Err(error) => return Err(error),
        };
    }
    Ok(found)
}

/// The stretches of data between the holes, as (offset, length) in bytes.
pub(crate) fn stretches(size: u64, holes: &[Hole]) -> Vec<(u64, u64)> {
    let mut stretches = Vec::with_capacity(holes.len() + 1);
    let mut offset = 0;
    for hole in holes {
        if hole.offset > offset {
            stretches.push((offset, hole.offset - offset));
        }
        offset = hole.offset + hole.len;
    }
    if size > offset {
        stretches.push((offset, size - offset));
    }
    stretches
}

/// Reads the data of a file one stretch after the other, and no byte beyond its size.
pub(crate) struct DataReader<'a> {
    file: &'a File,
    stretches: Vec<(u64, u64)>,
    next: usize,
    /// Bytes already read of the present stretch.
    within: u64,
}

impl<'a> DataReader<'a> {
    pub(crate) fn new(file: &'a File, size: u64, holes: &[Hole]) -> Self {
        Self { file, stretches: stretches(size, holes), next: 0, within: 0 }
    }

    /// False when the file was shorter than its size.
    pub(crate) fn is_at_end(&self) -> bool {
        self.next == self.stretches.len()
    }
}

impl Read for DataReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some((offset, len)) = self.stretches.get(self.next).copied() else {
            return Ok(0);
        };
        let left = usize::try_from(len - self.within).unwrap_or(usize::MAX);
        let want = buffer.len().min(left);
        let read = self.file.read_at(&mut buffer[..want], offset + self.within)?;
        self.within += read as u64;
        if self.within == len {
            self.next += 1;
            self.within = 0;
        }
        Ok(read)
    }
}
