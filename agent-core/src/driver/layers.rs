//! An image that no registry has: its snapshot, turned back into the archive that an engine
//! takes in.

use std::io::{self, Write};

use bytes::Bytes;
use gpunion_snapshot::{EntryKind, JobKey, Manifest, Reader};
use tokio::sync::mpsc;

use crate::relay_link::RelayClient;

/// Pieces of the archive that may wait for the engine.
const AHEAD: usize = 4;
const PIECE: usize = 1 << 20;

/// The archive as a stream. The blocking half ends when the stream is dropped.
pub(super) fn archive(
    sealed: &[u8],
    key: &JobKey,
    client: RelayClient,
) -> gpunion_snapshot::Result<impl futures_util::Stream<Item = io::Result<Bytes>> + Send + 'static + use<>> {
    let manifest = Manifest::open(key, sealed)?;
    let (to, from) = mpsc::channel(AHEAD);
    let handle = tokio::runtime::Handle::current();
    tokio::task::spawn_blocking(move || {
        let mut source = |id: &gpunion_snapshot::PackId| {
            handle.block_on(client.pack(id)).map(|bytes| bytes.to_vec()).map_err(io::Error::other)
        };
        let mut out = Pieces { to: to.clone(), buffer: Vec::with_capacity(PIECE) };
        if let Err(error) = write_archive(&manifest, &mut source, &mut out) {
            // The engine only sees that it breaks off.
            tracing::warn!("the image's archive can't be put together: {error}");
            let _ = to.blocking_send(Err(error));
        }
    });
    Ok(tokio_stream::wrappers::ReceiverStream::new(from))
}

fn write_archive(
    manifest: &Manifest,
    source: &mut dyn gpunion_snapshot::PackSource,
    out: &mut Pieces,
) -> io::Result<()> {
    let mut tar = tar::Builder::new(out);
    let mut reader = Reader::new(manifest, source);
    for entry in &manifest.entries {
        let path = std::path::Path::new(std::ffi::OsStr::new(
            std::str::from_utf8(entry.path.as_bytes()).map_err(io::Error::other)?,
        ));
        let mut header = tar::Header::new_gnu();
        header.set_mode(u32::from(entry.meta.mode));
        match &entry.kind {
            EntryKind::Dir => {
                header.set_entry_type(tar::EntryType::Directory);
                header.set_size(0);
                tar.append_data(&mut header, path, io::empty())?;
            }
            EntryKind::File(body) => {
                header.set_size(body.size);
                header.set_path(path)?;
                header.set_cksum();
                tar.get_mut().write_all(header.as_bytes())?;
                let written = reader.read_file(body, tar.get_mut()).map_err(io::Error::other)?;
                let rest = (512 - written % 512) % 512;
                tar.get_mut().write_all(&[0; 512][..rest as usize])?;
            }
            EntryKind::Symlink { target } => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_size(0);
                let target = std::str::from_utf8(target).map_err(io::Error::other)?;
                tar.append_link(&mut header, path, target)?;
            }
            EntryKind::HardLink { .. } => {
                return Err(io::Error::other("the image's snapshot holds what no image archive holds"));
            }
        }
    }
    tar.into_inner()?.flush()
}

/// Collects what is written and hands it on in pieces.
struct Pieces {
    to: mpsc::Sender<io::Result<Bytes>>,
    buffer: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.buffer, Vec::with_capacity(PIECE));
        if piece.is_empty() {
            return Ok(());
        }
        self.to.blocking_send(Ok(piece.into())).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
