//! Every message as JSON: what a relay, an agent, a face or a guest's init may be sent.

use std::fmt::Debug;

use gpunion_protocol::guest::{FromInit, ToInit};
use gpunion_protocol::http::{
    DeviceView, Event, HavePacks, Join, Joined, LogPiece, MadeInvite, Me, MemberView, MissingPacks,
    NewInvite, Submit, Submitted,
};
use gpunion_protocol::ids::{AttemptRef, DeviceId, GpuUuid, JobId, MemberId, PackId, SnapshotId, Token};
use gpunion_protocol::invite::Invite;
use gpunion_protocol::job::{Blob, Checkpoint, EndCause, Image, JobView};
use gpunion_protocol::local::{
    FetchProgress, FetchRequest, Finding, JoinRequest, Left, LogEvent, Preview, PreviewRequest,
    ReclaimRequest, ShareRequest, Snapshot, SubmitProgress, SubmitRequest,
};
use gpunion_protocol::offer::Offer;
use gpunion_protocol::problem::Problem;
use gpunion_protocol::receipt::{HistoryEntry, Receipt};
use gpunion_protocol::session::{Assignment, ToAgent, ToRelay};
use gpunion_protocol::spec::JobSpec;
use gpunion_protocol::units::{Bytes, Span};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::alter::{altered, changes};
use crate::memory::most;
use crate::samples::SAMPLES;

/// Bytes held for each byte that came. While the kind of a message is looked for, a number of two
/// bytes ("1,") stands as a tagged value of 32, and lists double as they grow: up to 31 measured.
const EACH: usize = 48;
/// Held whatever came: an error and its words.
const ALWAYS: usize = 16 << 10;

/// Decodes as a `T`. What is taken is shown, written and read again: it must be the same then, or
/// one side of the wire would hold something else than the other.
fn decode<T: DeserializeOwned + Serialize + PartialEq + Debug>(bytes: &[u8]) -> bool {
    let mut taken = None;
    let held = most(|| taken = serde_json::from_slice::<T>(bytes).ok());
    let kind = std::any::type_name::<T>();
    assert!(held <= ALWAYS + EACH * bytes.len(), "{kind} held {held} bytes for {} that came", bytes.len());
    let Some(taken) = taken else { return false };
    let _ = format!("{taken:?}");
    let written = serde_json::to_vec(&taken).unwrap();
    let again: T = serde_json::from_slice(&written).unwrap_or_else(|e| {
        panic!(
            "{kind}: {e} in {}, made from {}",
            String::from_utf8_lossy(&written),
            String::from_utf8_lossy(bytes)
        )
    });
    assert!(again == taken, "{kind}: {again:?} is not {taken:?}");
    true
}

/// By name, so that samples can say whose they are.
type Decode = fn(&[u8]) -> bool;

macro_rules! decoders {
    ($($kind:ty),* $(,)?) => {
        const DECODERS: &[(&str, Decode)] = &[$((stringify!($kind), decode::<$kind>)),*];
    };
}

decoders!(
    ToRelay,
    ToAgent,
    Assignment,
    ToInit,
    FromInit,
    Join,
    Joined,
    Me,
    NewInvite,
    MadeInvite,
    MemberView,
    DeviceView,
    Submit,
    Submitted,
    HavePacks,
    MissingPacks,
    Event,
    LogPiece,
    Snapshot,
    ShareRequest,
    ReclaimRequest,
    JoinRequest,
    Left,
    LogEvent,
    PreviewRequest,
    SubmitRequest,
    Preview,
    SubmitProgress,
    FetchRequest,
    FetchProgress,
    Finding,
    JobView,
    JobSpec,
    Image,
    EndCause,
    Checkpoint,
    Offer,
    Problem,
    Receipt,
    HistoryEntry,
    Invite,
    JobId,
    MemberId,
    DeviceId,
    SnapshotId,
    PackId,
    GpuUuid,
    Token,
    AttemptRef,
    Blob,
    Bytes,
    Span,
);

fn every_decoder(bytes: &[u8]) {
    for (_, decode) in DECODERS {
        decode(bytes);
    }
}

#[test]
fn the_samples_are_what_they_say() {
    for (kind, text) in SAMPLES {
        let (_, decode) = DECODERS.iter().find(|(name, _)| name == kind).unwrap();
        assert!(decode(text.as_bytes()), "{kind} does not read {text}");
    }
    for (kind, _) in DECODERS {
        assert!(SAMPLES.iter().any(|(name, _)| name == kind), "{kind} has no sample");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_refused_or_taken_and_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        every_decoder(&bytes);
    }

    #[test]
    fn a_message_altered_anywhere_does_no_harm(which in any::<prop::sample::Index>(), changes in changes()) {
        let (_, text) = SAMPLES[which.index(SAMPLES.len())];
        every_decoder(&altered(text.as_bytes(), &changes));
    }

    /// As two peers of different versions meet: what one leaves out and the other adds.
    #[test]
    fn a_field_that_is_missing_or_of_another_kind_does_no_harm(
        which in any::<prop::sample::Index>(), field in any::<prop::sample::Index>(), other in any::<prop::sample::Index>(),
    ) {
        let (_, text) = SAMPLES[which.index(SAMPLES.len())];
        let (_, other) = SAMPLES[other.index(SAMPLES.len())];
        let mut value: serde_json::Value = serde_json::from_str(text).unwrap();
        if let Some(fields) = value.as_object_mut()
            && !fields.is_empty()
        {
            let name = fields.keys().nth(field.index(fields.len())).unwrap().clone();
            fields.remove(&name);
            every_decoder(&serde_json::to_vec(&*fields).unwrap());
            fields.insert(name, serde_json::from_str(other).unwrap());
        }
        every_decoder(&serde_json::to_vec(&value).unwrap());
    }
}

/// A parser that calls itself once a bracket ends the process by its stack, which no test of
/// small texts sees.
#[test]
fn deep_nesting_overflows_no_stack() {
    const DEEP: usize = 20_000;
    let opened = |open: &str, close: &str| open.repeat(DEEP) + "1" + &close.repeat(DEEP);
    let nested = [opened("[", "]"), opened("{\"a\":", "}"), "[".repeat(DEEP), "{\"a\":[".repeat(DEEP)];
    for deep in &nested {
        every_decoder(deep.as_bytes());
    }
    let deep = &nested[1];
    for (_, text) in SAMPLES {
        // In a field that nobody knows, which is skipped.
        if let Some(rest) = text.strip_prefix('{').filter(|rest| rest.len() > 1) {
            every_decoder_of(text, format!("{{\"unknown\":{deep},{rest}").as_bytes());
        }
    }
    for name in ["spec", "state", "attempt", "offer", "env", "cause", "problem"] {
        every_decoder(format!("{{\"say\":\"state\",\"{name}\":{deep}}}").as_bytes());
    }
}

/// Those whose sample this is.
fn every_decoder_of(sample: &str, bytes: &[u8]) {
    let kinds: Vec<&str> =
        SAMPLES.iter().filter(|(_, text)| *text == sample).map(|(kind, _)| *kind).collect();
    for (_, decode) in DECODERS.iter().filter(|(kind, _)| kinds.contains(kind)) {
        decode(bytes);
    }
}

/// The longest message that a session takes, made of whatever costs a parser most.
#[test]
fn the_costliest_message_of_its_length_is_held_in_proportion() {
    let length = gpunion_protocol::session::MESSAGE_MAX;
    let fill = |start: &str, each: &str, end: &str| {
        let times = (length - start.len() - end.len()) / each.len();
        start.to_owned() + &each.repeat(times) + end
    };
    let messages = [
        fill("{\"say\":\"renew\",\"seq\":1,\"attempts\":[", "1,", "1]}"),
        fill("{\"attempts\":[", "1,", "1],\"say\":\"renew\",\"seq\":1}"),
        fill("{\"attempts\":[", "{},", "{}],\"say\":\"renew\",\"seq\":1}"),
        fill("{\"x\":[", "[],", "[]],\"say\":\"beat\"}"),
        fill("{\"say\":\"beat\",\"x\":{", "\"\":0,", "\"\":0}}"),
        fill("{\"say\":\"begin\",\"command\":[", "\"\",", "\"\"]}"),
        fill("{\"say\":\"begin\",\"env\":[", "[\"\",\"\"],", "[\"\",\"\"]]}"),
        fill("{\"packs\":[", "\"\",", "\"\"]}"),
        fill("{\"say\":\"log\",\"bytes\":\"", "AAAA", "\"}"),
        fill("", "\\", ""),
        fill("\"", "\\u0000", "\""),
    ];
    for message in messages {
        every_decoder(message.as_bytes());
    }
}
