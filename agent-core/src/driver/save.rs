//! From a workspace to a snapshot at the relay.

use gpunion_protocol::ids::{AttemptRef, SnapshotId};
use gpunion_snapshot::snapshot_id;

use super::operations::Operations;
use super::prepare::{job_key, member, secrets};
use super::spool::Spool;
use super::trouble::{of_engine, of_problem};
use super::workspace::{self, Parent, Place, Snapshotting, folder};
use crate::config::files;
use crate::provider::event::{Outcome, Trouble};
use crate::provider::record::AttemptRecord;

/// The newest snapshot that was taken whole, sealed; what is uploaded, and what the next one
/// builds on.
const MANIFEST: &str = "manifest";
const CACHE: &str = "cache";
const PACKS: &str = "packs";

async fn open(ops: &Operations, record: &AttemptRecord, sync: bool) -> Result<Snapshotting, Trouble> {
    let attempt = &record.assignment.attempt;
    let engine = &ops.fixed.engine;
    let member = member(ops)?;
    let key = job_key(&member, record)?;
    let chunk = secrets(&key, record)?.chunk_key.clone();
    let place = Place {
        engine: engine.clone(),
        helper: engine.helper_image(&ops.fixed.helper).await.map_err(of_engine)?,
        // Made by nobody but staging: an empty one would pass for a result.
        volume: engine.workspace(attempt).await.map_err(of_engine)?.ok_or_else(|| Trouble::Refused {
            reason: "its workspace is not on this machine any more".to_owned(),
        })?,
    };
    let parent = match ops.parent(attempt) {
        Some(parent) => parent,
        None => remembered(ops, record).await,
    };
    let most = record.assignment.spec.resources.disk.0;
    Snapshotting::begin(&place, &key, &chunk, &parent, (spool(ops, attempt), most), sync).await
}

fn spool(ops: &Operations, attempt: &AttemptRef) -> Spool {
    Spool::at(folder(&ops.fixed.guests, attempt).join(PACKS))
}

/// After a restart of the agent: what is on disk, else what the attempt began from.
async fn remembered(ops: &Operations, record: &AttemptRecord) -> Parent {
    let folder = folder(&ops.fixed.guests, &record.assignment.attempt);
    let read = |name: &str| files::read_whole(&folder.join(name)).ok().flatten();
    let published = record.published;
    if let Some(manifest) = read(MANIFEST)
        && published == Some(snapshot_id(&manifest))
    {
        return Parent { manifest: Some(manifest), cache: read(CACHE) };
    }
    let from = published.or(record.assignment.from).or(record.assignment.input);
    let (Some(from), Ok(member)) = (from, member(ops)) else { return Parent::default() };
    let manifest = member.client.snapshot(&from).await.ok().map(|bytes| bytes.to_vec());
    Parent { manifest, cache: None }
}

pub(super) async fn pass_one(ops: &Operations, record: &AttemptRecord) -> Result<Outcome, Trouble> {
    // One that is there already reads what has changed since.
    let mut snapshotting = match ops.take_snapshotting(&record.assignment.attempt) {
        Some(snapshotting) => snapshotting,
        None => open(ops, record, true).await?,
    };
    snapshotting.pass_one().await?;
    ops.keep_snapshotting(&record.assignment.attempt, snapshotting);
    Ok(Outcome::PassOne)
}

pub(super) async fn pass_two(ops: &Operations, record: &AttemptRecord) -> Result<Outcome, Trouble> {
    let attempt = &record.assignment.attempt;
    let gone = || Trouble::Away { why: "the first pass of the snapshot is gone".to_owned() };
    let snapshotting = ops.take_snapshotting(attempt).ok_or_else(gone)?;
    finish(ops, record, snapshotting).await
}

pub(super) async fn whole(ops: &Operations, record: &AttemptRecord) -> Result<Outcome, Trouble> {
    let snapshotting = open(ops, record, false).await?;
    finish(ops, record, snapshotting).await
}

async fn finish(
    ops: &Operations,
    record: &AttemptRecord,
    snapshotting: Snapshotting,
) -> Result<Outcome, Trouble> {
    let (taken, parent) = snapshotting.pass_two().await?;
    let attempt = &record.assignment.attempt;
    let folder = folder(&ops.fixed.guests, attempt);
    let manifest = parent.manifest.clone().unwrap_or_default();
    if snapshot_id(&manifest) != taken.snapshot {
        return Err(Trouble::Away { why: "the helper's manifest is not the one it named".to_owned() });
    }
    let write = |name: &str, bytes: &[u8]| {
        files::write_whole(&folder.join(name), bytes)
            .map_err(|e| Trouble::Away { why: format!("{name}: {e}") })
    };
    write(MANIFEST, &manifest)?;
    write(CACHE, parent.cache.as_deref().unwrap_or_default())?;
    Ok(Outcome::Taken(taken))
}

pub(super) async fn upload(
    ops: &Operations,
    record: &AttemptRecord,
    snapshot: SnapshotId,
) -> Result<Outcome, Trouble> {
    let attempt = &record.assignment.attempt;
    let member = member(ops)?;
    let folder = folder(&ops.fixed.guests, attempt);
    let manifest = files::read_whole(&folder.join(MANIFEST)).ok().flatten();
    let Some(manifest) = manifest.filter(|bytes| snapshot_id(bytes) == snapshot) else {
        return known_there(&member.client, snapshot).await;
    };
    if let Err(trouble) =
        workspace::upload(snapshot, &manifest, &spool(ops, attempt), &member.client, &ops.upload).await
    {
        if let Trouble::Refused { .. } = trouble {
            give_up(ops, attempt);
        }
        return Err(trouble);
    }
    let cache = files::read_whole(&folder.join(CACHE)).ok().flatten().filter(|bytes| !bytes.is_empty());
    // Only now may the next one build on it: its packs are where a restore finds them.
    ops.keep_parent(attempt, Parent { manifest: Some(manifest), cache });
    Ok(Outcome::Uploaded)
}

/// It can't be sent as it is: a pack that it builds on is at the relay no more, or one of its own is
/// damaged. The next one builds on what the relay surely has, and packs the rest anew.
fn give_up(ops: &Operations, attempt: &AttemptRef) {
    ops.forget_parent(attempt);
    let folder = folder(&ops.fixed.guests, attempt);
    for name in [MANIFEST, CACHE] {
        if let Err(error) = files::remove(&folder.join(name)) {
            tracing::warn!(%attempt, %error, name, "what can't be sent can't be removed either");
        }
    }
}

/// Replaced on disk by a later one; fine when the relay has it already.
async fn known_there(
    client: &crate::relay_link::RelayClient,
    snapshot: SnapshotId,
) -> Result<Outcome, Trouble> {
    match client.snapshot(&snapshot).await {
        Ok(_) => Ok(Outcome::Uploaded),
        Err(problem) => Err(of_problem(problem)),
    }
}
