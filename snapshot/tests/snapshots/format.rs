//! The format itself, held by committed bytes: what was written once opens for ever.

use gpunion_snapshot::*;

use crate::common::*;

const PACK: &str = include_str!("../vectors/pack.hex");
const MANIFEST: &str = include_str!("../vectors/manifest.hex");
const WRAPPED: &str = include_str!("../vectors/wrapped-key.hex");
const SECRET: &str = include_str!("../vectors/secret.hex");
const RECORD: &str = include_str!("../vectors/record.hex");

fn bytes(hex_text: &str) -> Vec<u8> {
    hex::decode(hex_text.split_whitespace().collect::<String>()).unwrap()
}

fn random(what: &str) -> SeededRandomness {
    SeededRandomness::new(what.as_bytes())
}

/// Two files, one of which does not compress, a folder, a link and a hard link.
fn written() -> (SealedPack, Finished) {
    let mut packs = Vec::new();
    let sink = |pack| {
        packs.push(pack);
        Ok(())
    };
    let mut writer = Writer::new(index(), sink, random("snapshot"), Watch::default()).unwrap();
    let path = |bytes: &[u8]| TreePath::new(bytes).unwrap();
    let meta = |mode| Meta { mode, mtime: (1_700_000_000, 123_456_789) };
    writer.add_dir(path(b"data"), meta(0o755));
    writer.add_file(path(b"data/noise"), meta(0o640), &mut noise(1, 100).as_slice()).unwrap();
    writer.add_file(path(b"data/\xff\xfe"), meta(0o600), &mut [b'a'; 1000].as_slice()).unwrap();
    writer.add_hard_link(path(b"data/\xff\xff"), meta(0o600), path(b"data/\xff\xfe"));
    writer.add_symlink(path(b"link"), meta(0o777), b"data/noise".to_vec());
    let finished = writer.finish(&job_key()).unwrap();
    (packs.pop().unwrap(), finished)
}

#[test]
fn the_writer_makes_the_committed_bytes() {
    // zstd may choose other bytes in another version; then, and only then, are the vectors of
    // pack and manifest made anew, and the old ones kept beside for the test below.
    let (pack, finished) = written();
    assert_eq!(hex::encode(&pack.bytes), hex::encode(bytes(PACK)));
    assert_eq!(hex::encode(&finished.sealed.bytes), hex::encode(bytes(MANIFEST)));
    let record = pack.record.seal(&job_key(), &mut random("record")).unwrap();
    assert_eq!(hex::encode(record), hex::encode(bytes(RECORD)));
    let device = DeviceSecret::from_bytes([3; 32]);
    let wrapped = wrap_job_key(&job_key(), &device.public(), "job_a", "dev_b", &mut random("wrap")).unwrap();
    assert_eq!(hex::encode(wrapped), hex::encode(bytes(WRAPPED)));
    let secret = seal_secret(&job_key(), "env/HF_TOKEN", b"hf_example", &mut random("secret")).unwrap();
    assert_eq!(hex::encode(secret), hex::encode(bytes(SECRET)));
}

#[test]
fn the_committed_bytes_open() {
    let (pack, sealed) = (bytes(PACK), bytes(MANIFEST));
    let manifest = Manifest::open(&job_key(), &sealed).unwrap();
    assert_eq!(manifest.chunk_key, chunk_key());
    assert_eq!(manifest_table(&sealed).unwrap(), [pack_id(&pack)]);
    assert_eq!(pack_table(&pack).unwrap(), manifest.chunks.iter().map(|c| c.id).collect::<Vec<_>>());
    let shown: Vec<_> = manifest.entries.iter().map(|e| e.path.to_string()).collect();
    assert_eq!(shown, ["data", "data/noise", r"data/\xff\xfe", r"data/\xff\xff", "link"]);
    assert_eq!(manifest.entries[3].kind, EntryKind::HardLink { to: 2 });
    assert_eq!(manifest.entries[4].kind, EntryKind::Symlink { target: b"data/noise".to_vec() });
    let mut source = |_: &PackId| Ok(pack.clone());
    let mut reader = Reader::new(&manifest, &mut source);
    for (entry, data) in [(1, noise(1, 100)), (2, vec![b'a'; 1000])] {
        let EntryKind::File(body) = &manifest.entries[entry].kind else { unreachable!() };
        let mut read = Vec::new();
        assert_eq!(reader.read_file(body, &mut read).unwrap(), body.size);
        assert_eq!(read, data);
    }
    let record = PackRecord::open(&job_key(), &bytes(RECORD)).unwrap();
    assert_eq!(record.id, pack_id(&pack));
    assert_eq!(record.key, manifest.packs[0].key);
    let device = DeviceSecret::from_bytes([3; 32]);
    assert_eq!(unwrap_job_key(&bytes(WRAPPED), &device, "job_a", "dev_b").unwrap(), job_key());
    let secret = open_secret(&job_key(), "env/HF_TOKEN", &bytes(SECRET)).unwrap();
    assert_eq!(secret.as_slice(), b"hf_example");
}

#[test]
fn chunk_boundaries_are_the_committed_ones() {
    let mut writer = Writer::new(index(), |_| Ok(()), random("cuts"), Watch::default()).unwrap();
    let meta = Meta { mode: 0o600, mtime: (0, 0) };
    let path = TreePath::new("f").unwrap();
    writer.add_file(path, meta, &mut noise(42, 12 << 20).as_slice()).unwrap();
    let manifest = writer.finish(&job_key()).unwrap().manifest;
    let lens: Vec<_> = manifest.chunks.iter().map(|chunk| chunk.place.raw_len).collect();
    assert_eq!(lens, CUTS);
    assert_eq!(lens.iter().sum::<u32>(), 12 << 20);
}

const CUTS: &[u32] = &[1_380_093, 1_213_830, 2_248_778, 1_766_465, 1_271_283, 644_445, 3_107_592, 950_426];

#[test]
fn a_sparse_file_reads_as_zeros_where_it_has_holes() {
    use std::os::unix::fs::FileExt;
    let dir = tempfile::tempdir().unwrap();
    let file = std::fs::File::create(dir.path().join("s")).unwrap();
    file.set_len(1_000_000).unwrap();
    file.write_all_at(b"middle", 500_000).unwrap();
    let mut store = Store::default();
    let taken = take(dir.path(), &mut store, None).unwrap();
    let EntryKind::File(body) = &taken.finished.manifest.entries[0].kind else { unreachable!() };
    assert!(!body.holes.is_empty());
    let mut read = Vec::new();
    Reader::new(&taken.finished.manifest, &mut store).read_file(body, &mut read).unwrap();
    assert_eq!(read, std::fs::read(dir.path().join("s")).unwrap());
}
