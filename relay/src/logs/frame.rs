//! The form of a log on disk: frames, appended to segment files.
//!
//! A frame is 25 bytes of head and its payload:
//! kind (1), epoch (8), attempt (4), offset in the attempt (8), length (4); little endian.
//! A reader's position counts output bytes; a mark and a gap count one each, so that every
//! position names one place. A crash can leave half a frame at the end: it is cut off at opening.

use std::io::{self, Read};

use gpunion_protocol::ids::{AttemptNo, Epoch, Token};
use gpunion_protocol::session::LOG_PIECE_MAX;

pub(super) const HEAD: usize = 25;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The payload is output.
    Bytes,
    /// From here on it is this attempt's; the payload is the device's name.
    Mark,
    /// The payload is a u64: so many bytes never came.
    Gap,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) token: Token,
    /// Bytes of the attempt's output before this frame (after it, for a gap).
    pub(super) offset: u64,
    pub(super) payload: Vec<u8>,
}

impl Frame {
    /// How far it moves a reader's position.
    pub(super) fn width(&self) -> u64 {
        match self.kind {
            Kind::Bytes => self.payload.len() as u64,
            Kind::Mark | Kind::Gap => 1,
        }
    }

    /// Bytes of the attempt that are settled after it.
    pub(super) fn settled(&self) -> u64 {
        match self.kind {
            Kind::Bytes => self.offset.saturating_add(self.payload.len() as u64),
            Kind::Mark | Kind::Gap => self.offset,
        }
    }

    pub(super) fn stored(&self) -> u64 {
        (HEAD + self.payload.len()) as u64
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.push(match self.kind {
            Kind::Bytes => 0,
            Kind::Mark => 1,
            Kind::Gap => 2,
        });
        out.extend_from_slice(&self.token.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.token.attempt.0.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        out.extend_from_slice(&(self.payload.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.payload);
    }

    /// The next frame; `None` at the end, and where what follows is no whole frame.
    pub(super) fn decode(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut head = [0; HEAD];
        if !fill(from, &mut head)? {
            return Ok(None);
        }
        let (kind, epoch, attempt, offset, len) = split(&head);
        let kind = match kind {
            0 => Kind::Bytes,
            1 => Kind::Mark,
            2 => Kind::Gap,
            _ => return Ok(None),
        };
        if len as usize > LOG_PIECE_MAX {
            return Ok(None);
        }
        let mut payload = vec![0; len as usize];
        if !fill(from, &mut payload)? {
            return Ok(None);
        }
        let token = Token { epoch: Epoch(epoch), attempt: AttemptNo(attempt) };
        Ok(Some(Self { kind, token, offset, payload }))
    }
}

fn split(head: &[u8; HEAD]) -> (u8, u64, u32, u64, u32) {
    let long = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&head[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let short = |at: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&head[at..at + 4]);
        u32::from_le_bytes(bytes)
    };
    (head[0], long(1), short(9), long(13), short(21))
}

/// False when the end came first.
fn fill(from: &mut impl Read, into: &mut [u8]) -> io::Result<bool> {
    match from.read_exact(into) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_frame_reads_back_and_half_a_frame_is_none(
            kind in 0usize..3, epoch: u64, attempt: u32, offset: u64,
            payload in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..325,
        ) {
            let kind = [Kind::Bytes, Kind::Mark, Kind::Gap][kind];
            let token = Token { epoch: Epoch(epoch), attempt: AttemptNo(attempt) };
            let frame = Frame { kind, token, offset, payload };
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            prop_assert_eq!(bytes.len() as u64, frame.stored());
            prop_assert_eq!(Frame::decode(&mut bytes.as_slice()).unwrap(), Some(frame));
            let cut = cut % bytes.len();
            prop_assert_eq!(Frame::decode(&mut &bytes[..cut]).unwrap(), None);
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Frame::decode(&mut bytes.as_slice());
        }
    }
}
