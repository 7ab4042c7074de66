//! The file with the word of reclaims that were done without an agent: read, added to, removed.
//!
//! It decides nothing; what a word means is `provider/word.rs`.

use std::io;
use std::path::Path;

use gpunion_protocol::time::WallMs;

use crate::config::files;
use crate::provider::word::{ReclaimWord, Wanted};

/// A file that makes no sense is the wish for all.
pub fn read(path: &Path) -> io::Result<Option<ReclaimWord>> {
    match files::read_json(path) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Ok(Some(ReclaimWord { wanted: Wanted::All, at: WallMs(0) }))
        }
        read => read,
    }
}

pub fn add(path: &Path, wanted: Wanted, at: WallMs) -> io::Result<()> {
    // One that can't be read may say more than this one.
    let before = read(path).unwrap_or(Some(ReclaimWord { wanted: Wanted::All, at }));
    files::write_json(path, &ReclaimWord::merged(before, wanted, at))
}

/// What was heard is on the books. A word that came since stays for the next look.
pub fn forget(path: &Path, heard: &ReclaimWord) -> io::Result<()> {
    if read(path)?.is_some_and(|word| word == *heard) { files::remove(path) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use gpunion_protocol::ids::GpuUuid;

    use super::*;

    #[test]
    fn words_add_up_and_only_what_was_heard_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reclaimed");
        let gpu = |name: &str| GpuUuid(name.to_owned());
        assert_eq!(read(&path).unwrap(), None);
        add(&path, Wanted::of(Some(&gpu("GPU-1"))), WallMs(1)).unwrap();
        let heard = read(&path).unwrap().unwrap();
        add(&path, Wanted::of(Some(&gpu("GPU-2"))), WallMs(2)).unwrap();
        forget(&path, &heard).unwrap();
        let word = read(&path).unwrap().unwrap();
        assert!(word.wanted.holds(&gpu("GPU-1")) && word.wanted.holds(&gpu("GPU-2")), "{word:?}");
        assert!(!word.wanted.holds(&gpu("GPU-3")));
        forget(&path, &word).unwrap();
        assert_eq!(read(&path).unwrap(), None);
        std::fs::write(&path, "half a wo").unwrap();
        assert!(read(&path).unwrap().unwrap().wanted.holds(&gpu("GPU-3")));
    }
}
