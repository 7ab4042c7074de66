//! Only what is new is read, and only what is new is sent.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use gpunion_snapshot::*;

use crate::common::*;

#[expect(clippy::disallowed_methods, reason = "compares with time stamps of files")]
/// Waits until everything in `dir` has rested for longer than a clock tick: only then may a later
/// snapshot take it as unchanged.
fn rest(dir: &Path) {
    let newest = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap())
        .map(|meta| Duration::new(meta.ctime().unsigned_abs(), u32::try_from(meta.ctime_nsec()).unwrap()))
        .max()
        .unwrap();
    let until = newest + Duration::from_millis(50);
    while SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap() < until {
        std::thread::yield_now();
    }
}

#[test]
fn a_second_snapshot_reads_and_sends_only_the_change() {
    let from = tempfile::tempdir().unwrap();
    let dir = from.path();
    for number in 0..20 {
        fs::write(dir.join(format!("f{number}")), noise(number, 300_000)).unwrap();
    }
    rest(dir);
    let mut store = Store::default();
    let first = take(dir, &mut store, None).unwrap();
    assert_eq!(first.report.files_read, 20);
    assert_eq!(first.report.written.chunks_new, 20);

    fs::write(dir.join("f3"), noise(99, 300_000)).unwrap();
    fs::remove_file(dir.join("f4")).unwrap();
    rest(dir);
    let mut more = Store::default();
    let second = take(dir, &mut more, Some(&first)).unwrap();
    assert_eq!(second.report.files_read, 1);
    assert_eq!(second.report.written.chunks_new, 1);
    assert!(second.report.written.packed_bytes < 310_000);
    assert_eq!(more.packs.len(), 1);

    let mut third_store = Store::default();
    let cache = FileCache::decode(&second.cache.encode()).unwrap();
    assert_eq!(cache, second.cache);
    let third = take(dir, &mut third_store, Some(&second)).unwrap();
    assert_eq!(third.report.files_read, 0);
    assert!(third_store.packs.is_empty());
    assert_eq!(third.finished.manifest, second.finished.manifest);

    let to = tempfile::tempdir().unwrap();
    store.packs.append(&mut more.packs);
    put_back(&third.finished.manifest, &mut store, to.path()).unwrap();
    assert_eq!(look(dir), look(to.path()));
}

#[test]
fn a_file_of_the_same_length_and_times_is_read_when_it_changed() {
    let from = tempfile::tempdir().unwrap();
    let file = from.path().join("weights");
    fs::write(&file, vec![1; 4096]).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    fs::File::open(&file).unwrap().set_modified(time).unwrap();
    rest(from.path());
    let mut store = Store::default();
    let first = take(from.path(), &mut store, None).unwrap();
    fs::write(&file, vec![2; 4096]).unwrap();
    fs::File::open(&file).unwrap().set_modified(time).unwrap();
    let second = take(from.path(), &mut store, Some(&first)).unwrap();
    assert_eq!(second.report.written.chunks_new, 1, "the change time told");
}

#[test]
fn what_was_written_in_the_tick_of_the_snapshot_is_read_again() {
    let from = tempfile::tempdir().unwrap();
    let file = from.path().join("log");
    let mut store = Store::default();
    fs::write(&file, b"one").unwrap();
    let first = take(from.path(), &mut store, None).unwrap();
    // Not rested: even an unchanged stamp is no proof.
    let second = take(from.path(), &mut store, Some(&first)).unwrap();
    assert_eq!(second.report.files_read, 1);
}

#[test]
fn an_insertion_at_the_front_of_a_big_file_sends_little() {
    let from = tempfile::tempdir().unwrap();
    let file = from.path().join("big");
    let data = noise(5, 48 << 20);
    fs::write(&file, &data).unwrap();
    let mut store = Store::default();
    let first = take(from.path(), &mut store, None).unwrap();
    let longer = [b"a line in front\n".as_slice(), &data].concat();
    fs::write(&file, &longer).unwrap();
    let second = take(from.path(), &mut store, Some(&first)).unwrap();
    let sent = second.report.written.bytes_new;
    assert!(sent < 9 << 20, "{sent} bytes were sent for 16");
}

#[test]
fn pass_two_reads_only_what_changed_since_pass_one() {
    let from = tempfile::tempdir().unwrap();
    let dir = from.path();
    for number in 0..10 {
        fs::write(dir.join(format!("f{number}")), noise(number, 100_000)).unwrap();
    }
    rest(dir);
    let mut store = Store::default();
    let sink = |pack| store.put(pack);
    let writer = Writer::new(index(), sink, SystemRandomness, Watch::default()).unwrap();
    let root = open_root(dir).unwrap();
    let mut folder = FolderSnapshot::new(root, writer, None, WalkOptions::default());
    let one = folder.pass_one().unwrap();
    assert_eq!((one.files_read, one.written.packs), (10, 1));
    fs::File::options().write(true).open(dir.join("f7")).unwrap().write_all_at(b"new", 5).unwrap();
    fs::write(dir.join("extra"), b"extra").unwrap();
    fs::remove_file(dir.join("f1")).unwrap();
    let two = folder.pass_two(&job_key()).unwrap();
    assert_eq!(two.report.files_read, 2);
    assert_eq!(two.report.files, 10);
    assert_eq!(two.report.written.packs, 2);
    let to = tempfile::tempdir().unwrap();
    put_back(&two.finished.manifest, &mut store, to.path()).unwrap();
    assert_eq!(look(dir), look(to.path()));
}

#[test]
fn a_write_through_a_mapping_after_pass_one_is_not_missed() {
    let from = tempfile::tempdir().unwrap();
    let file = from.path().join("mapped");
    fs::write(&file, vec![0; 4096 * 4]).unwrap();
    // A page that is dirty before pass one: its next write moves no time stamp by itself.
    let mut mapping = Mapped::start(&file);
    mapping.write(b'1');
    rest(from.path());
    let mut store = Store::default();
    let sink = |pack| store.put(pack);
    let writer = Writer::new(index(), sink, SystemRandomness, Watch::default()).unwrap();
    let root = open_root(from.path()).unwrap();
    let mut folder = FolderSnapshot::new(root, writer, None, WalkOptions::default());
    folder.pass_one().unwrap();
    mapping.write(b'2');
    let two = folder.pass_two(&job_key()).unwrap();
    let to = tempfile::tempdir().unwrap();
    put_back(&two.finished.manifest, &mut store, to.path()).unwrap();
    assert_eq!(fs::read(to.path().join("mapped")).unwrap()[0], b'2');
}

/// The first byte of a file through a shared mapping, as numpy's memmap writes it.
struct Mapped(*mut u8);

#[expect(unsafe_code, reason = "a test must write through a mapping; the product never does")]
impl Mapped {
    fn start(file: &Path) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let file = fs::File::options().read(true).write(true).open(file).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, unmapped only by the end.
        let at = unsafe { mmap(std::ptr::null_mut(), 4096, access, MapFlags::SHARED, &file, 0) };
        Self(at.unwrap().cast())
    }

    fn write(&mut self, byte: u8) {
        // SAFETY: the mapping is of 4096 writable bytes, and the file is longer.
        unsafe { self.0.write_volatile(byte) };
    }
}

#[test]
fn a_cut_run_is_taken_up_without_sending_again() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("big"), noise(6, 60 << 20)).unwrap();
    let mut store = Store::default();
    // The line breaks with the fifth pack.
    let cut = {
        let sink = |pack: SealedPack| {
            if store.packs.len() == 4 {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
            store.put(pack)
        };
        let writer = Writer::new(index(), sink, SystemRandomness, Watch::default()).unwrap();
        let root = open_root(from.path()).unwrap();
        FolderSnapshot::new(root, writer, None, WalkOptions::default()).pass_two(&job_key())
    };
    assert!(matches!(cut, Err(Error::PackSink(_))));

    // What the agent kept of the four packs, sealed on disk.
    let kept: Vec<_> =
        store.records.iter().map(|r| r.seal(&job_key(), &mut SystemRandomness).unwrap()).collect();
    let mut index = index();
    for sealed in &kept {
        index.add_record(&PackRecord::open(&job_key(), sealed).unwrap());
    }
    let before = store.packs.len();
    let sink = |pack| store.put(pack);
    let writer = Writer::new(index, sink, SystemRandomness, Watch::default()).unwrap();
    let root = open_root(from.path()).unwrap();
    let taken = FolderSnapshot::new(root, writer, None, WalkOptions::default()).pass_two(&job_key()).unwrap();
    let sent = taken.report.written.bytes_new;
    assert!(sent < (60 << 20) - 4 * (4 << 20), "{sent} bytes were sent again");
    assert!(store.packs.len() > before);
    let to = tempfile::tempdir().unwrap();
    put_back(&taken.finished.manifest, &mut store, to.path()).unwrap();
    assert_eq!(look(from.path()), look(to.path()));
}

#[test]
fn chunks_of_another_member_are_never_built_on() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("a"), b"a").unwrap();
    let taken = take(from.path(), &mut Store::default(), None).unwrap();
    let mut other = ChunkIndex::new(ChunkKey::from_bytes([1; 32]));
    assert!(matches!(other.add_manifest(&taken.finished.manifest), Err(Error::OtherChunkKey)));
}
