//! Measuring, clearing and making ready.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};

use gpunion_snapshot::*;
use rustix::fs::{Mode, OFlags, mkdirat, openat};

use crate::common::*;

#[test]
fn a_tree_of_any_depth_is_cleared_and_nothing_else() {
    let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(outside.path().join("keep"), b"k").unwrap();
    symlink(outside.path(), dir.path().join("out")).unwrap();
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    fs::write(dir.path().join("a/b/c"), b"c").unwrap();
    let root = open_root(dir.path()).unwrap();
    // 3000 nested folders, with paths that no path could name.
    let mut deep = root.try_clone().unwrap();
    for _ in 0..3000 {
        mkdirat(&deep, "deep", Mode::RWXU).unwrap();
        deep = openat(&deep, "deep", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    drop(deep);
    let error = take(dir.path(), &mut Store::default(), None).unwrap_err();
    assert!(matches!(error, Error::TooDeep { .. }));
    assert!(matches!(usage(&root, &Cancel::default()), Err(Error::TooDeep { .. })));
    clear(&root, &Cancel::default()).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn usage_counts_blocks_and_each_hard_link_once() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("a"), vec![1; 100_000]).unwrap();
    fs::hard_link(dir.path().join("a"), dir.path().join("d/b")).unwrap();
    fs::File::create(dir.path().join("hollow")).unwrap().set_len(1 << 30).unwrap();
    let root = open_root(dir.path()).unwrap();
    let found = usage(&root, &Cancel::default()).unwrap();
    assert_eq!((found.files, found.folders, found.bytes), (3, 1, 100_000 + (1 << 30)));
    let blocks: u64 = ["a", "hollow", "d"]
        .map(|name| fs::metadata(dir.path().join(name)).unwrap().blocks() * 512)
        .iter()
        .sum();
    assert_eq!(found.disk_bytes, blocks);
    assert!(blocks < 1 << 20);
}

#[test]
fn home_is_made_for_the_guest_and_never_through_a_link() {
    let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let root = open_root(dir.path()).unwrap();
    let me = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    prepare(&root, me.0, me.1).unwrap();
    prepare(&root, me.0, me.1).unwrap();
    let home = fs::metadata(dir.path().join(".home")).unwrap();
    assert_eq!((home.uid(), home.gid(), home.mode() & 0o7777), (me.0, me.1, 0o700));
    fs::remove_dir(dir.path().join(".home")).unwrap();
    symlink(outside.path(), dir.path().join(".home")).unwrap();
    let before = fs::metadata(outside.path()).unwrap().mode();
    assert!(prepare(&root, me.0, me.1).is_err());
    assert_eq!(fs::metadata(outside.path()).unwrap().mode(), before);
}
