//! A later snapshot on top of an earlier one: only the difference is fetched, and nothing of the
//! earlier one is left.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

use gpunion_snapshot::*;

use crate::common::{Store, look, noise, put_back, take};

fn updated(manifest: &Manifest, store: &mut Store, to: &Path) -> Progress {
    let root = open_root(to).unwrap();
    keep_only(&root, manifest, &Cancel::default()).unwrap();
    let options = RestoreOptions { resume: true, ..RestoreOptions::default() };
    restore(manifest, store, &root, options, &mut Watch::default()).unwrap()
}

fn fill(dir: &Path) {
    fs::create_dir_all(dir.join("d/e")).unwrap();
    fs::create_dir_all(dir.join("goes/deep")).unwrap();
    for (name, seed, size) in [
        ("large", 1, 20 << 20),
        ("same", 2, 9 << 20),
        ("d/shorter", 3, 3 << 20),
        ("d/e/gone", 4, 100),
        ("goes/deep/file", 5, 100),
        ("becomes-folder", 6, 100),
        ("sparse", 7, 4 << 20),
    ] {
        fs::write(dir.join(name), noise(seed, size)).unwrap();
    }
    fs::create_dir(dir.join("becomes-file")).unwrap();
    fs::write(dir.join("becomes-file/inner"), "x").unwrap();
    symlink("large", dir.join("link")).unwrap();
    symlink("large", dir.join("link-goes")).unwrap();
    fs::set_permissions(dir.join("same"), fs::Permissions::from_mode(0o444)).unwrap();
}

/// One of each kind of change.
fn change(dir: &Path) {
    let large = OpenOptions::new().write(true).open(dir.join("large")).unwrap();
    large.write_all_at(&noise(99, 100_000), 8 << 20).unwrap();
    fs::write(dir.join("d/shorter"), noise(3, 1 << 20)).unwrap();
    fs::remove_file(dir.join("d/e/gone")).unwrap();
    fs::remove_dir_all(dir.join("goes")).unwrap();
    fs::remove_file(dir.join("becomes-folder")).unwrap();
    fs::create_dir(dir.join("becomes-folder")).unwrap();
    fs::write(dir.join("becomes-folder/new"), "new").unwrap();
    fs::remove_dir_all(dir.join("becomes-file")).unwrap();
    fs::write(dir.join("becomes-file"), "a file").unwrap();
    fs::remove_file(dir.join("link")).unwrap();
    symlink("same", dir.join("link")).unwrap();
    fs::remove_file(dir.join("link-goes")).unwrap();
    fs::remove_file(dir.join("sparse")).unwrap();
    let sparse = fs::File::create(dir.join("sparse")).unwrap();
    sparse.set_len(4 << 20).unwrap();
    sparse.write_all_at(&noise(7, 4096), 0).unwrap();
    fs::hard_link(dir.join("same"), dir.join("twin")).unwrap();
}

#[test]
fn only_the_difference_is_fetched_and_nothing_older_stays() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut store = Store::default();
    fill(from.path());
    let first = take(from.path(), &mut store, None).unwrap();
    put_back(&first.finished.manifest, &mut store, to.path()).unwrap();
    assert_eq!(look(to.path()), look(from.path()));

    change(from.path());
    let second = take(from.path(), &mut store, Some(&first)).unwrap();
    store.fetched.clear();
    let manifest = &second.finished.manifest;
    let done = updated(manifest, &mut store, to.path());
    assert_eq!(look(to.path()), look(from.path()));
    assert_eq!((done.bytes, Some(done.files)), (manifest.data_bytes(), done.total_files));
    let bytes: usize = store.fetched.iter().map(|id| store.packs[id].len()).sum();
    // About a chunk of 1 MiB around the change, what was made anew, and the pack that holds it.
    assert!(bytes < 8 << 20, "{bytes} bytes were fetched of {}", manifest.data_bytes());

    store.fetched.clear();
    updated(&first.finished.manifest, &mut store, to.path());
    updated(manifest, &mut store, to.path());
    assert_eq!(look(to.path()), look(from.path()), "there and back");
}

#[test]
fn onto_an_empty_folder_it_is_a_restore_like_any_other() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut store = Store::default();
    fill(from.path());
    let taken = take(from.path(), &mut store, None).unwrap();
    updated(&taken.finished.manifest, &mut store, to.path());
    assert_eq!(look(to.path()), look(from.path()));
}
