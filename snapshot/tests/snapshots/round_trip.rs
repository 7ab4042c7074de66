//! What goes into a snapshot comes out of it, and only what is new is sent.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

use gpunion_snapshot::*;

use crate::common::*;

#[test]
fn a_tree_with_everything_comes_back_as_it_was() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dir = from.path();
    fs::create_dir_all(dir.join("empty/inner")).unwrap();
    fs::create_dir(dir.join("locked")).unwrap();
    fs::write(dir.join("locked/a"), b"a").unwrap();
    fs::write(dir.join("none"), b"").unwrap();
    fs::write(dir.join("big"), noise(1, 20 << 20)).unwrap();
    fs::write(dir.join("text"), "the same again ".repeat(200_000)).unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"n\xff\xfe\n \x01");
    fs::write(dir.join(odd), b"odd").unwrap();
    fs::hard_link(dir.join("big"), dir.join("empty/second")).unwrap();
    symlink("/etc/passwd", dir.join("out")).unwrap();
    symlink("missing/../x", dir.join("empty/dangling")).unwrap();
    fs::set_permissions(dir.join("text"), fs::Permissions::from_mode(0o751)).unwrap();
    fs::set_permissions(dir.join("locked"), fs::Permissions::from_mode(0o500)).unwrap();
    let sparse = fs::File::create(dir.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    sparse.write_all_at(&noise(2, 1 << 20), 8 << 20).unwrap();
    sparse.write_all_at(b"x", (40 << 20) + 5).unwrap();
    drop(sparse);
    let hollow = fs::File::create(dir.join("hollow")).unwrap();
    hollow.set_len(32 << 20).unwrap();
    drop(hollow);

    let mut store = Store::default();
    let taken = take(dir, &mut store, None).unwrap();
    let reopened = Manifest::open(&job_key(), &taken.finished.sealed.bytes).unwrap();
    assert_eq!(reopened, taken.finished.manifest);
    assert_eq!(snapshot_id(&taken.finished.sealed.bytes), taken.finished.sealed.id);
    put_back(&reopened, &mut store, to.path()).unwrap();

    let (mut before, mut after) = (look(dir), look(to.path()));
    // Zeros are compared by length and blocks only.
    for seen in [&mut before, &mut after] {
        let hollow = seen.remove(b"hollow".as_slice()).unwrap();
        assert_eq!(hollow.data.len(), 32 << 20);
        assert!(hollow.data.iter().all(|byte| *byte == 0));
    }
    assert_eq!(before, after);
    assert_eq!(fs::metadata(to.path().join("hollow")).unwrap().blocks(), 0);
    let blocks = fs::metadata(to.path().join("sparse")).unwrap().blocks();
    assert!(blocks * 512 < 4 << 20, "holes stay holes: {blocks} blocks");
    let mut once = store.fetched.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), store.fetched.len(), "each pack is fetched once");
    assert_eq!(manifest_table(&taken.finished.sealed.bytes).unwrap(), once);
}

#[test]
fn packs_are_of_4_to_8_mib() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("big"), noise(3, 40 << 20)).unwrap();
    let mut store = Store::default();
    let taken = take(from.path(), &mut store, None).unwrap();
    assert_eq!(taken.report.written.packs, store.packs.len() as u64);
    let small = store.packs.values().filter(|pack| pack.len() < 4 << 20);
    assert!(small.count() <= 1, "only the last may be smaller");
}
