//! Everything the training needs in order to go on, as one file that is either old or new.
//!
//! It must hold all that later steps depend on (weights, random state, order and place within the
//! epoch, the loss summed so far): only then is an interrupted training the same, bit by bit.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::data::fnv1a;
use crate::network::{Network, WEIGHTS};
use crate::rng::Rng;

const MAGIC: &[u8; 8] = b"DIGITS01";

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Checkpoint {
    /// Of the data set this was learnt from.
    pub(crate) fingerprint: u64,
    /// Epochs that are done.
    pub(crate) epoch: u32,
    /// Digits of the running epoch that are done: an index into `order`.
    pub(crate) position: u32,
    /// Summed over the running epoch, or over the last one when `position` is 0.
    pub(crate) loss: f64,
    pub(crate) rng: Rng,
    /// The order in which the running epoch visits the digits.
    pub(crate) order: Vec<u32>,
    pub(crate) network: Network,
}

impl Checkpoint {
    /// `None` when there is none yet. A damaged one is an error: starting anew in silence would
    /// throw away a member's hours, and the one before it may be whole.
    pub(crate) fn load(path: &Path) -> Result<Option<Self>, String> {
        match fs::read(path) {
            Ok(bytes) => match Self::decode(&bytes) {
                Some(checkpoint) => Ok(Some(checkpoint)),
                None => Err(format!(
                    "{} is damaged; put an older one in its place, or remove it to start anew",
                    path.display()
                )),
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(format!("can't read {}: {e}", path.display())),
        }
    }

    pub(crate) fn save(&self, path: &Path) -> Result<(), String> {
        write_atomically(path, &self.encode())
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(self.fingerprint.to_le_bytes());
        out.extend(self.epoch.to_le_bytes());
        out.extend(self.position.to_le_bytes());
        out.extend(self.loss.to_le_bytes());
        out.extend(self.rng.0.iter().flat_map(|word| word.to_le_bytes()));
        out.extend((self.order.len() as u32).to_le_bytes());
        out.extend(self.order.iter().flat_map(|index| index.to_le_bytes()));
        out.extend(self.network.weights.iter().flat_map(|weight| weight.to_le_bytes()));
        out.extend(fnv1a(&out).to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, sum) = bytes.split_last_chunk::<8>()?;
        if fnv1a(body) != u64::from_le_bytes(*sum) {
            return None;
        }
        let mut rest = body.strip_prefix(MAGIC)?;
        let fingerprint = u64::from_le_bytes(take(&mut rest)?);
        let epoch = u32::from_le_bytes(take(&mut rest)?);
        let position = u32::from_le_bytes(take(&mut rest)?);
        let loss = f64::from_le_bytes(take(&mut rest)?);
        let mut words = [0; 4];
        for word in &mut words {
            *word = u64::from_le_bytes(take(&mut rest)?);
        }
        let length = u32::from_le_bytes(take(&mut rest)?);
        let order =
            (0..length).map(|_| take(&mut rest).map(u32::from_le_bytes)).collect::<Option<Vec<_>>>()?;
        let weights =
            (0..WEIGHTS).map(|_| take(&mut rest).map(f64::from_le_bytes)).collect::<Option<Vec<_>>>()?;
        let whole = rest.is_empty() && position <= length && order.iter().all(|index| *index < length);
        whole.then_some(Checkpoint {
            fingerprint,
            epoch,
            position,
            loss,
            rng: Rng(words),
            order,
            network: Network { weights },
        })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

/// Writes beside, syncs, renames, syncs the folder: a reader, or a crash, sees old or new.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let beside = path.with_extension("tmp");
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(|e| format!("can't write {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Checkpoint {
        let mut rng = Rng::from_seed(1);
        let network = Network::random(&mut rng);
        let mut order: Vec<u32> = (0..50).collect();
        rng.shuffle(&mut order);
        Checkpoint { fingerprint: 9, epoch: 3, position: 7, loss: 0.25, rng, order, network }
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("checkpoint.bin");
        assert_eq!(Checkpoint::load(&path), Ok(None), "none yet is no error");
        some().save(&path).expect("the folder is writable");
        assert_eq!(Checkpoint::load(&path), Ok(Some(some())));
    }

    #[test]
    fn each_torn_or_flipped_byte_is_noticed() {
        let bytes = some().encode();
        for cut in 0..bytes.len() {
            assert_eq!(Checkpoint::decode(&bytes[..cut]), None, "cut after {cut} bytes");
        }
        for at in (0..bytes.len()).step_by(97) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            assert_eq!(Checkpoint::decode(&flipped), None, "a flipped bit in byte {at}");
        }
    }
}
