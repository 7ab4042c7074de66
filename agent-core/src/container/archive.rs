//! The gate for image archives (`docker save`) that come from a member.
//!
//! An engine that loads such an archive obeys what it says about names: an archive that calls its
//! image `python:3.12` takes that name away from the owner's own image. So while the bytes pass,
//! names are taken out, and whatever could bring them in by a side door (links, odd kinds of
//! entries, paths that lead elsewhere) is refused. One image, the expected one, may pass. Nothing
//! is unpacked here, and no more than one small file is held in memory.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use serde_json::Value;

const BLOCK: usize = 512;
/// Bytes of the largest `manifest.json`, `index.json` or long name.
const SMALL: u64 = 1 << 20;
const MOST_LINKS: usize = 4096;

/// Why the gate closed, for whoever sees only that the transfer broke off.
#[derive(Debug, Clone, Default)]
pub(super) struct Refusal(Arc<Mutex<Option<String>>>);

impl Refusal {
    pub(super) fn reason(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, reason: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.to_owned());
    }
}

pub(super) struct Gate {
    image_id: String,
    refusal: Refusal,
    state: State,
    /// Bytes of a header or of a small file, until it is whole.
    held: Vec<u8>,
    /// Set by a preceding long-name entry.
    long_name: Option<String>,
    links: BTreeSet<String>,
}

enum State {
    Header,
    /// So many bytes of data and padding still pass, or are dropped.
    Pass {
        left: u64,
    },
    Drop {
        left: u64,
    },
    Hold {
        left: u64,
        size: u64,
        what: Held,
    },
}

enum Held {
    /// An entry whose names are taken out before it passes.
    Manifest {
        name: &'static str,
    },
    /// The name of the next entry, in one of two forms.
    GnuName,
    PaxRecords,
}

const MANIFEST: &str = "manifest.json";
const INDEX: &str = "index.json";
const REPOSITORIES: &str = "repositories";

impl Gate {
    pub(super) fn new(image_id: &str) -> Self {
        Self {
            image_id: image_id.to_owned(),
            refusal: Refusal::default(),
            state: State::Header,
            held: Vec::new(),
            long_name: None,
            links: BTreeSet::new(),
        }
    }

    pub(super) fn refusal(&self) -> Refusal {
        self.refusal.clone()
    }

    /// The same stream with the gate in it.
    pub(super) fn guard<S>(self, archive: S) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static
    where
        S: Stream<Item = io::Result<Bytes>> + Send + 'static,
    {
        let refusal = self.refusal();
        archive.scan((self, false), move |(gate, closed), piece| {
            if *closed {
                return std::future::ready(None);
            }
            let mut out = Vec::new();
            let answer = piece.and_then(|bytes| {
                gate.feed(&bytes, &mut out).map_err(|reason| {
                    refusal.set(&reason);
                    io::Error::other(reason)
                })
            });
            *closed = answer.is_err();
            std::future::ready(Some(answer.map(|()| Bytes::from(out))))
        })
    }

    fn feed(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        while !bytes.is_empty() {
            bytes = match &mut self.state {
                State::Pass { left } => {
                    let (now, rest) = bytes.split_at(step(*left, bytes));
                    out.extend_from_slice(now);
                    *left -= now.len() as u64;
                    rest
                }
                State::Drop { left } => {
                    let (now, rest) = bytes.split_at(step(*left, bytes));
                    *left -= now.len() as u64;
                    rest
                }
                State::Hold { left, .. } => {
                    let (now, rest) = bytes.split_at(step(*left, bytes));
                    self.held.extend_from_slice(now);
                    *left -= now.len() as u64;
                    rest
                }
                State::Header => {
                    let (now, rest) = bytes.split_at((BLOCK - self.held.len()).min(bytes.len()));
                    self.held.extend_from_slice(now);
                    if self.held.len() == BLOCK {
                        let block = std::mem::take(&mut self.held);
                        self.state = self.header(&block, out)?;
                    }
                    rest
                }
            };
            self.finish_entry(out)?;
        }
        Ok(())
    }

    /// Goes back to waiting for a header once an entry's bytes are all through.
    fn finish_entry(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        match &self.state {
            State::Pass { left: 0 } | State::Drop { left: 0 } => self.state = State::Header,
            State::Hold { left: 0, .. } => {
                let State::Hold { size, what, .. } = std::mem::replace(&mut self.state, State::Header) else {
                    return Ok(());
                };
                let mut content = std::mem::take(&mut self.held);
                content.truncate(usize::try_from(size).unwrap_or(usize::MAX));
                self.release(&what, &content, out)?;
            }
            State::Header | State::Pass { .. } | State::Drop { .. } | State::Hold { .. } => {}
        }
        Ok(())
    }

    fn header(&mut self, block: &[u8], out: &mut Vec<u8>) -> Result<State, String> {
        if block.iter().all(|byte| *byte == 0) {
            out.extend_from_slice(block);
            return Ok(State::Header);
        }
        let header = tar::Header::from_byte_slice(block);
        let size = header.size().map_err(|e| format!("the image archive is damaged: {e}"))?;
        let padded = size.checked_next_multiple_of(BLOCK as u64).ok_or("the image archive is damaged")?;
        let kind = header.entry_type();
        if kind.is_gnu_longname() || kind.is_pax_local_extensions() {
            let what = if kind.is_gnu_longname() { Held::GnuName } else { Held::PaxRecords };
            return hold(size, padded, what);
        }
        let name = match self.long_name.take() {
            Some(name) => name,
            None => {
                let raw = header.path_bytes();
                String::from_utf8(raw.into_owned())
                    .map_err(|_| "the image archive names a file in no known letters")?
            }
        };
        let name = plain(&name)?;
        self.entry(block, kind, &name, size, padded, out)
    }

    fn entry(
        &mut self,
        block: &[u8],
        kind: tar::EntryType,
        name: &str,
        size: u64,
        padded: u64,
        out: &mut Vec<u8>,
    ) -> Result<State, String> {
        let through_a_link =
            self.links.iter().any(|link| name == link || name.starts_with(&format!("{link}/")));
        if through_a_link {
            return Err(format!("the image archive writes through the link {name:?}"));
        }
        let special = [MANIFEST, INDEX, REPOSITORIES].into_iter().find(|known| *known == name);
        if kind.is_file() {
            return match special {
                Some(REPOSITORIES) => Ok(State::Drop { left: padded }),
                Some(name) => hold(size, padded, Held::Manifest { name }),
                None => pass(block, name, padded, out),
            };
        }
        if special.is_some() {
            return Err(format!("{name} of the image archive is not a plain file"));
        }
        if kind.is_dir() {
            return pass(block, name, padded, out);
        }
        if kind.is_symlink() && self.links.len() < MOST_LINKS {
            self.links.insert(name.to_owned());
            return pass(block, name, padded, out);
        }
        Err(format!("the image archive holds {name:?}, which is neither file, folder nor link"))
    }

    fn release(&mut self, what: &Held, content: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        match what {
            Held::GnuName => {
                let name = content.split(|byte| *byte == 0).next().unwrap_or_default();
                self.long_name = Some(text(name)?);
            }
            Held::PaxRecords => self.long_name = pax_path(content)?.or(self.long_name.take()),
            Held::Manifest { name } => {
                let value: Value = serde_json::from_slice(content)
                    .map_err(|e| format!("{name} of the image archive: {e}"))?;
                let value =
                    if *name == MANIFEST { self.nameless_manifest(value)? } else { nameless_index(value)? };
                append(name, value.to_string().as_bytes(), out)?;
            }
        }
        Ok(())
    }

    fn nameless_manifest(&self, mut value: Value) -> Result<Value, String> {
        let images = value.as_array_mut().filter(|images| images.len() == 1);
        let Some([image]) = images.map(Vec::as_mut_slice) else {
            return Err("the image archive must hold exactly one image".to_owned());
        };
        let config = image.get("Config").and_then(Value::as_str).unwrap_or_default();
        let digest = config.rsplit('/').next().unwrap_or_default().trim_end_matches(".json");
        if self.image_id.strip_prefix("sha256:") != Some(digest) {
            return Err(format!("the image archive holds sha256:{digest}, not {}", self.image_id));
        }
        if let Some(image) = image.as_object_mut() {
            image.insert("RepoTags".to_owned(), Value::Null);
        }
        Ok(value)
    }
}

fn nameless_index(mut value: Value) -> Result<Value, String> {
    if let Some(index) = value.as_object_mut() {
        index.remove("annotations");
    }
    for manifest in value.get_mut("manifests").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(manifest) = manifest.as_object_mut() {
            manifest.remove("annotations");
        }
    }
    Ok(value)
}

fn step(left: u64, bytes: &[u8]) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len())
}

fn hold(size: u64, padded: u64, what: Held) -> Result<State, String> {
    if size > SMALL {
        return Err("a small file of the image archive is too large".to_owned());
    }
    Ok(State::Hold { left: padded, size, what })
}

/// The header goes on anew, with the one name that was looked at: two forms of a name in one
/// header can't be read in two ways then.
fn pass(block: &[u8], name: &str, padded: u64, out: &mut Vec<u8>) -> Result<State, String> {
    let old = tar::Header::from_byte_slice(block);
    let damaged = |e: io::Error| format!("the image archive: {e}");
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(old.entry_type());
    header.set_path(name).map_err(damaged)?;
    if old.entry_type().is_symlink() {
        let target = old.link_name_bytes().ok_or("the image archive holds a link to nowhere")?;
        header.set_link_name_literal(target).map_err(damaged)?;
    }
    header.set_size(old.size().map_err(damaged)?);
    header.set_mode(old.mode().unwrap_or(0o644) & 0o777);
    header.set_mtime(old.mtime().unwrap_or(0));
    header.set_uid(0);
    header.set_gid(0);
    header.set_cksum();
    out.extend_from_slice(header.as_bytes());
    Ok(State::Pass { left: padded })
}

fn append(name: &str, content: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    let mut header = tar::Header::new_ustar();
    header.set_path(name).map_err(|e| e.to_string())?;
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    header.set_cksum();
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(content);
    // By its own length: what is in `out` may begin in the middle of a block.
    out.resize(out.len() + content.len().next_multiple_of(BLOCK) - content.len(), 0);
    Ok(())
}

fn plain(name: &str) -> Result<String, String> {
    let parts: Vec<&str> = name.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if name.starts_with('/') || parts.contains(&"..") || name.contains('\0') {
        return Err(format!("the image archive names {name:?}, outside itself"));
    }
    if parts.is_empty() { Ok("./".to_owned()) } else { Ok(parts.join("/")) }
}

fn text(bytes: &[u8]) -> Result<String, String> {
    String::from_utf8(bytes.to_vec())
        .map_err(|_| "the image archive names a file in no known letters".to_owned())
}

/// The `path` of extended records. Records that change how the data is read are refused.
fn pax_path(content: &[u8]) -> Result<Option<String>, String> {
    let mut path = None;
    for record in tar::PaxExtensions::new(content) {
        let record = record.map_err(|e| format!("the image archive is damaged: {e}"))?;
        match record.key().map_err(|e| e.to_string())? {
            "path" => path = Some(text(record.value_bytes())?),
            key @ ("size" | "linkpath") => return Err(format!("the image archive uses {key} records")),
            key if key.starts_with("GNU.sparse") => {
                return Err("the image archive holds sparse files".to_owned());
            }
            _ => {}
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use proptest::prelude::*;

    use super::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn archive(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, content) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, name, content.as_bytes()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn through(bytes: &[u8], cut: usize) -> Result<Vec<(String, String)>, String> {
        let mut gate = Gate::new(&format!("sha256:{HEX}"));
        let mut all = Vec::new();
        for piece in bytes.chunks(cut.max(1)) {
            // As a stream has it: what comes of a piece is handed on.
            let mut out = Vec::new();
            gate.feed(piece, &mut out)?;
            all.extend(out);
        }
        assert_eq!(all.len() % BLOCK, 0, "what comes out ends in the middle of a block");
        Ok(entries(&all))
    }

    fn entries(bytes: &[u8]) -> Vec<(String, String)> {
        let mut read = tar::Archive::new(bytes);
        let read_one = |entry: io::Result<tar::Entry<'_, &[u8]>>| {
            let mut entry = entry.unwrap();
            let mut content = String::new();
            entry.read_to_string(&mut content).unwrap();
            (entry.path().unwrap().to_string_lossy().into_owned(), content)
        };
        read.entries().unwrap().map(read_one).collect()
    }

    fn manifest(config: &str) -> String {
        format!(
            r#"[{{"Config":"{config}.json","RepoTags":["owner/image:latest"],"Layers":["l/layer.tar"]}}]"#
        )
    }

    #[test]
    fn f02_no_name_of_the_owner_s_is_taken_by_an_archive() {
        let long = format!("{}/layer.tar", "d".repeat(120));
        let bytes = archive(&[
            ("l/layer.tar", "layer bytes"),
            (long.as_str(), "long"),
            ("repositories", r#"{"owner/image":{"latest":"x"}}"#),
            (
                "index.json",
                r#"{"manifests":[{"digest":"d","annotations":{"io.containerd.image.name":"owner/image"}}]}"#,
            ),
            ("./manifest.json", &manifest(HEX)),
        ]);
        for cut in (1..1200).chain([100_000]) {
            let got = through(&bytes, cut).unwrap();
            let names: Vec<&str> = got.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, ["l/layer.tar", long.as_str(), "index.json", "manifest.json"]);
            assert_eq!(got[0].1, "layer bytes");
            assert!(got.iter().all(|(_, content)| !content.contains("owner/image")), "{got:?}");
        }
    }

    #[test]
    fn another_image_or_more_than_one_is_refused() {
        let other = archive(&[("manifest.json", &manifest(&"f".repeat(64)))]);
        assert!(through(&other, 512).unwrap_err().contains("not sha256:0123"));
        let two = format!("[{0},{0}]", &manifest(HEX)[1..manifest(HEX).len() - 1]);
        assert!(through(&archive(&[("manifest.json", &two)]), 512).unwrap_err().contains("exactly one"));
    }

    #[test]
    fn side_doors_are_shut() {
        let link = |name: &str, target: &str, kind: tar::EntryType| {
            let mut builder = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(kind);
            header.set_size(0);
            builder.append_link(&mut header, name, target).unwrap();
            builder.into_inner().unwrap()
        };
        let hard = link("y", "manifest.json", tar::EntryType::Link);
        assert!(through(&hard, 512).is_err());
        let named = link("manifest.json", "x", tar::EntryType::Symlink);
        assert!(through(&named, 512).is_err());
        let mut folder = link("a", ".", tar::EntryType::Symlink);
        folder.truncate(BLOCK);
        folder.extend(archive(&[("a/manifest.json", &manifest(HEX))]));
        assert!(through(&folder, 512).unwrap_err().contains("through the link"));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4096), cut in 1usize..700) {
            let mut gate = Gate::new("sha256:x");
            let mut out = Vec::new();
            for piece in bytes.chunks(cut) {
                if gate.feed(piece, &mut out).is_err() {
                    break;
                }
            }
        }
    }
}
