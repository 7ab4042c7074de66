//! The control channel between an agent and the init of one guest, and the ring of its output.
//!
//! Init connects out to `/run/gpunion-ctl/init.sock`, a socket in a read-only mount; the agent
//! knows it by its peer credentials. Frames are a little-endian `u32` length and that many bytes
//! of JSON. Times are CLOCK_BOOTTIME of the one machine that both ends are on.

use serde::{Deserialize, Serialize};

use crate::time::BootMs;

/// Where the read-only control mount appears in the guest, and what it holds.
pub const CONTROL_DIR: &str = "/run/gpunion-ctl";
pub const CONTROL_SOCKET: &str = "init.sock";
/// Appears in the control mount when the guest must end and no agent listens.
pub const END_FILE: &str = "end";
/// Where init itself is mounted.
pub const INIT_PATH: &str = "/run/gpunion-init";
/// The guest's own door to init: `leaving` appears in it, `saved` is created by the program.
pub const RUN_DIR: &str = "/run/gpunion";
/// Of a guest with egress: the read-only mount with the socket of the agent's proxy, and the port on
/// the guest's own loopback from which init carries connections there.
pub const EGRESS_DIR: &str = "/run/gpunion-egress";
pub const EGRESS_SOCKET: &str = "proxy.sock";
pub const EGRESS_PORT: u16 = 20_080;
pub const LEAVING_FILE: &str = "leaving";
pub const SAVED_FILE: &str = "saved";
pub const WORKSPACE: &str = "/workspace";

/// No frame is longer. Environment and secrets of a job fit; anything larger is refused.
pub const FRAME_MAX: usize = 1 << 20;

/// What the agent tells init.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "say")]
pub enum ToInit {
    /// The first word. The ring's file descriptor travels with it (SCM_RIGHTS).
    Begin(Begin),
    /// The agent is back after a restart: go on as you are; a new ring descriptor travels along.
    Adopt {
        egress_deadline: Option<BootMs>,
    },
    /// Stop every process of the guest where it stands.
    Stop {
        seq: u64,
    },
    GoOn {
        seq: u64,
    },
    /// End everything by ending init itself.
    End {
        seq: u64,
    },
    /// Send a signal to every process of the job.
    Signal {
        seq: u64,
        signal: i32,
    },
    /// The job must leave: write `leaving`, signal every process.
    Leave {
        seq: u64,
        signal: i32,
        deadline: BootMs,
    },
    /// The lease was renewed: a guest with egress stops by itself at this time.
    Deadline {
        at: BootMs,
    },
    /// The exit report is safe; init may end.
    ExitSeen,
    Ping {
        seq: u64,
    },
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    pub command: Vec<String>,
    /// The whole environment, secrets among it; never in the engine's reach.
    pub env: Vec<(String, String)>,
    pub directory: String,
    /// Absent for a guest without egress, which may compute on without a lease.
    pub egress_deadline: Option<BootMs>,
    /// Soft limit on the workspace in bytes; init reports its use. 0: not watched.
    pub disk_limit: u64,
}

/// Values of the environment may be secrets: only names are shown.
impl std::fmt::Debug for Begin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.env.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Begin").field("command", &self.command).field("env", &names).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ToInit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Begin(begin) => begin.fmt(f),
            Self::Adopt { .. } => f.write_str("Adopt"),
            Self::Stop { seq } => write!(f, "Stop({seq})"),
            Self::GoOn { seq } => write!(f, "GoOn({seq})"),
            Self::End { seq } => write!(f, "End({seq})"),
            Self::Signal { seq, signal } => write!(f, "Signal({seq}, {signal})"),
            Self::Leave { seq, .. } => write!(f, "Leave({seq})"),
            Self::Deadline { at } => write!(f, "Deadline({})", at.0),
            Self::ExitSeen => f.write_str("ExitSeen"),
            Self::Ping { seq } => write!(f, "Ping({seq})"),
        }
    }
}

/// What init tells the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "say")]
pub enum FromInit {
    /// The first word after each connect.
    Hello {
        version: u32,
        begun: bool,
    },
    /// The program runs; its pid inside the guest.
    Started {
        pid: i32,
    },
    /// The program could not be run at all (not found, not executable). Init then reports no exit;
    /// this too is repeated at each connect until `ExitSeen`.
    NotStarted {
        reason: String,
    },
    /// Every process stands still, unless `running` says how many did not within init's limit.
    /// `took_us`: from reading the word to the last one seen stopped.
    Stopped {
        seq: u64,
        processes: u32,
        took_us: u64,
        #[serde(default)]
        running: u32,
    },
    GoingOn {
        seq: u64,
    },
    /// Signal or Leave was passed on to so many processes.
    Signalled {
        seq: u64,
        processes: u32,
    },
    /// The program created `saved`; wall-clock nanoseconds of that file, to compare with ctimes
    /// of the workspace (same kernel, same clock).
    Saved {
        at_ns: i64,
    },
    /// A guest with egress stopped itself at its deadline.
    DeadlinePassed,
    /// The program ended; repeated at each connect until `ExitSeen`.
    Exited(Exit),
    /// Bytes and files below the workspace.
    Usage {
        bytes: u64,
        files: u64,
    },
    Pong {
        seq: u64,
        processes: u32,
    },
    /// A frame made no sense; init goes on.
    Confused {
        reason: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "how")]
pub enum Exit {
    Code { code: i32 },
    Signal { signal: i32 },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    #[error("a frame of {0} bytes; at most {FRAME_MAX} are allowed")]
    TooLong(usize),
    #[error("a frame that is no message: {0}")]
    NoMessage(String),
}

/// One message as bytes on the channel.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, BadFrame> {
    let body = serde_json::to_vec(message).map_err(|e| BadFrame::NoMessage(e.to_string()))?;
    if body.len() > FRAME_MAX {
        return Err(BadFrame::TooLong(body.len()));
    }
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&body);
    Ok(frame)
}

/// Collects bytes as they come and cuts messages from them; never holds more than one frame's
/// worth beyond what was fed in.
#[derive(Default)]
pub struct Decoder {
    buffer: Vec<u8>,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Decoder({} bytes)", self.buffer.len())
    }
}

impl Decoder {
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message. After `TooLong` the channel can't be used any more; after
    /// `NoMessage` that frame is skipped.
    #[expect(clippy::should_implement_trait, reason = "the type of each message is the caller's to choose")]
    pub fn next<T: for<'de> Deserialize<'de>>(&mut self) -> Result<Option<T>, BadFrame> {
        let Some(head) = self.buffer.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*head) as usize;
        if length > FRAME_MAX {
            return Err(BadFrame::TooLong(length));
        }
        if self.buffer.len() < 4 + length {
            return Ok(None);
        }
        let parsed = serde_json::from_slice(&self.buffer[4..4 + length]);
        self.buffer.drain(..4 + length);
        parsed.map(Some).map_err(|e| BadFrame::NoMessage(e.to_string()))
    }
}

/// The bounded ring that init writes the program's output to: a file made by the agent.
///
/// Byte layout: magic (8), capacity (8, LE), total bytes ever written (8, LE), the same again
/// (8, LE), then `capacity` bytes of data; byte number `n` of the stream lies at `n % capacity`.
/// The writer puts data first, then the first total, then the second; a reader that sees two
/// different totals reads again.
pub mod ring {
    pub const MAGIC: [u8; 8] = *b"GPUNRNG1";
    pub const HEADER: u64 = 32;
    /// 8 MiB: an hour of a chatty progress bar, and no burden on any disk.
    pub const CAPACITY: u64 = 8 << 20;

    pub fn header(capacity: u64, total: u64) -> [u8; 32] {
        let mut out = [0; 32];
        out[..8].copy_from_slice(&MAGIC);
        out[8..16].copy_from_slice(&capacity.to_le_bytes());
        out[16..24].copy_from_slice(&total.to_le_bytes());
        out[24..].copy_from_slice(&total.to_le_bytes());
        out
    }

    /// Capacity and total of a header that is whole.
    pub fn parse(header: &[u8; 32]) -> Option<(u64, u64)> {
        let number = |at: usize| -> u64 {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&header[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let (capacity, first, second) = (number(8), number(16), number(24));
        (header[..8] == MAGIC && capacity > 0 && capacity <= 1 << 32 && first == second)
            .then_some((capacity, first))
    }

    /// The pieces of the file, as (offset, length), that hold stream bytes `from..to`.
    /// `to - from` must not exceed the capacity.
    pub fn pieces(capacity: u64, from: u64, to: u64) -> [(u64, u64); 2] {
        let length = to.saturating_sub(from).min(capacity);
        let start = from % capacity;
        let first = length.min(capacity - start);
        [(HEADER + start, first), (HEADER, length - first)]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_survive_any_cut(cuts in proptest::collection::vec(1usize..9, 0..200), seqs in proptest::collection::vec(any::<u64>(), 1..20)) {
            let mut stream = Vec::new();
            for seq in &seqs {
                stream.extend(encode(&ToInit::Stop { seq: *seq }).unwrap());
            }
            let mut decoder = Decoder::default();
            let mut got = Vec::new();
            let mut rest = &stream[..];
            let mut cuts = cuts.into_iter();
            while !rest.is_empty() {
                let n = cuts.next().unwrap_or(rest.len()).min(rest.len());
                decoder.feed(&rest[..n]);
                rest = &rest[n..];
                while let Some(ToInit::Stop { seq }) = decoder.next().unwrap() {
                    got.push(seq);
                }
            }
            prop_assert_eq!(got, seqs);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
            let mut decoder = Decoder::default();
            decoder.feed(&bytes);
            for _ in 0..64 {
                if !matches!(decoder.next::<ToInit>(), Ok(Some(_)) | Err(BadFrame::NoMessage(_))) {
                    break;
                }
            }
        }

        #[test]
        fn ring_pieces_cover_the_stream_in_order(capacity in 1u64..64, from in 0u64..1000, length in 0u64..64) {
            let length = length.min(capacity);
            let mut places = Vec::new();
            for (offset, n) in ring::pieces(capacity, from, from + length) {
                places.extend((0..n).map(|i| offset + i - ring::HEADER));
            }
            let expected: Vec<u64> = (from..from + length).map(|n| n % capacity).collect();
            prop_assert_eq!(places, expected);
        }
    }

    #[test]
    fn secrets_are_not_in_debug_output() {
        let begin = Begin {
            command: vec!["run".to_owned()],
            env: vec![("HF_TOKEN".to_owned(), "hunter2".to_owned())],
            directory: WORKSPACE.to_owned(),
            egress_deadline: None,
            disk_limit: 0,
        };
        let shown = format!("{:?}", ToInit::Begin(begin));
        assert!(shown.contains("HF_TOKEN") && !shown.contains("hunter2"));
    }
}
