//! Taking one file in: bounded, hashed as it comes, synced, and only then given its name.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::Shelf;

/// A sender that is silent for so long is given up; it resumes with what is missing.
const STALLED: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub(crate) enum PutError {
    #[error("it is longer than {0} bytes")]
    TooLarge(u64),
    #[error("the bytes that came do not have this id; they were altered or cut on the way")]
    Corrupt,
    #[error("the connection was cut or stood still before the end: {0}")]
    Cut(String),
    #[error("writing it failed: {0}")]
    Io(#[from] std::io::Error),
}

/// What came of keeping it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    New,
    /// It was here already.
    Known,
    /// These are not here, and so it is not either.
    Without(Vec<[u8; 32]>),
}

/// A file whose bytes have its id, not yet visible; gone when dropped without `keep`.
pub(crate) struct Received {
    shelf: Shelf,
    id: [u8; 32],
    part: PathBuf,
    len: u64,
}

impl Received {
    /// Reads the whole stream. The caller has checked that there is room.
    pub(crate) async fn read<S, E>(shelf: &Shelf, id: [u8; 32], mut stream: S) -> Result<Self, PutError>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: std::fmt::Display,
    {
        let part = shelf.part();
        let mut file = tokio::fs::OpenOptions::new().write(true).create_new(true).open(&part).await?;
        // From here on the guard removes the part whatever happens.
        let mut received = Self::whole(shelf, id, part, 0);
        let mut hasher = blake3::Hasher::new();
        copy(&mut file, &mut stream, &mut hasher, &mut received.len, shelf.max()).await?;
        if hasher.finalize().as_bytes() != &id {
            return Err(PutError::Corrupt);
        }
        file.sync_all().await?;
        Ok(received)
    }

    /// One whose bytes were verified already.
    pub(super) fn whole(shelf: &Shelf, id: [u8; 32], part: PathBuf, len: u64) -> Self {
        Self { shelf: shelf.clone(), id, part, len }
    }

    /// The first so many of the verified bytes, fewer where it is shorter.
    pub(crate) async fn beginning(&self, len: usize) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = tokio::fs::File::open(&self.part).await?;
        file.take(len as u64).read_to_end(&mut bytes).await?;
        Ok(bytes)
    }

    /// Makes it visible; it survives a crash from here on. False: it was here already.
    pub(crate) async fn keep(self) -> Result<bool, PutError> {
        let shelf = self.shelf.clone();
        Ok(self.keep_with(&shelf, Vec::new()).await? == Kept::New)
    }

    /// The same for one that is of use only with these others. Unless all of them are here, it is not
    /// taken in; and as long as it is here, they are not removed.
    pub(crate) async fn keep_with(self, others: &Shelf, needs: Vec<[u8; 32]>) -> Result<Kept, PutError> {
        let others = others.clone();
        let keep = move || {
            let kept = self.shelf.gate().keeping(|| self.link_with(&others, &needs))?;
            self.shelf.sync(&[self.id])?;
            Ok::<_, std::io::Error>(kept)
        };
        Ok(tokio::task::spawn_blocking(keep).await.map_err(std::io::Error::other)??)
    }

    /// Runs while nothing is removed: all is here at one instant, and counted on from then.
    fn link_with(&self, others: &Shelf, needs: &[[u8; 32]]) -> std::io::Result<Kept> {
        let gate = self.shelf.gate();
        let mut without = Vec::new();
        for id in needs {
            if !gate.touch(&others.path(id))? {
                without.push(*id);
            }
        }
        if !without.is_empty() {
            return Ok(Kept::Without(without));
        }
        let to = self.shelf.path(&self.id);
        gate.touch(&self.part)?;
        // A link fails when the name is taken, so of two equal uploads one counts.
        match std::fs::hard_link(&self.part, &to) {
            Ok(()) => {
                self.shelf.count(self.len);
                Ok(Kept::New)
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                gate.touch(&to)?;
                Ok(Kept::Known)
            }
            Err(e) => Err(e),
        }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        // Nobody is left to tell if it fails; the next start empties the folder anyway.
        let _ = std::fs::remove_file(&self.part);
    }
}

/// Appends the stream; `len` is that of the file, and at most `max` in the end. All that came is in
/// the file and in the hash, also when the stream breaks off.
pub(super) async fn copy<S, E>(
    file: &mut tokio::fs::File,
    stream: &mut S,
    hasher: &mut blake3::Hasher,
    len: &mut u64,
    max: u64,
) -> Result<(), PutError>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: std::fmt::Display,
{
    let ended = loop {
        let piece = match tokio::time::timeout(STALLED, stream.next()).await {
            Ok(Some(Ok(piece))) => piece,
            Ok(Some(Err(e))) => break Err(PutError::Cut(e.to_string())),
            Ok(None) => break Ok(()),
            Err(_) => break Err(PutError::Cut("nothing came for 30 s".to_owned())),
        };
        let longer = len.saturating_add(piece.len() as u64);
        if longer > max {
            return Err(PutError::TooLarge(max));
        }
        file.write_all(&piece).await?;
        hasher.update(&piece);
        *len = longer;
    };
    file.flush().await?;
    ended
}

#[cfg(test)]
mod tests {
    use super::super::Packs;
    use super::*;

    fn pieces(bytes: &[u8], cut: bool) -> impl Stream<Item = Result<Bytes, &'static str>> + Unpin {
        let mut all: Vec<_> = bytes.chunks(100).map(|c| Ok(Bytes::copy_from_slice(c))).collect();
        if cut {
            all.truncate(all.len() / 2);
            all.push(Err("connection reset"));
        }
        futures_util::stream::iter(all)
    }

    #[tokio::test]
    async fn a_file_shows_only_when_it_is_whole_and_true() {
        let dir = tempfile::tempdir().unwrap();
        let packs = Packs::open(dir.path(), 0).unwrap();
        let bytes = vec![7u8; 1_000];
        let id = *blake3::hash(&bytes).as_bytes();

        let cut = Received::read(&packs.packs, id, pieces(&bytes, true)).await;
        assert!(matches!(cut, Err(PutError::Cut(_))));
        let altered = Received::read(&packs.packs, id, pieces(&[8u8; 1_000], false)).await;
        assert!(matches!(altered, Err(PutError::Corrupt)));
        let received = Received::read(&packs.packs, id, pieces(&bytes, false)).await.unwrap();
        assert!(!packs.packs.has(&id), "not before it is kept");
        assert!(received.keep().await.unwrap());
        assert!(packs.packs.has(&id));
        assert_eq!((packs.packs.files(), packs.packs.bytes()), (1, 1_000));

        let again = Received::read(&packs.packs, id, pieces(&bytes, false)).await.unwrap();
        assert!(!again.keep().await.unwrap(), "the second copy changes nothing");
        assert_eq!(packs.packs.files(), 1);
        assert_eq!(std::fs::read_dir(dir.path().join("incoming")).unwrap().count(), 0);
        assert_eq!(Packs::open(dir.path(), 0).unwrap().packs.bytes(), 1_000, "counted anew at a start");
    }

    #[tokio::test]
    async fn too_much_is_refused_while_it_comes() {
        let dir = tempfile::tempdir().unwrap();
        let packs = Packs::open(dir.path(), 0).unwrap();
        let piece = Bytes::from(vec![0u8; 1 << 20]);
        let endless = futures_util::stream::repeat_with(move || Ok::<_, &str>(piece.clone()));
        let refused = Received::read(&packs.packs, [0; 32], endless).await;
        assert!(matches!(refused, Err(PutError::TooLarge(_))));
    }
}
