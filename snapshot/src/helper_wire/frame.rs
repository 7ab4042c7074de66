//! The bytes of a frame, both ways: blocking for the program, and in arriving parts for the agent.

use std::fmt;
use std::io::{self, Read, Write};

use gpunion_protocol::tables::{MAX_MANIFEST, MAX_PACK};
use zeroize::Zeroize;

use super::{Answer, MAX_FRAME, MAX_PIECE, Order};
use crate::ids::{ID_LEN, PackId};
use crate::keys::{ChunkKey, JobKey, KEY_LEN, array};
use crate::pack::PackRecord;
use crate::wire::u32_of;

const ORDER: u8 = 1;
const ANSWER: u8 = 2;
const KEYS: u8 = 3;
const PACK: u8 = 4;
const PIECE: u8 = 5;

/// What a long byte string is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A sealed manifest: the parent's on its way in, the new one on its way out.
    Manifest,
    /// An encoded [`crate::FileCache`].
    Cache,
    /// One encoded [`PackRecord`] of a run that was cut; several may follow each other.
    Record,
}

impl Part {
    /// Longest whole in bytes.
    #[must_use]
    pub fn limit(self) -> usize {
        match self {
            Part::Manifest => MAX_MANIFEST,
            Part::Cache | Part::Record => MAX_PIECE,
        }
    }
}

#[derive(Clone, PartialEq, Eq)]
pub enum Frame {
    Order(Order),
    Answer(Answer),
    Keys {
        job: JobKey,
        /// Absent: the parent's.
        chunk: Option<ChunkKey>,
    },
    Pack {
        id: PackId,
        /// With packs that leave; holds the pack's key: seal it before it is stored.
        record: Option<PackRecord>,
        bytes: Vec<u8>,
    },
    Piece {
        of: Part,
        last: bool,
        bytes: Vec<u8>,
    },
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Frame::Order(order) => order.fmt(f),
            Frame::Answer(answer) => answer.fmt(f),
            Frame::Keys { .. } => f.write_str("Keys(..)"),
            Frame::Pack { id, bytes, .. } => write!(f, "Pack({id}, {} bytes)", bytes.len()),
            Frame::Piece { of, last, bytes } => {
                write!(f, "Piece({of:?}, {} bytes, last: {last})", bytes.len())
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum BadFrame {
    #[error("a frame of {0} bytes is over the limit")]
    TooLong(usize),
    #[error("a frame can't be read: {0}")]
    Malformed(&'static str),
    #[error("a frame can't be read: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
}

impl Frame {
    /// The frame in two parts, so that a pack's bytes need not be copied.
    pub fn encode(&self) -> Result<(Vec<u8>, &[u8]), BadFrame> {
        let mut head = vec![0; 4];
        let tail: &[u8] = match self {
            Frame::Order(order) => {
                head.push(ORDER);
                serde_json::to_writer(&mut head, order)?;
                &[]
            }
            Frame::Answer(answer) => {
                head.push(ANSWER);
                serde_json::to_writer(&mut head, answer)?;
                &[]
            }
            Frame::Keys { job, chunk } => {
                head.push(KEYS);
                head.extend_from_slice(job.expose());
                if let Some(chunk) = chunk {
                    head.extend_from_slice(chunk.expose());
                }
                &[]
            }
            Frame::Pack { id, record, bytes } => {
                head.push(PACK);
                head.extend_from_slice(&id.0);
                let record = record.as_ref().map(PackRecord::encode).unwrap_or_default();
                head.extend_from_slice(&u32_of(record.len()).to_le_bytes());
                head.extend_from_slice(&record);
                bytes
            }
            Frame::Piece { of, last, bytes } => {
                head.push(PIECE);
                head.push(match of {
                    Part::Manifest => 0,
                    Part::Cache => 1,
                    Part::Record => 2,
                });
                head.push(u8::from(*last));
                bytes
            }
        };
        let len = head.len() - 4 + tail.len();
        if len > MAX_FRAME {
            return Err(BadFrame::TooLong(len));
        }
        head[..4].copy_from_slice(&u32_of(len).to_le_bytes());
        Ok((head, tail))
    }

    pub fn write(&self, to: &mut impl Write) -> Result<(), BadFrame> {
        let (mut head, tail) = self.encode()?;
        let done = to.write_all(&head).and_then(|()| to.write_all(tail));
        head.zeroize();
        done?;
        Ok(to.flush()?)
    }

    /// None at an orderly end.
    pub fn read(from: &mut impl Read) -> Result<Option<Frame>, BadFrame> {
        let mut len = [0; 4];
        match from.read(&mut len[..1])? {
            0 => return Ok(None),
            _ => from.read_exact(&mut len[1..])?,
        }
        let len = checked_len(len)?;
        // Grows with what really comes, not with what was announced.
        let mut body = Vec::new();
        from.take(len as u64).read_to_end(&mut body)?;
        if body.len() < len {
            return Err(BadFrame::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        let frame = Frame::decode(&body);
        body.zeroize();
        frame.map(Some)
    }

    fn decode(body: &[u8]) -> Result<Frame, BadFrame> {
        const SHORT: BadFrame = BadFrame::Malformed("it ends too early");
        let (kind, body) = body.split_first().ok_or(SHORT)?;
        match *kind {
            ORDER => Ok(Frame::Order(serde_json::from_slice(body)?)),
            ANSWER => Ok(Frame::Answer(serde_json::from_slice(body)?)),
            KEYS => match body.split_at_checked(KEY_LEN).ok_or(SHORT)? {
                (job, chunk) if chunk.is_empty() || chunk.len() == KEY_LEN => Ok(Frame::Keys {
                    job: JobKey::from_bytes(array(job)),
                    chunk: (!chunk.is_empty()).then(|| ChunkKey::from_bytes(array(chunk))),
                }),
                _ => Err(BadFrame::Malformed("keys of a wrong length")),
            },
            PACK => {
                let (id, rest) = body.split_at_checked(ID_LEN).ok_or(SHORT)?;
                let (len, rest) = rest.split_first_chunk::<4>().ok_or(SHORT)?;
                let len = u32::from_le_bytes(*len) as usize;
                let (record, bytes) = rest.split_at_checked(len).ok_or(SHORT)?;
                if bytes.len() > MAX_PACK {
                    return Err(BadFrame::TooLong(bytes.len()));
                }
                let record = match record {
                    [] => None,
                    record => Some(
                        PackRecord::decode(record)
                            .map_err(|_| BadFrame::Malformed("the record of a pack"))?,
                    ),
                };
                Ok(Frame::Pack { id: PackId(array(id)), record, bytes: bytes.to_vec() })
            }
            PIECE => {
                let ([of, last], bytes) = body.split_first_chunk::<2>().ok_or(SHORT)?;
                let of = match of {
                    0 => Part::Manifest,
                    1 => Part::Cache,
                    2 => Part::Record,
                    _ => return Err(BadFrame::Malformed("a piece of nothing known")),
                };
                let last = match last {
                    0 => false,
                    1 => true,
                    _ => return Err(BadFrame::Malformed("neither last nor not")),
                };
                let bytes = bytes.to_vec();
                Ok(Frame::Piece { of, last, bytes })
            }
            _ => Err(BadFrame::Malformed("it is of no known kind")),
        }
    }
}

fn checked_len(len: [u8; 4]) -> Result<usize, BadFrame> {
    match u32::from_le_bytes(len) as usize {
        0 => Err(BadFrame::Malformed("it is empty")),
        len if len > MAX_FRAME => Err(BadFrame::TooLong(len)),
        len => Ok(len),
    }
}

/// Cuts a long byte string into the frames that carry it; an empty one is one empty piece.
pub fn pieces(of: Part, bytes: &[u8]) -> impl Iterator<Item = Frame> {
    let count = bytes.len().div_ceil(MAX_PIECE).max(1);
    (0..count).map(move |at| {
        let end = bytes.len().min((at + 1) * MAX_PIECE);
        Frame::Piece { of, last: at + 1 == count, bytes: bytes[at * MAX_PIECE..end].to_vec() }
    })
}

/// Puts pieces together again.
#[derive(Debug, Default)]
pub struct Pieces(Vec<u8>);

impl Pieces {
    /// The whole, once its last piece is in.
    pub fn add(&mut self, of: Part, last: bool, bytes: &[u8]) -> Result<Option<Vec<u8>>, BadFrame> {
        let len = self.0.len() + bytes.len();
        if len > of.limit() {
            return Err(BadFrame::TooLong(len));
        }
        self.0.extend_from_slice(bytes);
        Ok(last.then(|| std::mem::take(&mut self.0)))
    }
}

/// For a stream that arrives in parts of any size (a container's attached output).
#[derive(Default)]
pub struct Decoder {
    buffer: Vec<u8>,
}

impl Decoder {
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame; call until there is none.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, BadFrame> {
        let Some(len) = self.buffer.first_chunk::<4>() else {
            return Ok(None);
        };
        let len = checked_len(*len)?;
        let Some(body) = self.buffer.get(4..4 + len) else {
            return Ok(None);
        };
        let frame = Frame::decode(body)?;
        self.buffer[..4 + len].zeroize();
        self.buffer.drain(..4 + len);
        Ok(Some(frame))
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Decoder({} bytes)", self.buffer.len())
    }
}
