//! Binary forms that declare a length or a count: what is declared is checked before anything is
//! set aside for it.

use gpunion_protocol::guest::{BadFrame, Decoder, FRAME_MAX, FromInit, ToInit, encode, ring};
use gpunion_protocol::tables::{
    MANIFEST_MAGIC, MAX_PACK_CHUNKS, MAX_SNAPSHOT_PACKS, PACK_MAGIC, manifest_table, pack_table,
};
use proptest::prelude::*;

use crate::alter::{altered, changes};
use crate::memory::most;
use crate::samples::SAMPLES;

/// What a decoder may hold for a few bytes, whatever they announce.
const LITTLE: usize = 4 << 10;

#[test]
fn a_frame_that_is_announced_and_does_not_come_takes_no_memory() {
    for announced in [FRAME_MAX, FRAME_MAX + 1, 1 << 24, u32::MAX as usize] {
        let head = u32::try_from(announced).unwrap().to_le_bytes();
        let mut got = None;
        let held = most(|| {
            let mut decoder = Decoder::default();
            decoder.feed(&head);
            decoder.feed(b"{\"say\":");
            got = Some((decoder.next::<ToInit>(), decoder.next::<FromInit>()));
        });
        assert!(held < LITTLE, "{held} bytes for {announced} that were announced");
        let (to, from) = got.unwrap();
        if announced > FRAME_MAX {
            assert_eq!((to, from), (Err(BadFrame::TooLong(announced)), Err(BadFrame::TooLong(announced))));
        } else {
            assert_eq!((to, from), (Ok(None), Ok(None)));
        }
    }
}

#[test]
fn a_table_that_is_announced_and_does_not_come_takes_no_memory() {
    let counts = [MAX_PACK_CHUNKS, MAX_SNAPSHOT_PACKS, MAX_SNAPSHOT_PACKS + 1, u32::MAX as usize];
    for (magic, count) in [PACK_MAGIC, MANIFEST_MAGIC]
        .into_iter()
        .zip([counts, counts])
        .flat_map(|(magic, counts)| counts.map(|count| (magic, count)))
    {
        let mut bytes = magic.to_vec();
        bytes.extend(u32::try_from(count).unwrap().to_le_bytes());
        bytes.extend([7; 64]);
        let mut refused = false;
        let held = most(|| refused = pack_table(&bytes).is_err() && manifest_table(&bytes).is_err());
        assert!(refused && held < LITTLE, "{held} bytes for {count} ids that were announced");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Both ends of a guest's channel, fed in pieces of any size: no panic, and never more held
    /// than was fed, whatever the length in front says.
    #[test]
    fn any_bytes_on_a_guests_channel_do_no_harm(
        lengths in any::<bool>(), bytes in proptest::collection::vec(any::<u8>(), 0..3000), cut in 1_usize..700,
    ) {
        // Small lengths, so that frames are found in it.
        let bytes: Vec<u8> = if lengths { bytes.chunks(40).flat_map(|piece| [&(piece.len() as u32).to_le_bytes(), piece].concat()).collect() } else { bytes };
        let held = most(|| {
            drain::<ToInit>(&bytes, cut);
            drain::<FromInit>(&bytes, cut);
        });
        prop_assert!(held <= LITTLE + 80 * bytes.len(), "{} bytes for {}", held, bytes.len());
    }

    #[test]
    fn altered_frames_on_a_guests_channel_do_no_harm(
        which in any::<prop::sample::Index>(), changes in changes(), cut in 1_usize..700,
    ) {
        let words: Vec<&str> = SAMPLES.iter().filter(|(kind, _)| ["ToInit", "FromInit"].contains(kind)).map(|(_, text)| *text).collect();
        let frame = encode(&serde_json::from_str::<serde_json::Value>(words[which.index(words.len())]).unwrap()).unwrap();
        let stream = [frame.as_slice(), &altered(&frame, &changes), &frame].concat();
        drain::<ToInit>(&stream, cut);
        drain::<FromInit>(&stream, cut);
    }

    #[test]
    fn any_table_is_read_where_it_is_whole_or_refused(count: u32, small in 0_u32..9, bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        for count in [count, small] {
            for magic in [PACK_MAGIC, MANIFEST_MAGIC] {
                let table = [magic.as_slice(), &count.to_le_bytes(), &bytes].concat();
                let whole = bytes.len() >= count as usize * 32;
                let (pack, manifest) = (pack_table(&table), manifest_table(&table));
                prop_assert!(whole || (pack.is_err() && manifest.is_err()));
                prop_assert!(pack.map_or(true, |ids| ids.len() == count as usize));
                prop_assert!(manifest.map_or(true, |ids| ids.len() == count as usize && ids.is_sorted()));
            }
        }
    }

    /// A guest's init writes it, and a guest can't; all the same nothing is read past its end.
    #[test]
    fn any_header_of_a_ring_gives_places_inside_it_or_none(header: [u8; 32], magic: bool, same: bool, back in any::<u64>()) {
        let mut header = header;
        if magic {
            header[..8].copy_from_slice(&ring::MAGIC);
            header[12..16].fill(0);
        }
        if same {
            header.copy_within(16..24, 24);
        }
        if let Some((capacity, total)) = ring::parse(&header) {
            prop_assert!(capacity > 0 && capacity <= 1 << 32);
            let from = total.saturating_sub(back % capacity);
            for (offset, length) in ring::pieces(capacity, from, total) {
                prop_assert!(offset >= ring::HEADER && offset + length <= ring::HEADER + capacity);
            }
        }
    }
}

/// Takes all words that are there; stops, as both ends do, where the channel can't be used.
fn drain<T: serde::de::DeserializeOwned>(bytes: &[u8], cut: usize) {
    let mut decoder = Decoder::default();
    for piece in bytes.chunks(cut) {
        decoder.feed(piece);
        loop {
            match decoder.next::<T>() {
                Ok(Some(_)) | Err(BadFrame::NoMessage(_)) => {}
                Ok(None) => break,
                Err(BadFrame::TooLong(_)) => return,
            }
        }
    }
}
