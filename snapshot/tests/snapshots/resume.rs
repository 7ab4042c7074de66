//! A restore that was cut goes on: nothing right is fetched again, nothing wrong stays.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use gpunion_snapshot::*;

use crate::common::{Store, look, noise, take};

/// Hands out so many packs, then breaks off.
struct Cut<'a>(&'a mut Store, usize);

impl PackSource for Cut<'_> {
    fn pack(&mut self, id: &PackId) -> std::io::Result<Vec<u8>> {
        if self.1 == 0 {
            return Err(std::io::ErrorKind::ConnectionReset.into());
        }
        self.1 -= 1;
        self.0.pack(id)
    }
}

fn fill(dir: &Path) {
    fs::create_dir_all(dir.join("d/e")).unwrap();
    for (name, seed, size) in
        [("a", 1, 9 << 20), ("d/b", 2, 14 << 20), ("d/e/c", 3, 3 << 20), ("small", 4, 10)]
    {
        fs::write(dir.join(name), noise(seed, size)).unwrap();
    }
    fs::hard_link(dir.join("a"), dir.join("same")).unwrap();
    symlink("a", dir.join("link")).unwrap();
    fs::set_permissions(dir.join("d/b"), fs::Permissions::from_mode(0o444)).unwrap();
    fs::set_permissions(dir.join("d/e"), fs::Permissions::from_mode(0o555)).unwrap();
}

fn resumed(manifest: &Manifest, source: &mut dyn PackSource, to: &Path) -> Result<Progress> {
    let options = RestoreOptions { resume: true, ..RestoreOptions::default() };
    restore(manifest, source, &open_root(to)?, options, &mut Watch::default())
}

#[test]
fn f96_a_restore_that_was_cut_goes_on_where_it_stopped() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut store = Store::default();
    fill(from.path());
    let taken = take(from.path(), &mut store, None).unwrap();
    let manifest = &taken.finished.manifest;
    let all = manifest.packs.len();
    assert!(all >= 4, "{all} packs");

    let cut = resumed(manifest, &mut Cut(&mut store, all - 2), to.path());
    assert!(matches!(cut, Err(Error::PackSource { .. })), "{cut:?}");
    store.fetched.clear();
    let done = resumed(manifest, &mut store, to.path()).unwrap();
    assert_eq!(store.fetched.len(), 2, "only what had not come");
    assert_eq!((done.bytes, Some(done.files)), (manifest.data_bytes(), done.total_files));
    assert_eq!(look(to.path()), look(from.path()));

    // All is there, with its last modes: no pack is asked for.
    store.fetched.clear();
    fs::remove_file(to.path().join("same")).unwrap();
    resumed(manifest, &mut store, to.path()).unwrap();
    assert!(store.fetched.is_empty(), "{:?}", store.fetched);
    assert_eq!(look(to.path()), look(from.path()));
}

#[test]
fn what_is_there_and_wrong_is_fetched_again() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut store = Store::default();
    fill(from.path());
    let taken = take(from.path(), &mut store, None).unwrap();
    let manifest = &taken.finished.manifest;
    resumed(manifest, &mut store, to.path()).unwrap();
    store.fetched.clear();

    let harmed = to.path().join("d/e/c");
    let mut bytes = fs::read(&harmed).unwrap();
    bytes[100] ^= 1;
    fs::write(&harmed, bytes).unwrap();
    fs::write(to.path().join("small"), "shorter").unwrap();
    fs::remove_file(to.path().join("link")).unwrap();
    symlink("/etc", to.path().join("link")).unwrap();
    resumed(manifest, &mut store, to.path()).unwrap();
    assert!(!store.fetched.is_empty() && store.fetched.len() < manifest.packs.len(), "{:?}", store.fetched);
    assert_eq!(look(to.path()), look(from.path()));
}
