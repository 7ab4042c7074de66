//! Read-only inputs of jobs, each in a volume of its own, kept for the next attempt that wants it.
//!
//! A volume is whole when its mark is there; one without is filled anew. The least recently used
//! go when there are too many, never one that an attempt here still names.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpunion_protocol::ids::SnapshotId;
use gpunion_protocol::job::DataInput;
use gpunion_snapshot::{JobKey, Manifest, Progress};

use super::operations::Operations;
use super::prepare::member;
use super::progress::Teller;
use super::trouble::{of_engine, of_problem};
use super::wipe::is_idle;
use super::workspace::{Place, fill};
use crate::config::{clock, files};
use crate::container::HelperImage;
use crate::provider::event::Trouble;

/// Volumes that are kept while no attempt names them.
const KEPT: usize = 8;

/// One at a time fills a volume; two attempts may want the same.
#[derive(Debug, Default)]
pub(super) struct Filling(Mutex<BTreeMap<SnapshotId, Arc<tokio::sync::Mutex<()>>>>);

impl Filling {
    fn of(&self, snapshot: SnapshotId) -> Arc<tokio::sync::Mutex<()>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(snapshot).or_default())
    }
}

fn mark(ops: &Operations, snapshot: &SnapshotId) -> PathBuf {
    ops.fixed.data.join(snapshot.to_string())
}

/// Has the input here, whole.
pub(super) async fn provide(
    ops: &Operations,
    helper: &HelperImage,
    input: &DataInput,
    (key, uid): (&JobKey, u32),
    teller: &mut Teller,
) -> Result<(), Trouble> {
    let snapshot = input.snapshot;
    let turn = ops.filling.of(snapshot);
    let _turn = turn.lock().await;
    let engine = &ops.fixed.engine;
    // Opened with this job's own key before anything that is here is handed to it: whoever names
    // another member's input must not find it here in the clear.
    let member = member(ops)?;
    let sealed = member.client.snapshot(&snapshot).await.map_err(of_problem)?;
    Manifest::open(key, &sealed)
        .map_err(|e| Trouble::Refused { reason: format!("an input of the job: {e}") })?;
    let there = engine.list_volumes().await.map_err(of_engine)?.iter().any(|v| v.data == Some(snapshot));
    let mark = mark(ops, &snapshot);
    if !there || !mark.exists() {
        let _ = files::remove(&mark);
        // Never emptied where it stands: a guest may be reading it.
        let volume = engine.fresh_data(&snapshot).await.map_err(of_engine)?;
        let place = Place { engine: engine.clone(), helper: helper.clone(), volume };
        // Not a byte more than what counts against the owner's disk.
        let most = Some(input.bytes);
        let mut tell = |p: Progress| teller.tell("fetching an input", p.bytes, p.total_bytes);
        fill(&place, Some((&sealed, key)), uid, (most, false), &member.client, &mut tell).await?;
    }
    // Written anew at each use: its time of change is the time of last use.
    files::write_whole(&mark, b"").map_err(|e| Trouble::Away { why: format!("{}: {e}", mark.display()) })
}

/// Removes what is over `KEPT`, oldest use first, and nothing that an attempt on the books names.
pub(super) async fn tidy(ops: &Operations) -> Result<(), Trouble> {
    let engine = &ops.fixed.engine;
    let volumes = engine.list_volumes().await.map_err(of_engine)?;
    let mut idle: Vec<_> =
        volumes.iter().filter_map(|v| v.data).filter(|id| !ops.is_input_named(id)).collect();
    idle.sort_by_key(|id| std::fs::metadata(mark(ops, id)).and_then(|m| m.modified()).ok());
    for snapshot in idle.iter().take(idle.len().saturating_sub(KEPT)) {
        remove(ops, snapshot).await?;
    }
    Ok(())
}

/// Removes what nobody names and nobody has used for so long; answers how many.
pub(super) async fn remove_idle(ops: &Operations, idle: Duration) -> Result<u32, Trouble> {
    let volumes = ops.fixed.engine.list_volumes().await.map_err(of_engine)?;
    let now = clock::wall();
    let mut removed = 0;
    for snapshot in volumes.iter().filter_map(|volume| volume.data) {
        if is_idle(&mark(ops, &snapshot), idle, now) {
            removed += u32::from(remove(ops, &snapshot).await?);
        }
    }
    Ok(removed)
}

/// True when it is gone.
async fn remove(ops: &Operations, snapshot: &SnapshotId) -> Result<bool, Trouble> {
    let turn = ops.filling.of(*snapshot);
    let _turn = turn.lock().await;
    // An attempt that came meanwhile may want it.
    if ops.is_input_named(snapshot) {
        return Ok(false);
    }
    match ops.fixed.engine.remove_data(snapshot).await {
        Ok(()) => {
            // The volume goes first: one that is in use stays whole, and keeps its mark.
            let _ = files::remove(&mark(ops, snapshot));
            Ok(true)
        }
        Err(error) if error.is_away() => Err(of_engine(error)),
        Err(error) => {
            tracing::info!(%snapshot, "an old input stays for now: {error}");
            Ok(false)
        }
    }
}
