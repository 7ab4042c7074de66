//! What was changed on the way is refused, by name; hostile bytes neither panic nor fill memory.

use std::fs;

use gpunion_snapshot::*;
use proptest::prelude::*;

use crate::common::*;

fn sample() -> (tempfile::TempDir, Store, Taken) {
    let from = tempfile::tempdir().unwrap();
    fs::create_dir(from.path().join("d")).unwrap();
    fs::write(from.path().join("d/a"), noise(1, 2 << 20)).unwrap();
    fs::write(from.path().join("b"), "text ".repeat(5000)).unwrap();
    std::os::unix::fs::symlink("x", from.path().join("l")).unwrap();
    let mut store = Store::default();
    let taken = take(from.path(), &mut store, None).unwrap();
    (from, store, taken)
}

#[test]
fn a_damaged_pack_is_refused_by_its_name() {
    let (_from, mut store, taken) = sample();
    let id = *store.packs.keys().next().unwrap();
    let whole = store.packs[&id].clone();
    for at in [0, 9, 20, whole.len() / 2, whole.len() - 1] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        store.packs.insert(id, bytes);
        let to = tempfile::tempdir().unwrap();
        let error = put_back(&taken.finished.manifest, &mut store, to.path()).unwrap_err();
        assert!(error.to_string().contains(&id.to_string()), "{error}");
        assert!(matches!(error, Error::BadPack { pack, .. } if pack == id));
    }
    store.packs.clear();
    let to = tempfile::tempdir().unwrap();
    let error = put_back(&taken.finished.manifest, &mut store, to.path()).unwrap_err();
    assert!(matches!(error, Error::PackSource { pack, .. } if pack == id), "{error}");
}

#[test]
fn a_pack_that_another_key_holder_made_under_the_same_name_does_not_pass() {
    // The pack's bytes are those of its id, but the manifest lies about what is in it.
    let (_from, mut store, taken) = sample();
    let mut manifest = taken.finished.manifest;
    let places: Vec<_> = manifest.chunks.iter().map(|chunk| chunk.place).collect();
    assert!(places.len() > 1);
    for (chunk, place) in manifest.chunks.iter_mut().zip(places.iter().rev()) {
        chunk.place = *place;
    }
    let to = tempfile::tempdir().unwrap();
    let error = put_back(&manifest, &mut store, to.path()).unwrap_err();
    assert!(matches!(error, Error::BadPack { .. }), "{error}");
}

#[test]
fn a_manifest_opens_with_its_key_and_whole_only() {
    let (_from, _store, taken) = sample();
    let sealed = taken.finished.sealed.bytes;
    let other = JobKey::from_bytes([1; 32]);
    assert!(matches!(Manifest::open(&other, &sealed), Err(Error::NotOpened { what: "manifest" })));
    for at in 0..sealed.len() {
        let mut bytes = sealed.clone();
        bytes[at] ^= 0x80;
        assert!(Manifest::open(&job_key(), &bytes).is_err(), "byte {at} is not authenticated");
        assert!(Manifest::open(&job_key(), &sealed[..at]).is_err());
    }
}

#[test]
fn a_restore_over_its_limit_is_refused_before_it_writes() {
    let (_from, mut store, taken) = sample();
    let to = tempfile::tempdir().unwrap();
    let root = open_root(to.path()).unwrap();
    let options = RestoreOptions { max_bytes: Some(1 << 20), ..RestoreOptions::default() };
    let done = restore(&taken.finished.manifest, &mut store, &root, options, &mut Watch::default());
    assert!(matches!(done, Err(Error::OverLimit { .. })));
    assert!(look(to.path()).is_empty());
}

#[test]
fn a_cancelled_run_stops() {
    let (from, mut store, taken) = sample();
    let watch = || {
        let watch = Watch::default();
        watch.cancel.cancel();
        watch
    };
    let to = tempfile::tempdir().unwrap();
    let root = open_root(to.path()).unwrap();
    let manifest = &taken.finished.manifest;
    let done = restore(manifest, &mut store, &root, RestoreOptions::default(), &mut watch());
    assert!(matches!(done, Err(Error::Cancelled)));
    let writer = Writer::new(index(), |_| Ok(()), SystemRandomness, watch()).unwrap();
    let root = open_root(from.path()).unwrap();
    let done = FolderSnapshot::new(root, writer, None, WalkOptions::default()).pass_two(&job_key());
    assert!(matches!(done, Err(Error::Cancelled)));
}

/// Seals any body as a manifest: what a holder of the job's key could make.
fn seal_body(body: &[u8], claimed: u32) -> Vec<u8> {
    use chacha20poly1305::aead::{Aead, KeyInit, Payload};
    let key = blake3::derive_key("gpunion 2026 manifest v1", job_key().expose());
    let mut sealed = b"GPUMANI1\x01\0\0\0".to_vec();
    sealed.extend([5; 32]);
    let head = sealed.clone();
    sealed.extend([0; 24]);
    let mut plain = claimed.to_le_bytes().to_vec();
    plain.extend(zstd::bulk::compress(body, 1).unwrap());
    let cipher = chacha20poly1305::XChaCha20Poly1305::new(&key.into());
    let payload = Payload { msg: &plain, aad: &head };
    sealed.extend(cipher.encrypt(&[0; 24].into(), payload).unwrap());
    sealed
}

#[test]
fn a_decompression_bomb_is_refused_before_it_unpacks() {
    let body = vec![0; 1 << 20];
    for claimed in [u32::MAX, 300 << 20, 5, 2 << 20] {
        assert!(Manifest::open(&job_key(), &seal_body(&body, claimed)).is_err());
    }
}

fn no_disk() -> ProptestConfig {
    ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(no_disk())]

    #[test]
    fn any_bytes_are_refused_by_every_decoder(bytes in prop::collection::vec(any::<u8>(), 0..2000), magic in 0_usize..5) {
        let magics: [&[u8]; 5] = [b"", b"GPUPACK1", b"GPUMANI1", b"GPUPREC1", b"GPUCACH1"];
        let bytes = [magics[magic], &bytes].concat();
        let _ = pack_table(&bytes);
        let _ = manifest_table(&bytes);
        let _ = PackRecord::decode(&bytes);
        let _ = FileCache::decode(&bytes);
        prop_assert!(Manifest::open(&job_key(), &bytes).is_err());
        prop_assert!(PackRecord::open(&job_key(), &bytes).is_err());
        prop_assert!(open_secret(&job_key(), "x", &bytes).is_err());
        let device = DeviceSecret::from_bytes([1; 32]);
        prop_assert!(unwrap_job_key(&bytes, &device, "j", "d").is_err());
    }

    #[test]
    fn a_hostile_body_of_a_manifest_does_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let len = u32::try_from(bytes.len()).unwrap();
        let _ = Manifest::open(&job_key(), &seal_body(&bytes, len));
    }

    #[test]
    fn a_record_changed_anywhere_does_no_harm(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let record = PackRecord {
            id: PackId([1; 32]),
            key: PackKey::from_bytes([2; 32]),
            chunks: vec![(ChunkId([3; 32]), Place { offset: 44, sealed_len: 40, raw_len: 23 })],
        };
        let mut bytes = record.encode();
        prop_assert_eq!(&PackRecord::decode(&bytes).unwrap(), &record);
        let at = at.index(bytes.len());
        bytes[at] ^= byte;
        bytes.truncate(cut.index(bytes.len()) + 1);
        let _ = PackRecord::decode(&bytes);
    }
}
