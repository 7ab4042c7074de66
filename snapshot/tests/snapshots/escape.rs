//! Nothing is written outside of the target, whatever a manifest says and whatever lies in wait.

use std::fs;
use std::os::unix::fs::symlink;

use gpunion_snapshot::*;
use proptest::prelude::*;

use crate::common::*;

const META: Meta = Meta { mode: 0o755, mtime: (1, 2) };

fn entry(path: &str, kind: EntryKind) -> Entry {
    Entry { path: TreePath::new(path).unwrap(), meta: META, kind }
}

fn manifest(entries: Vec<Entry>) -> Manifest {
    Manifest { chunk_key: chunk_key(), packs: vec![], chunks: vec![], entries }
}

fn file() -> EntryKind {
    EntryKind::File(FileBody { size: 3, holes: vec![Hole { offset: 0, len: 3 }], chunks: vec![] })
}

fn link(target: &str) -> EntryKind {
    EntryKind::Symlink { target: target.into() }
}

#[test]
fn a_link_is_never_written_through() {
    // A manifest that was not decoded, so that even its order is a lie: a file below a link.
    let outside = tempfile::tempdir().unwrap();
    let to = tempfile::tempdir().unwrap();
    let target = outside.path().to_str().unwrap();
    let hostile = manifest(vec![entry("x", link(target)), entry("x/owned", file())]);
    assert!(put_back(&hostile, &mut Store::default(), to.path()).is_err());
    assert!(fs::read_dir(outside.path()).unwrap().next().is_none());
    assert!(hostile.seal(&job_key(), &mut SystemRandomness).is_err(), "nor is it ever sealed");
}

#[test]
fn a_link_that_lies_in_the_target_already_is_not_followed() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("keep"), b"mine").unwrap();
    for (in_wait, entries) in [
        ("d", vec![entry("d", EntryKind::Dir), entry("d/keep", file())]),
        ("keep", vec![entry("keep", file())]),
        ("l", vec![entry("l", link("other"))]),
    ] {
        let to = tempfile::tempdir().unwrap();
        let target = if in_wait == "keep" { outside.path().join("keep") } else { outside.path().into() };
        symlink(target, to.path().join(in_wait)).unwrap();
        let error = put_back(&manifest(entries), &mut Store::default(), to.path()).unwrap_err();
        assert!(matches!(error, Error::AlreadyThere { .. }), "{in_wait}: {error}");
        assert_eq!(fs::read(outside.path().join("keep")).unwrap(), b"mine");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }
}

#[test]
fn a_mode_or_time_is_never_set_through_a_link() {
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    fs::write(&victim, b"v").unwrap();
    let before = fs::metadata(&victim).unwrap();
    let to = tempfile::tempdir().unwrap();
    let hostile = manifest(vec![entry("l", link(victim.to_str().unwrap()))]);
    put_back(&hostile, &mut Store::default(), to.path()).unwrap();
    let after = fs::metadata(&victim).unwrap();
    assert_eq!(before.permissions(), after.permissions());
    assert_eq!(before.modified().unwrap(), after.modified().unwrap());
}

#[test]
fn a_hard_link_to_a_link_or_to_nothing_is_refused() {
    for hostile in [
        manifest(vec![entry("a", link("/etc/passwd")), entry("b", EntryKind::HardLink { to: 0 })]),
        manifest(vec![entry("b", EntryKind::HardLink { to: 0 })]),
        manifest(vec![entry("b", EntryKind::HardLink { to: 9 })]),
    ] {
        assert!(hostile.seal(&job_key(), &mut SystemRandomness).is_err());
    }
}

#[test]
fn set_id_bits_do_not_come_out_of_a_snapshot() {
    use std::os::unix::fs::PermissionsExt;
    let from = tempfile::tempdir().unwrap();
    let tool = from.path().join("tool");
    fs::write(&tool, b"#!").unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o6755)).unwrap();
    let mut store = Store::default();
    let taken = take(from.path(), &mut store, None).unwrap();
    let to = tempfile::tempdir().unwrap();
    put_back(&taken.finished.manifest, &mut store, to.path()).unwrap();
    let mode = fs::metadata(to.path().join("tool")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
}

fn kind() -> impl Strategy<Value = EntryKind> {
    prop_oneof![
        Just(EntryKind::Dir),
        Just(file()),
        Just(link("/tmp")),
        Just(link("..")),
        (0_u32..6).prop_map(|to| EntryKind::HardLink { to }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Manifests of few names, so that links, folders and files collide often.
    #[test]
    fn no_manifest_gets_out(entries in prop::collection::vec(("[ab](/[ab]){0,2}", kind()), 1..8)) {
        let around = tempfile::tempdir().unwrap();
        let to = around.path().join("target");
        fs::create_dir(&to).unwrap();
        fs::write(around.path().join("keep"), b"mine").unwrap();
        let entries = entries.into_iter().map(|(path, kind)| entry(&path, kind)).collect();
        let _ = put_back(&manifest(entries), &mut Store::default(), &to);
        let names: Vec<_> = fs::read_dir(around.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        prop_assert_eq!(names.len(), 2);
        prop_assert_eq!(fs::read(around.path().join("keep")).unwrap(), b"mine");
    }
}
