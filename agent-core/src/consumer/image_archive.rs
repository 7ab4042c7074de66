//! An image of this member's own engine, as the files of a `docker save` archive.
//!
//! Nothing in such an archive says that it is whole. So what comes is held against the digests that it
//! names: whoever took another one would have an image that no provider's engine loads.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use gpunion_snapshot::{Error as SnapshotError, Meta, TreePath, Writer};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

/// What every archive of an image has.
const INDEX: &str = "manifest.json";
/// Files whose name is the digest of what is in them.
const BLOBS: &str = "blobs/sha256/";
/// Bytes of the largest file that is looked into.
const SMALL: usize = 1 << 20;

/// Each entry of a tar archive as a file of the snapshot. One that is not whole is refused.
pub(super) fn files_of(archive: impl io::Read, writer: &mut Writer<'_>) -> Result<(), SnapshotError> {
    let broken = |source| SnapshotError::System { what: "the image's archive can't be read", source };
    let mut archive = tar::Archive::new(archive);
    let mut folders = BTreeSet::new();
    let mut found = Found::default();
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let bytes = entry.path_bytes().into_owned();
        let bytes = bytes.strip_prefix(b"./").unwrap_or(&bytes);
        let bytes = bytes.strip_suffix(b"/").unwrap_or(bytes).to_vec();
        if bytes.is_empty() || bytes == b"." {
            continue;
        }
        let path = TreePath::new(bytes.clone())?;
        add_parents(&bytes, &mut folders, writer)?;
        let header = entry.header();
        let meta = Meta { mode: 0o644, mtime: (i64::try_from(header.mtime().unwrap_or(0)).unwrap_or(0), 0) };
        match header.entry_type() {
            tar::EntryType::Directory if folders.contains(&bytes) => {}
            tar::EntryType::Directory => {
                folders.insert(bytes);
                writer.add_dir(path, Meta { mode: 0o755, ..meta });
            }
            tar::EntryType::Symlink => {
                let target = entry.link_name_bytes().map(|target| target.into_owned()).unwrap_or_default();
                writer.add_symlink(path, meta, target);
                found.links.insert(String::from_utf8_lossy(&bytes).into_owned());
            }
            _ if header.entry_type().is_file() => {
                let size = entry.size();
                let mut watched = Watched { inner: &mut entry, hash: Sha256::new(), small: Vec::new() };
                if writer.add_file(path, meta, &mut watched)? != size {
                    return Err(broke_off());
                }
                // A layer is not kept: an image may have hundreds.
                let small = if watched.small.len() > SMALL { Vec::new() } else { watched.small };
                let file = File { digest: hex::encode(watched.hash.finalize()), small };
                found.files.insert(String::from_utf8_lossy(&bytes).into_owned(), file);
            }
            _ => {}
        }
    }
    found.is_whole().then_some(()).ok_or_else(broke_off)
}

fn broke_off() -> SnapshotError {
    SnapshotError::System {
        what: "the container engine did not write the image out whole",
        source: io::ErrorKind::UnexpectedEof.into(),
    }
}

struct Watched<R> {
    inner: R,
    hash: Sha256,
    /// What was read, up to one byte too much.
    small: Vec<u8>,
}

impl<R: io::Read> io::Read for Watched<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        let read = into.get(..count).unwrap_or_default();
        self.hash.update(read);
        let room = (SMALL + 1).saturating_sub(self.small.len());
        self.small.extend_from_slice(read.get(..room.min(count)).unwrap_or_default());
        Ok(count)
    }
}

#[derive(Default)]
struct Found {
    files: BTreeMap<String, File>,
    links: BTreeSet<String>,
}

struct File {
    /// SHA-256 in hex, as images name their parts.
    digest: String,
    /// What is in it; nothing of one that is larger than any that is looked into.
    small: Vec<u8>,
}

impl File {
    fn json<'a, T: Deserialize<'a>>(&'a self) -> Option<T> {
        serde_json::from_slice(&self.small).ok()
    }

    fn has(&self, digest: &str) -> bool {
        self.digest == digest.strip_prefix("sha256:").unwrap_or(digest)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    config: String,
    layers: Vec<String>,
}

#[derive(Deserialize)]
struct Config {
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    /// Of the layers as they are unpacked.
    diff_ids: Vec<String>,
}

impl Found {
    fn is_whole(&self) -> bool {
        let listed = self.files.get(INDEX).and_then(File::json::<Vec<Listed>>);
        let blobs = self.files.iter().filter_map(|(path, file)| Some((path.strip_prefix(BLOBS)?, file)));
        listed.is_some_and(|images| images.iter().all(|image| self.image_is_whole(image) == Some(true)))
            && blobs.into_iter().all(|(name, file)| file.has(name))
    }

    /// Absent when a part of it is not there.
    fn image_is_whole(&self, image: &Listed) -> Option<bool> {
        let file = self.files.get(&image.config)?;
        let config: Config = file.json()?;
        // By its id the provider finds the image again; a blob's name is looked at in any case.
        let named = image.config.strip_suffix(".json").is_none_or(|digest| file.has(digest));
        let mut layers = image.layers.iter().zip(&config.rootfs.diff_ids);
        let whole = layers.all(|(path, unpacked)| match self.files.get(path) {
            // It may be packed, under the digest of that.
            Some(_) if path.starts_with(BLOBS) => true,
            Some(layer) => layer.has(unpacked),
            // One that is there already, under another name.
            None => self.links.contains(path),
        });
        Some(named && whole && image.layers.len() == config.rootfs.diff_ids.len())
    }
}

/// A snapshot names each folder on the way; an archive may not.
fn add_parents(
    path: &[u8],
    folders: &mut BTreeSet<Vec<u8>>,
    writer: &mut Writer<'_>,
) -> Result<(), SnapshotError> {
    for (at, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
        let Some(parent) = path.get(..at) else { continue };
        if folders.insert(parent.to_vec()) {
            writer.add_dir(TreePath::new(parent.to_vec())?, Meta { mode: 0o755, mtime: (0, 0) });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use gpunion_snapshot::{ChunkIndex, ChunkKey, SealedPack, SystemRandomness, Watch};
    use serde_json::json;

    use super::*;

    fn read(archive: &[u8]) -> Result<(), SnapshotError> {
        let index = ChunkIndex::new(ChunkKey::generate(&mut SystemRandomness)?);
        let mut writer = Writer::new(index, |_: SealedPack| Ok(()), SystemRandomness, Watch::default())?;
        files_of(archive, &mut writer)
    }

    fn tar(files: &[(String, Vec<u8>)]) -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            tar.append_data(&mut header, name, &bytes[..]).unwrap();
        }
        tar.into_inner().unwrap()
    }

    fn sha(bytes: &[u8]) -> String {
        hex::encode(Sha256::digest(bytes))
    }

    /// Of the two forms, the one with a folder for each layer.
    fn old(layer: &[u8]) -> Vec<(String, Vec<u8>)> {
        let unpacked = format!("sha256:{}", sha(&[7; 3000]));
        let config = json!({ "rootfs": { "diff_ids": [unpacked] } }).to_string().into_bytes();
        let name = format!("{}.json", sha(&config));
        let index = json!([{ "Config": name, "RepoTags": null, "Layers": ["a/layer.tar"] }]).to_string();
        vec![
            ("a/layer.tar".to_owned(), layer.to_vec()),
            (name, config),
            ("manifest.json".to_owned(), index.into_bytes()),
        ]
    }

    /// And the one of the Open Container Initiative, where a layer may be packed.
    fn blobs(layer: &[u8]) -> Vec<(String, Vec<u8>)> {
        let config = json!({ "rootfs": { "diff_ids": ["sha256:unpacked"] } }).to_string().into_bytes();
        let named = |digest: String| format!("blobs/sha256/{digest}");
        let (at, of) = (named(sha(&config)), named(sha(&[7; 3000])));
        let index = json!([{ "Config": at, "Layers": [of] }]).to_string();
        vec![(of, layer.to_vec()), (at, config), ("manifest.json".to_owned(), index.into_bytes())]
    }

    /// Nothing in a tar archive says that it was cut: not at the end of an entry, nor inside.
    #[test]
    fn an_archive_that_breaks_off_anywhere_is_no_image() {
        for files in [old(&[7; 3000]), blobs(&[7; 3000])] {
            let whole = tar(&files);
            read(&whole).unwrap();
            let padded = |bytes: &[u8]| 512 + bytes.len().next_multiple_of(512);
            let (last, others) = files.split_last().unwrap();
            let end: usize = others.iter().map(|(_, bytes)| padded(bytes)).sum();
            for cut in (0..end + 512 + last.1.len()).step_by(61) {
                assert!(read(&whole[..cut]).is_err(), "cut at {cut}");
            }
        }
    }

    #[test]
    fn a_layer_that_is_not_what_the_image_says_is_no_layer() {
        for layer in [vec![7; 2999], vec![8; 3000], Vec::new()] {
            assert!(read(&tar(&old(&layer))).is_err());
            assert!(read(&tar(&blobs(&layer))).is_err());
        }
        let without = |mut files: Vec<(String, Vec<u8>)>| {
            files.remove(0);
            tar(&files)
        };
        assert!(read(&without(old(&[7; 3000]))).is_err());
        assert!(read(&without(blobs(&[7; 3000]))).is_err());
    }
}
