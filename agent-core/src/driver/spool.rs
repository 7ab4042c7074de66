//! Packs on their way from a workspace to the relay, on the agent's own disk: sealed as they are,
//! each with its record beside it, sealed with the job's key.
//!
//! With the records the next snapshot builds on what a run before it already packed, so a cut
//! upload or a restart of the agent costs no second packing. It never holds more than one whole
//! snapshot needs and one cut run has added, and leaves room on the disk for its owner.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use gpunion_protocol::ids::PackId;
use gpunion_protocol::units::Bytes;
use gpunion_snapshot::{JobKey, PackRecord, SystemRandomness, pack_id};

use crate::config::{files, past_cache};
use crate::container::free_space;
use crate::provider::event::Trouble;

/// Bytes of the agent's disk that checkpoints leave free.
const SPARE: u64 = 512 << 20;
const RECORD: &str = "key";

#[derive(Debug, Clone)]
pub(super) struct Spool {
    folder: PathBuf,
}

/// Written beside, then given its name.
fn put(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), Trouble> {
    let beside = path.with_extension("new");
    write(&beside).and_then(|()| std::fs::rename(&beside, path)).map_err(|e| disk(path, e))
}

fn disk(path: &Path, error: impl std::fmt::Display) -> Trouble {
    Trouble::Away { why: format!("{}: {error}", path.display()) }
}

impl Spool {
    pub(super) fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    fn pack(&self, id: &PackId) -> PathBuf {
        self.folder.join(id.to_string())
    }

    fn record(&self, id: &PackId) -> PathBuf {
        self.folder.join(format!("{id}.{RECORD}"))
    }

    /// Before a snapshot: what of earlier runs it may build on. What no record opens is removed,
    /// and so is all, when it is more than `most` bytes.
    pub(super) fn open(&self, key: &JobKey, most: u64) -> Result<Vec<PackRecord>, Trouble> {
        std::fs::create_dir_all(&self.folder).map_err(|e| disk(&self.folder, e))?;
        let mut records = Vec::new();
        let mut bytes = 0u64;
        let mut known = BTreeSet::new();
        for id in self.ids().map_err(|e| disk(&self.folder, e))? {
            let sealed = files::read_whole(&self.record(&id)).ok().flatten();
            let record = sealed.and_then(|sealed| PackRecord::open(key, &sealed).ok());
            let length = std::fs::metadata(self.pack(&id)).map(|found| found.len());
            if let (Some(record), Ok(length)) = (record.filter(|record| record.id == id), length) {
                bytes = bytes.saturating_add(length);
                known.insert(id);
                records.push(record);
            }
        }
        if bytes > most {
            known.clear();
            records.clear();
        }
        self.keep_only(&known).map_err(|e| disk(&self.folder, e))?;
        self.has_room(0)?;
        Ok(records)
    }

    pub(super) fn take(&self, record: &PackRecord, bytes: &[u8], key: &JobKey) -> Result<(), Trouble> {
        self.has_room(bytes.len() as u64)?;
        let sealed = record.seal(key, &mut SystemRandomness).map_err(|e| disk(&self.folder, e))?;
        // The pack first: a record says that its pack is here.
        put(&self.pack(&record.id), |beside| past_cache::write(beside, bytes))?;
        put(&self.record(&record.id), |beside| std::fs::write(beside, &sealed))
    }

    /// Removes all others; answers how many bytes of packs are left.
    pub(super) fn keep_only(&self, wanted: &BTreeSet<PackId>) -> io::Result<u64> {
        let mut left = 0;
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let (id, ending) = name.split_once('.').unwrap_or((&name, ""));
            match id.parse::<PackId>() {
                Ok(id) if wanted.contains(&id) && ending.is_empty() => left += entry.metadata()?.len(),
                Ok(id) if wanted.contains(&id) && ending == RECORD => {}
                Ok(_) | Err(_) => files::remove(&entry.path())?,
            }
        }
        Ok(left)
    }

    pub(super) fn empty(&self) -> io::Result<()> {
        self.keep_only(&BTreeSet::new()).map(drop)
    }

    /// What a power cut left damaged is not taken for the pack; the next snapshot packs it anew.
    pub(super) fn read(&self, id: &PackId) -> Result<Vec<u8>, Trouble> {
        let path = self.pack(id);
        let why = match past_cache::read(&path) {
            Ok(bytes) if pack_id(&bytes) == *id => return Ok(bytes),
            Ok(_) => "it is damaged".to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => "it is not here any more".to_owned(),
            Err(error) => return Err(disk(&path, error)),
        };
        let _ = files::remove(&self.record(id));
        Err(Trouble::Refused { reason: format!("a pack of the snapshot: {why} ({})", path.display()) })
    }

    fn ids(&self) -> io::Result<Vec<PackId>> {
        let names = std::fs::read_dir(&self.folder)?.collect::<io::Result<Vec<_>>>()?;
        Ok(names.iter().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }

    fn has_room(&self, more: u64) -> Result<(), Trouble> {
        match free_space(&self.folder) {
            Some(free) if free < SPARE.saturating_add(more) => Err(Trouble::Away {
                why: format!(
                    "the agent's disk is nearly full: {} free at {}; make room there",
                    Bytes(free),
                    self.folder.display()
                ),
            }),
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use gpunion_snapshot::{PackKey, SeededRandomness};

    use super::*;

    fn pack(n: u8) -> (PackRecord, Vec<u8>) {
        let bytes = vec![n; 1000];
        (PackRecord { id: pack_id(&bytes), key: PackKey::from_bytes([n; 32]), chunks: Vec::new() }, bytes)
    }

    fn spool() -> (tempfile::TempDir, Spool, JobKey) {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::at(folder.path().join("packs"));
        let key = JobKey::generate(&mut SeededRandomness::new(b"7")).unwrap();
        assert_eq!(spool.open(&key, u64::MAX).unwrap(), []);
        (folder, spool, key)
    }

    fn files(spool: &Spool) -> usize {
        std::fs::read_dir(&spool.folder).unwrap().count()
    }

    #[test]
    fn f101_what_a_cut_run_packed_is_there_for_the_next_and_no_key_lies_open() {
        let (_folder, spool, key) = spool();
        let (record, bytes) = pack(1);
        spool.take(&record, &bytes, &key).unwrap();
        assert_eq!(spool.open(&key, u64::MAX).unwrap(), std::slice::from_ref(&record));
        let kept = std::fs::read(spool.record(&record.id)).unwrap();
        assert!(!kept.windows(32).any(|window| window == [1; 32]), "the pack's key is sealed");
        assert_eq!(spool.read(&record.id).unwrap(), bytes);
        let other = JobKey::generate(&mut SeededRandomness::new(b"8")).unwrap();
        assert_eq!(spool.open(&other, u64::MAX).unwrap(), []);
        assert_eq!(files(&spool), 0, "what nobody can build on has no use");
    }

    #[test]
    fn f85_f101_packs_of_snapshots_that_were_given_up_do_not_pile_up() {
        let (_folder, spool, key) = spool();
        let packs: Vec<_> = (1..=4).map(pack).collect();
        for (record, bytes) in &packs {
            spool.take(record, bytes, &key).unwrap();
        }
        // The newest manifest names two.
        let named = packs.iter().skip(2).map(|(record, _)| record.id).collect();
        assert_eq!(spool.keep_only(&named).unwrap(), 2000);
        assert_eq!(files(&spool), 4);
        assert!(matches!(spool.read(&packs[0].0.id), Err(Trouble::Refused { .. })));
        assert_eq!(spool.open(&key, 2000).unwrap().len(), 2);
        assert_eq!(spool.open(&key, 1999).unwrap(), [], "more than the job's disk may hold");
        assert_eq!(files(&spool), 0);
    }

    #[test]
    fn halves_of_a_crash_are_removed_and_a_damaged_pack_is_packed_anew() {
        let (_folder, spool, key) = spool();
        let (first, second, third) = (pack(1), pack(2), pack(3));
        for (record, bytes) in [&first, &second, &third] {
            spool.take(record, bytes, &key).unwrap();
        }
        std::fs::write(spool.folder.join("abc.new"), "half").unwrap();
        std::fs::remove_file(spool.record(&first.0.id)).unwrap();
        std::fs::remove_file(spool.pack(&second.0.id)).unwrap();
        std::fs::write(spool.pack(&third.0.id), "torn").unwrap();
        assert_eq!(spool.open(&key, u64::MAX).unwrap(), std::slice::from_ref(&third.0));
        assert_eq!(files(&spool), 2);
        assert!(matches!(spool.read(&third.0.id), Err(Trouble::Refused { .. })));
        assert_eq!(spool.open(&key, u64::MAX).unwrap(), []);
    }
}
