//! The training: epochs of mini-batches from a checkpoint on, asked between batches whether to
//! save.
//!
//! No signals, clocks or files of the guest here: what happens between batches is the caller's
//! (`between`), so that interrupting can't reach the arithmetic.

use std::path::Path;

use crate::checkpoint::{Checkpoint, write_atomically};
use crate::data::Digits;
use crate::network::Network;
use crate::rng::Rng;

const SEED: u64 = 0x6469_6769_7473;
const BATCH: usize = 8;
const RATE: f64 = 0.3;
/// Each epoch learns in smaller steps than the one before; settles the last few percent.
const DECAY: f64 = 0.2;

pub(crate) const CHECKPOINT: &str = "checkpoint.bin";

/// Where the training stands after a mini-batch or an epoch.
#[derive(Debug)]
pub(crate) enum Step {
    Batch {
        epoch: u32,
        batch: usize,
        batches: usize,
    },
    /// The checkpoint of this epoch is on disk.
    Epoch {
        epoch: u32,
        loss: f64,
        held_out: f64,
    },
}

/// Mini-batches in an epoch.
pub(crate) fn batches(digits: &Digits) -> usize {
    digits.train.len().div_ceil(BATCH)
}

/// The checkpoint in the workspace, else a fresh start.
pub(crate) fn start(workspace: &Path, digits: &Digits) -> Result<Checkpoint, String> {
    let Some(state) = Checkpoint::load(&workspace.join(CHECKPOINT))? else {
        let mut rng = Rng::from_seed(SEED);
        let network = Network::random(&mut rng);
        let order = (0..digits.train.len() as u32).collect();
        let fingerprint = digits.fingerprint;
        return Ok(Checkpoint { fingerprint, epoch: 0, position: 0, loss: 0.0, rng, order, network });
    };
    if state.fingerprint != digits.fingerprint || state.order.len() != digits.train.len() {
        return Err(format!(
            "{CHECKPOINT} was learnt from other digits; remove it to start anew, or bring those back"
        ));
    }
    Ok(state)
}

/// Trains until `epochs` are done, or until `between` answers `Some`.
pub(crate) fn train<T>(
    state: &mut Checkpoint,
    digits: &Digits,
    epochs: u32,
    workspace: &Path,
    mut between: impl FnMut(&Checkpoint, Step) -> Result<Option<T>, String>,
) -> Result<Option<T>, String> {
    while state.epoch < epochs {
        if state.position == 0 {
            state.rng.shuffle(&mut state.order);
            state.loss = 0.0;
        }
        while (state.position as usize) < state.order.len() {
            let from = state.position as usize;
            let to = (from + BATCH).min(state.order.len());
            let batch: Vec<_> = state.order[from..to].iter().map(|&i| &digits.train[i as usize]).collect();
            let rate = RATE / (1.0 + DECAY * f64::from(state.epoch));
            state.loss += state.network.learn(&batch, rate);
            state.position = to as u32;
            let step =
                Step::Batch { epoch: state.epoch + 1, batch: to.div_ceil(BATCH), batches: batches(digits) };
            if let Some(stop) = between(state, step)? {
                return Ok(Some(stop));
            }
        }
        state.epoch += 1;
        state.position = 0;
        state.save(&workspace.join(CHECKPOINT))?;
        let step = Step::Epoch {
            epoch: state.epoch,
            loss: mean_loss(state, digits),
            held_out: accuracy(state, digits),
        };
        if let Some(stop) = between(state, step)? {
            return Ok(Some(stop));
        }
    }
    Ok(None)
}

/// Writes `weights.bin` (f64, little endian) and `result.json`. No times in it: two trainings
/// must give the same bytes.
pub(crate) fn write_result(state: &Checkpoint, digits: &Digits, workspace: &Path) -> Result<(), String> {
    let weights: Vec<u8> = state.network.weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
    write_atomically(&workspace.join("weights.bin"), &weights)?;
    let json = format!(
        "{{\"accuracy\":{:.6},\"epochs\":{},\"held_out\":{},\"right\":{},\"loss\":{:.9}}}\n",
        accuracy(state, digits),
        state.epoch,
        digits.held_out.len(),
        state.network.count_right(&digits.held_out),
        mean_loss(state, digits),
    );
    write_atomically(&workspace.join("result.json"), json.as_bytes())
}

/// Of the held-out digits, the part that is read right.
pub(crate) fn accuracy(state: &Checkpoint, digits: &Digits) -> f64 {
    state.network.count_right(&digits.held_out) as f64 / digits.held_out.len() as f64
}

fn mean_loss(state: &Checkpoint, digits: &Digits) -> f64 {
    state.loss / digits.train.len() as f64
}
