//! Frames between agent and workspace program: both ways, in any cut, and hostile ones.

use gpunion_snapshot::helper_wire::*;
use gpunion_snapshot::*;
use proptest::prelude::*;

use crate::common::*;

fn frames() -> Vec<Frame> {
    let record = PackRecord {
        id: PackId([4; 32]),
        key: PackKey::from_bytes([5; 32]),
        chunks: vec![(ChunkId([6; 32]), Place { offset: 44, sealed_len: 60, raw_len: 43 })],
    };
    let mut all = vec![
        Frame::Order(Order::Snapshot { leave_out: vec!["2e676974".into()], sync: true }),
        Frame::Order(Order::Restore { uid: 1, gid: 2, max_bytes: Some(3), update: true }),
        Frame::Keys { job: job_key(), chunk: Some(chunk_key()) },
        Frame::Keys { job: job_key(), chunk: None },
        Frame::Pack { id: PackId([4; 32]), record: Some(record), bytes: vec![1, 2, 3] },
        Frame::Pack { id: PackId([4; 32]), record: None, bytes: vec![] },
        Frame::Answer(Answer::Need { pack: PackId([7; 32]) }),
        Frame::Answer(Answer::Done(Done::Snapshot { id: SnapshotId([1; 32]), report: Report::default() })),
        Frame::Answer(Answer::Failed(Failure {
            kind: FailureKind::Changed,
            path: Some("a/b".into()),
            reason: "r".into(),
        })),
    ];
    all.extend(pieces(Part::Manifest, &noise(1, MAX_PIECE + 5)));
    all.extend(pieces(Part::Cache, &[]));
    all
}

fn bytes(frames: &[Frame]) -> Vec<u8> {
    let mut out = Vec::new();
    for frame in frames {
        frame.write(&mut out).unwrap();
    }
    out
}

#[test]
fn frames_come_out_as_they_went_in_however_they_are_cut() {
    let frames = frames();
    let bytes = bytes(&frames);
    let mut stream = bytes.as_slice();
    for frame in &frames {
        assert_eq!(Frame::read(&mut stream).unwrap().as_ref(), Some(frame));
    }
    assert_eq!(Frame::read(&mut stream).unwrap(), None);
    for cut in [1, 7, 4096, 1 << 20] {
        let mut decoder = Decoder::default();
        let mut seen = Vec::new();
        for part in bytes.chunks(if cut < 4096 { cut * 1000 + 1 } else { cut }) {
            decoder.feed(part);
            while let Some(frame) = decoder.next_frame().unwrap() {
                seen.push(frame);
            }
        }
        assert_eq!(seen, frames);
    }
    let small = self::bytes(&frames[..6]);
    let mut decoder = Decoder::default();
    let mut seen = 0;
    for byte in small {
        decoder.feed(&[byte]);
        seen += usize::from(decoder.next_frame().unwrap().is_some());
    }
    assert_eq!(seen, 6);
}

#[test]
fn pieces_come_together_and_no_further_than_their_limit() {
    let whole = noise(2, MAX_PIECE + 99);
    let mut open = Pieces::default();
    let mut got = None;
    for piece in pieces(Part::Manifest, &whole) {
        let Frame::Piece { of, last, bytes } = piece else { unreachable!() };
        got = open.add(of, last, &bytes).unwrap();
    }
    assert_eq!(got.unwrap(), whole);
    let mut open = Pieces::default();
    open.add(Part::Cache, false, &whole[..MAX_PIECE]).unwrap();
    assert!(open.add(Part::Cache, false, &[0]).is_err());
}

#[test]
fn a_frame_over_the_limit_is_refused_at_its_length() {
    let mut decoder = Decoder::default();
    decoder.feed(&u32::try_from(MAX_FRAME + 1).unwrap().to_le_bytes());
    assert!(matches!(decoder.next_frame(), Err(BadFrame::TooLong(_))));
    let huge = Frame::Piece { of: Part::Cache, last: true, bytes: vec![0; MAX_FRAME] };
    assert!(huge.write(&mut Vec::new()).is_err());
    let announced = u32::try_from(MAX_FRAME).unwrap().to_le_bytes();
    assert!(Frame::read(&mut announced.as_slice()).is_err(), "what was announced must come");
}

#[test]
fn keys_are_not_in_a_frame_s_debug_form() {
    let shown = format!("{:?}", frames());
    assert!(!shown.contains("9, 9") && !shown.contains("0909"), "{shown}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hostile_frames_do_no_harm(kind in 0_u8..8, body in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut bytes = u32::try_from(body.len() + 1).unwrap().to_le_bytes().to_vec();
        bytes.push(kind);
        bytes.extend(body);
        let read = Frame::read(&mut bytes.as_slice()).is_ok();
        let mut decoder = Decoder::default();
        decoder.feed(&bytes);
        prop_assert_eq!(decoder.next_frame().is_ok(), read);
    }
}
