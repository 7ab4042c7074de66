//! The log of one job: appends pieces to segment files, drops the oldest, reads from a position.
//!
//! One continuous stream over all attempts. A piece that an agent sends again is stored once;
//! where bytes never came there is a gap, never a silent hole.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use gpunion_protocol::http::LogPiece;
use gpunion_protocol::ids::Token;
use gpunion_protocol::job::Blob;
use gpunion_protocol::session::LOG_PIECE_MAX;

use super::frame::{Frame, Kind};

/// A segment is closed when it has so many bytes; a whole one is dropped at a time.
const SEGMENT: u64 = 1 << 20;
/// Attempts whose settled offsets are kept at hand; older ones can't speak any more.
const ATTEMPTS_KEPT: usize = 64;

pub(super) struct JobLog {
    dir: PathBuf,
    max: u64,
    /// Stored bytes of each segment by the position of its first frame.
    segments: BTreeMap<u64, u64>,
    last: Option<File>,
    /// Position after the last frame.
    end: u64,
    speaking: Option<Token>,
    settled: BTreeMap<Token, u64>,
}

/// Where a reader stands, so that following does not read a segment from its start again.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cursor {
    /// The reader's position in the stream.
    pub(crate) position: u64,
    segment: u64,
    byte: u64,
    /// Position of the frame at `byte`.
    frame: u64,
}

impl Cursor {
    pub(crate) fn at(position: u64) -> Self {
        Self { position, segment: u64::MAX, byte: 0, frame: 0 }
    }
}

impl JobLog {
    pub(super) fn open(dir: &Path, max: u64) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let mut log = Self {
            dir: dir.to_owned(),
            max,
            segments: BTreeMap::new(),
            last: None,
            end: 0,
            speaking: None,
            settled: BTreeMap::new(),
        };
        let mut starts = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let name = entry?.file_name();
            if let Some(start) = name.to_str().and_then(|n| n.parse::<u64>().ok()) {
                starts.push(start);
            }
        }
        starts.sort_unstable();
        for start in starts {
            log.load(start)?;
        }
        Ok(log)
    }

    /// Reads a segment's frames and cuts off the half one that a crash may have left.
    fn load(&mut self, start: u64) -> io::Result<()> {
        let file = OpenOptions::new().read(true).append(true).open(self.path(start))?;
        let mut reader = BufReader::new(&file);
        let mut stored = 0;
        self.end = start;
        while let Some(frame) = Frame::decode(&mut reader)? {
            stored += frame.stored();
            self.note(&frame);
        }
        if file.metadata()?.len() > stored {
            file.set_len(stored)?;
        }
        self.segments.insert(start, stored);
        self.last = Some(file);
        Ok(())
    }

    fn note(&mut self, frame: &Frame) {
        self.end = self.end.saturating_add(frame.width());
        self.speaking = Some(frame.token);
        self.settled.insert(frame.token, frame.settled());
        while self.settled.len() > ATTEMPTS_KEPT {
            self.settled.pop_first();
        }
    }

    /// Appends what is new in this piece. True when something was.
    pub(super) fn append(
        &mut self,
        token: Token,
        device_name: &str,
        offset: u64,
        bytes: &[u8],
    ) -> io::Result<bool> {
        let settled = match self.settled.get(&token) {
            Some(settled) => *settled,
            None if self.settled.len() >= ATTEMPTS_KEPT
                && self.settled.first_key_value().is_some_and(|(oldest, _)| token < *oldest) =>
            {
                return Ok(false);
            }
            None => 0,
        };
        let known = usize::try_from(settled.saturating_sub(offset)).unwrap_or(usize::MAX);
        let Some(new) = bytes.get(known..).filter(|new| !new.is_empty()) else { return Ok(false) };
        let mut frames = Vec::new();
        if self.speaking != Some(token) {
            let mut payload = device_name.as_bytes().to_vec();
            payload.truncate(256);
            frames.push(Frame { kind: Kind::Mark, token, offset: settled, payload });
        }
        let at = offset.max(settled);
        if offset > settled {
            let payload = (offset - settled).to_le_bytes().to_vec();
            frames.push(Frame { kind: Kind::Gap, token, offset: at, payload });
        }
        let mut from = at;
        for piece in new.chunks(LOG_PIECE_MAX) {
            frames.push(Frame { kind: Kind::Bytes, token, offset: from, payload: piece.to_vec() });
            from = from.saturating_add(piece.len() as u64);
        }
        for frame in &frames {
            self.write(frame)?;
        }
        Ok(true)
    }

    fn write(&mut self, frame: &Frame) -> io::Result<()> {
        let full = self.segments.last_key_value().is_none_or(|(_, stored)| *stored >= SEGMENT);
        if full || self.last.is_none() {
            let start = self.end;
            self.last = Some(OpenOptions::new().create(true).append(true).open(self.path(start))?);
            self.segments.insert(start, 0);
            self.drop_oldest();
        }
        let mut bytes = Vec::with_capacity(frame.payload.len() + 32);
        frame.encode(&mut bytes);
        let Some(mut entry) = self.segments.last_entry() else { return Ok(()) };
        let Some(file) = &mut self.last else { return Ok(()) };
        if let Err(e) = file.write_all(&bytes) {
            // Half a frame would hide all that follows it.
            let _ = file.set_len(*entry.get());
            return Err(e);
        }
        *entry.get_mut() += frame.stored();
        self.note(frame);
        Ok(())
    }

    fn drop_oldest(&mut self) {
        while self.segments.len() > 1 && self.segments.values().sum::<u64>() > self.max {
            if let Some((start, _)) = self.segments.pop_first() {
                // A file that stays is found again at the next opening, and dropped then.
                let _ = std::fs::remove_file(self.path(start));
            }
        }
    }

    fn path(&self, start: u64) -> PathBuf {
        self.dir.join(format!("{start:020}"))
    }

    /// Bytes of the attempt's output that are settled: kept, or known to be lost.
    pub(super) fn kept(&self, token: Token) -> u64 {
        self.settled.get(&token).copied().unwrap_or(0)
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// What a reader needs to go on without holding this log.
    pub(super) fn view(&self) -> View {
        View { dir: self.dir.clone(), starts: self.segments.keys().copied().collect(), end: self.end }
    }
}

/// The segments at one instant; reading goes by files, so a slow reader holds up nobody.
pub(super) struct View {
    dir: PathBuf,
    starts: Vec<u64>,
    end: u64,
}

impl View {
    /// Pieces from the cursor on, about `max` bytes of them; empty at the end.
    pub(super) fn read(&self, cursor: &mut Cursor, max: usize) -> io::Result<Vec<LogPiece>> {
        let mut out = Vec::new();
        let first = self.starts.first().copied().unwrap_or(self.end);
        if cursor.position < first {
            out.push(LogPiece::Gap { next: first, bytes: first - cursor.position });
            cursor.position = first;
        }
        let mut taken = 0;
        while cursor.position < self.end && taken < max {
            let at = self.starts.partition_point(|start| *start <= cursor.position);
            let Some(start) = at.checked_sub(1).and_then(|i| self.starts.get(i)).copied() else { break };
            let before = cursor.position;
            match File::open(self.dir.join(format!("{start:020}"))) {
                Ok(file) => taken += read_segment(file, start, cursor, max - taken, self.end, &mut out)?,
                // Dropped since the view was taken; the next view starts after it.
                Err(e) if e.kind() == io::ErrorKind::NotFound => break,
                Err(e) => return Err(e),
            }
            if cursor.position == before {
                break;
            }
        }
        Ok(out)
    }
}

/// Returns the bytes taken; stops at the segment's end, at `max` and at `end`.
fn read_segment(
    mut file: File,
    start: u64,
    cursor: &mut Cursor,
    max: usize,
    end: u64,
    out: &mut Vec<LogPiece>,
) -> io::Result<usize> {
    if cursor.segment != start || cursor.frame > cursor.position {
        (cursor.segment, cursor.byte, cursor.frame) = (start, 0, start);
    }
    file.seek(SeekFrom::Start(cursor.byte))?;
    let mut reader = BufReader::with_capacity(LOG_PIECE_MAX, file.take(u64::MAX));
    let mut taken = 0;
    while taken < max && cursor.position < end {
        let Some(frame) = Frame::decode(&mut reader)? else { break };
        let next = cursor.frame.saturating_add(frame.width());
        cursor.byte += frame.stored();
        let skip = usize::try_from(cursor.position.saturating_sub(cursor.frame)).unwrap_or(usize::MAX);
        cursor.frame = next;
        if next <= cursor.position {
            continue;
        }
        cursor.position = next;
        taken += frame.payload.len().max(1);
        push(out, &frame, skip, next);
    }
    Ok(taken)
}

/// Neighbouring output becomes one piece, within bounds.
fn push(out: &mut Vec<LogPiece>, frame: &Frame, skip: usize, position: u64) {
    match frame.kind {
        Kind::Bytes => {
            let new = frame.payload.get(skip..).unwrap_or_default();
            if let Some(LogPiece::Bytes { next, bytes }) = out.last_mut()
                && bytes.0.len() + new.len() <= LOG_PIECE_MAX
            {
                bytes.0.extend_from_slice(new);
                *next = position;
                return;
            }
            out.push(LogPiece::Bytes { next: position, bytes: Blob(new.to_vec()) });
        }
        Kind::Mark => out.push(LogPiece::Attempt {
            next: position,
            number: frame.token.attempt.0,
            device_name: String::from_utf8_lossy(&frame.payload).into_owned(),
        }),
        Kind::Gap => {
            let mut bytes = [0; 8];
            if let Some(from) = frame.payload.get(..8) {
                bytes.copy_from_slice(from);
            }
            out.push(LogPiece::Gap { next: position, bytes: u64::from_le_bytes(bytes) });
        }
    }
}
