//! Any tree comes back as it was: trees made up by proptest.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use crate::common::*;

#[derive(Debug, Clone)]
enum Thing {
    Dir(u32),
    File {
        mode: u32,
        data: Vec<u8>,
        tail: u64,
    },
    Sparse {
        parts: Vec<(u64, Vec<u8>)>,
        len: u64,
    },
    Link(Vec<u8>),
    /// A second name of an earlier file, chosen by number.
    Hard(usize),
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![1_u8..=b'.', b'0'..=255_u8, Just(b'a')];
    prop::collection::vec(byte, 1..12)
        .prop_filter("names a file can have", |name| name != b"." && name != b"..")
}

fn thing() -> impl Strategy<Value = Thing> {
    let data = prop::collection::vec(any::<u8>(), 0..3000);
    let part = (0_u64..200, prop::collection::vec(any::<u8>(), 1..5000));
    prop_oneof![
        (0o700_u32..=0o1777).prop_map(|mode| Thing::Dir(mode | 0o700)),
        (0_u32..=0o1777, data, 0_u64..3)
            .prop_map(|(mode, data, tail)| (mode | 0o600, data, tail))
            .prop_map(|(mode, data, tail)| Thing::File { mode, data, tail: tail * 700_000 }),
        (prop::collection::vec(part, 0..4), 0_u64..3_000_000)
            .prop_map(|(parts, len)| Thing::Sparse { parts, len }),
        prop::collection::vec(1_u8..=255, 1..40).prop_map(Thing::Link),
        any::<prop::sample::Index>().prop_map(|at| Thing::Hard(at.index(1000))),
    ]
}

/// Each thing goes into one of the folders made before it.
fn grow(root: &Path, things: &[(Vec<u8>, usize, Thing, u32)]) {
    let mut dirs = vec![PathBuf::new()];
    let mut files = Vec::new();
    let mut modes = BTreeMap::new();
    for (name, parent, thing, seconds) in things {
        let path = dirs[parent % dirs.len()].join(OsStr::from_bytes(name));
        let full = root.join(&path);
        if full.symlink_metadata().is_ok() {
            continue;
        }
        match thing {
            Thing::Dir(mode) => {
                fs::create_dir(&full).unwrap();
                modes.insert(full, *mode);
                dirs.push(path);
                continue;
            }
            Thing::File { mode, data, tail } => {
                let mut data = data.clone();
                data.extend(noise(*tail, usize::try_from(*tail).unwrap()));
                fs::write(&full, data).unwrap();
                modes.insert(full.clone(), *mode);
                files.push(full.clone());
            }
            Thing::Sparse { parts, len } => {
                let file = fs::File::create(&full).unwrap();
                file.set_len(*len).unwrap();
                for (block, data) in parts {
                    file.write_all_at(data, block * 16_384).unwrap();
                }
                files.push(full.clone());
            }
            Thing::Link(target) => symlink(OsStr::from_bytes(target), &full).unwrap(),
            Thing::Hard(at) if !files.is_empty() => {
                fs::hard_link(&files[at % files.len()], &full).unwrap();
            }
            Thing::Hard(_) => {}
        }
        if full.is_file() && !full.is_symlink() {
            let time = std::time::UNIX_EPOCH
                + std::time::Duration::new(u64::from(*seconds), *seconds % 1_000_000_000);
            fs::File::open(&full).unwrap().set_modified(time).unwrap();
        }
    }
    for (path, mode) in modes {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_comes_back_as_it_was(
        things in prop::collection::vec((name(), any::<prop::sample::Index>().prop_map(|i| i.index(64)), thing(), any::<u32>()), 0..25),
    ) {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        grow(from.path(), &things);
        let mut store = Store::default();
        let taken = take(from.path(), &mut store, None).unwrap();
        put_back(&taken.finished.manifest, &mut store, to.path()).unwrap();
        prop_assert_eq!(look(from.path()), look(to.path()));
        // And a second snapshot of what came back is the same snapshot, but for its nonce.
        let mut again = Store::default();
        let second = take(to.path(), &mut again, Some(&taken)).unwrap();
        prop_assert!(again.packs.is_empty());
        let holes_may_differ = |manifest: &gpunion_snapshot::Manifest| {
            manifest.entries.iter().map(|e| (e.path.clone(), e.meta)).collect::<Vec<_>>()
        };
        let (a, b) = (&taken.finished.manifest, &second.finished.manifest);
        prop_assert_eq!(holes_may_differ(a), holes_may_differ(b));
    }
}
