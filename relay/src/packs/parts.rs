//! Files that come in parts: a proxy before the relay may take no body as large as a pack, and what
//! was sent before a line was cut need not be sent again (F96, F97).
//!
//! A part says where it begins; what does not begin where the file ends now is not taken, and the
//! answer says where to go on. The whole is hashed as it comes, like any upload. Unfinished files
//! are kept in memory by name, few of each device; a restart of the relay forgets them, and a sweep
//! those to which nothing was added for long.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use futures_util::Stream;
use gpunion_protocol::ids::DeviceId;
use gpunion_protocol::time::WallMs;
use tokio::io::AsyncSeekExt as _;

use super::Shelf;
use super::receive::{PutError, Received, copy};

/// Unfinished files of one device; of more the one that waited longest is dropped.
const UNFINISHED: usize = 8;

/// Whose, where, which.
type Name = (DeviceId, PathBuf, [u8; 32]);

#[derive(Default)]
pub(crate) struct Parts {
    unfinished: Mutex<BTreeMap<Name, Unfinished>>,
}

/// A file as far as it came; its bytes are removed with it.
struct Unfinished {
    path: PathBuf,
    len: u64,
    hasher: blake3::Hasher,
    /// Counts up: the smallest waited longest.
    turn: u64,
    /// When something was added last.
    touched: WallMs,
}

/// What came of a part.
pub(crate) enum Added {
    /// It was the last one, and all bytes are what their id says.
    Whole(Received),
    /// So many bytes are here now.
    Until(u64),
}

impl Parts {
    /// `part`: which bytes of `total` the stream has.
    pub(crate) async fn add<S, E>(
        &self,
        by: &DeviceId,
        (shelf, id): (&Shelf, [u8; 32]),
        (part, total): (Range<u64>, u64),
        mut stream: S,
    ) -> Result<Added, PutError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: std::fmt::Display,
    {
        if total > shelf.max() {
            return Err(PutError::TooLarge(shelf.max()));
        }
        let name = (by.clone(), shelf.dir().to_owned(), id);
        // Taken out while it grows: of two that come at once one begins anew.
        let mut file = match self.take(&name) {
            Some(file) => file,
            None => Unfinished::new(shelf.part()),
        };
        if part.start != file.len {
            let len = file.len;
            if len > 0 {
                self.put(name, file);
            }
            return Ok(Added::Until(len));
        }
        let room = part.end - part.start;
        let added = file.append(room, &mut stream).await;
        match added {
            // What came of it is good as far as it goes; the whole is hashed in the end.
            Ok(()) | Err(PutError::Cut(_)) if file.len < total => {
                let len = file.len;
                file.touched = shelf.gate().now();
                self.put(name, file);
                added.map(|()| Added::Until(len))
            }
            Ok(()) => file.finish(shelf, id).await.map(Added::Whole),
            Err(error) => Err(error),
        }
    }

    /// Removes those to which nothing was added since `before`; how many.
    pub(super) fn forget(&self, before: WallMs) -> usize {
        let mut all = self.unfinished.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.len();
        all.retain(|_, file| file.touched > before);
        count - all.len()
    }

    fn take(&self, name: &Name) -> Option<Unfinished> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner).remove(name)
    }

    fn put(&self, name: Name, mut file: Unfinished) {
        let mut all = self.unfinished.lock().unwrap_or_else(PoisonError::into_inner);
        file.turn = all.values().map(|file| file.turn).max().unwrap_or(0).saturating_add(1);
        let own = |(by, _, _): &&Name| *by == name.0;
        if all.keys().filter(own).count() >= UNFINISHED {
            let oldest = all.iter().filter(|(name, _)| own(name)).min_by_key(|(_, file)| file.turn);
            let oldest = oldest.map(|(name, _)| name.clone());
            oldest.and_then(|name| all.remove(&name));
        }
        all.insert(name, file);
    }
}

impl Unfinished {
    fn new(path: PathBuf) -> Self {
        Self { path, len: 0, hasher: blake3::Hasher::new(), turn: 0, touched: WallMs(0) }
    }

    /// Adds what comes, at most so many bytes.
    async fn append<S, E>(&mut self, room: u64, stream: &mut S) -> Result<(), PutError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: std::fmt::Display,
    {
        let mut open = tokio::fs::OpenOptions::new();
        let mut file = open.write(true).create(true).truncate(false).open(&self.path).await?;
        file.seek(std::io::SeekFrom::Start(self.len)).await?;
        let before = self.len;
        copy(&mut file, stream, &mut self.hasher, &mut self.len, before.saturating_add(room)).await?;
        if self.len - before < room {
            return Err(PutError::Cut("fewer bytes came than the part has".to_owned()));
        }
        Ok(())
    }

    async fn finish(mut self, shelf: &Shelf, id: [u8; 32]) -> Result<Received, PutError> {
        if self.hasher.finalize().as_bytes() != &id {
            return Err(PutError::Corrupt);
        }
        tokio::fs::File::open(&self.path).await?.sync_all().await?;
        let path = std::mem::take(&mut self.path);
        Ok(Received::whole(shelf, id, path, self.len))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            // Nobody is left to tell if it fails; the next start empties the folder anyway.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Packs;
    use super::*;

    fn device(n: u8) -> DeviceId {
        DeviceId::new(1, [n; 10])
    }

    async fn add(
        packs: &Packs,
        by: u8,
        bytes: &[u8],
        part: Range<usize>,
        cut: usize,
    ) -> Result<Option<u64>, PutError> {
        let id = *blake3::hash(bytes).as_bytes();
        let sent = Bytes::copy_from_slice(&bytes[part.start..part.end - cut]);
        let stream = futures_util::stream::iter([Ok::<_, &str>(sent)]);
        let range = (part.start as u64..part.end as u64, bytes.len() as u64);
        match packs.parts.add(&device(by), (&packs.packs, id), range, stream).await? {
            Added::Until(len) => Ok(Some(len)),
            Added::Whole(received) => received.keep().await.map(|_| None),
        }
    }

    fn on_their_way(dir: &std::path::Path) -> usize {
        std::fs::read_dir(dir.join("incoming")).unwrap().count()
    }

    #[tokio::test]
    async fn f96_parts_become_one_file_and_a_cut_goes_on_where_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let packs = Packs::open(dir.path(), 0).unwrap();
        let bytes: Vec<u8> = (0..1_000u32).map(|n| n as u8).collect();
        let id = *blake3::hash(&bytes).as_bytes();
        assert_eq!(add(&packs, 1, &bytes, 0..400, 0).await.unwrap(), Some(400));
        assert_eq!(add(&packs, 1, &bytes, 0..400, 0).await.unwrap(), Some(400), "said twice, told where");
        assert!(matches!(add(&packs, 1, &bytes, 400..800, 100).await, Err(PutError::Cut(_))));
        assert_eq!(add(&packs, 1, &bytes, 400..800, 0).await.unwrap(), Some(700), "what came is kept");
        assert_eq!(add(&packs, 2, &bytes, 700..1_000, 0).await.unwrap(), Some(0), "each device its own");
        assert!(!packs.packs.has(&id));
        assert_eq!(add(&packs, 1, &bytes, 700..1_000, 0).await.unwrap(), None);
        assert!(packs.packs.has(&id));
        assert_eq!(std::fs::read(packs.packs.path(&id)).unwrap(), bytes);
        assert_eq!(on_their_way(dir.path()), 0);
    }

    #[tokio::test]
    async fn what_is_altered_too_long_or_too_much_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let packs = Packs::open(dir.path(), 0).unwrap();
        let (id, by) = ([7; 32], device(1));
        let piece = |len: usize| futures_util::stream::iter([Ok::<_, &str>(Bytes::from(vec![0; len]))]);
        let to = (&packs.packs, id);
        let altered = packs.parts.add(&by, to, (0..10, 10), piece(10)).await;
        assert!(matches!(altered, Err(PutError::Corrupt)));
        let longer = packs.parts.add(&by, to, (0..10, 20), piece(11)).await;
        assert!(matches!(longer, Err(PutError::TooLarge(10))));
        let huge = packs.parts.add(&by, to, (0..10, 1 << 40), piece(10)).await;
        assert!(matches!(huge, Err(PutError::TooLarge(_))));
        assert_eq!(on_their_way(dir.path()), 0);
        for n in 0..100 {
            let begun = packs.parts.add(&by, (&packs.packs, [n; 32]), (0..10, 20), piece(10)).await;
            assert!(matches!(begun, Ok(Added::Until(10))));
        }
        assert_eq!(on_their_way(dir.path()), UNFINISHED);
    }

    #[tokio::test]
    async fn f85_what_was_begun_and_left_does_not_stay() {
        let dir = tempfile::tempdir().unwrap();
        let packs = Packs::open(dir.path(), 0).unwrap();
        let before = packs.packs.gate().now();
        assert_eq!(add(&packs, 1, &[7; 100], 0..40, 0).await.unwrap(), Some(40));
        assert_eq!(packs.parts.forget(WallMs(before.0 - 1)), 0);
        assert_eq!(packs.parts.forget(packs.packs.gate().now()), 1);
        assert_eq!(on_their_way(dir.path()), 0);
        assert_eq!(add(&packs, 1, &[7; 100], 40..100, 0).await.unwrap(), Some(0), "it begins anew");
    }
}
