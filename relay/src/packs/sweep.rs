//! Removes what nobody needs. Pure decisions first; the hand that removes is `Sweeper`.
//!
//! A manifest goes when no record names it and nobody has counted on it for a grace: who uploads may
//! be slow, who fetches too. A pack goes when no manifest that is still here names it, and nobody was
//! promised it for a grace. Manifests first, and that on the disk, so that whatever cuts a sweep, a
//! manifest here has all its packs. Unsure means unknown: a manifest that can't be read ends the
//! sweep before any pack goes.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use gpunion_protocol::tables::{MAX_SNAPSHOT_PACKS, manifest_table, table_len};
use gpunion_protocol::time::{Millis, WallMs};
use tokio_util::sync::CancellationToken;

use super::Packs;
use super::shelf::{Found, Shelf};
use crate::broker::Roots;

type Id = [u8; 32];

/// How long something stays that nothing needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Graces {
    /// What may still be on its way: uploads, inputs of the next job.
    pub(crate) long: Millis,
    /// What has been replaced, and everything on a disk that is nearly full.
    pub(crate) short: Millis,
}

/// What one sweep did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Swept {
    pub(crate) snapshots: u64,
    pub(crate) packs: u64,
    pub(crate) bytes: u64,
    /// Unfinished uploads that were left.
    pub(crate) parts: u64,
    /// Snapshots that records name and that are not here.
    pub(crate) missing: u64,
}

/// What decides over manifests.
#[derive(Debug, Default)]
struct Wanted {
    needed: BTreeSet<Id>,
    passed: BTreeSet<Id>,
}

/// Until when something must have been left alone to go.
#[derive(Debug, Clone, Copy)]
struct Before {
    long: WallMs,
    short: WallMs,
}

impl Before {
    fn new(now: WallMs, graces: Graces, tight: bool) -> Self {
        let ago = |grace: Millis| WallMs(now.0.saturating_sub(i64::try_from(grace.0).unwrap_or(i64::MAX)));
        let short = ago(graces.short);
        Self { long: if tight { short } else { ago(graces.long) }, short }
    }

    fn of(&self, soon: bool) -> WallMs {
        if soon { self.short } else { self.long }
    }
}

/// The manifests that go, each with the time since which nobody may have counted on it.
fn manifests_to_go(found: &[Found], wanted: &Wanted, before: Before) -> Vec<(Id, WallMs)> {
    to_go(found, &wanted.needed, &wanted.passed, before)
}

/// The packs that go; `freed` were named by manifests that have just gone because they were replaced.
fn packs_to_go(
    found: &[Found],
    live: &BTreeSet<Id>,
    freed: &BTreeSet<Id>,
    before: Before,
) -> Vec<(Id, WallMs)> {
    to_go(found, live, freed, before)
}

fn to_go(found: &[Found], stay: &BTreeSet<Id>, soon: &BTreeSet<Id>, before: Before) -> Vec<(Id, WallMs)> {
    let idle = found.iter().filter(|found| !stay.contains(&found.id));
    let with = idle.map(|found| (found, before.of(soon.contains(&found.id))));
    with.filter(|(found, before)| found.touched <= *before)
        .map(|(found, before)| (found.id, before))
        .collect()
}

/// Remembers between sweeps what the shelves do not tell.
pub(crate) struct Sweeper {
    packs: Arc<Packs>,
    graces: Graces,
    /// Manifests that have been replaced; records name only the newest of them.
    passed: BTreeSet<Id>,
    started: WallMs,
    /// What a test does between the look at manifests and the end of packs.
    #[cfg(test)]
    between: Option<Box<dyn FnMut() + Send>>,
}

impl Sweeper {
    pub(crate) fn new(packs: Arc<Packs>, graces: Graces) -> Self {
        let started = packs.begins_to_sweep();
        Self {
            packs,
            graces,
            passed: BTreeSet::new(),
            started,
            #[cfg(test)]
            between: None,
        }
    }

    /// Blocks. `begun` is of `begins_to_sweep`, and older than `roots`. Ends early when it is to stop.
    pub(crate) fn sweep(
        &mut self,
        begun: WallMs,
        roots: Roots,
        stop: &CancellationToken,
    ) -> io::Result<Swept> {
        let mut swept = Swept::default();
        let before = Before::new(begun, self.graces, self.packs.room.is_tight());
        swept.parts = self.packs.parts.forget(before.long) as u64;
        let found = self.packs.snapshots.list()?;
        let wanted = self.wanted(roots, &found, before);
        let here: BTreeSet<Id> = found.iter().map(|found| found.id).collect();
        swept.missing = wanted.needed.difference(&here).count() as u64;
        keep_young(&self.packs.snapshots, &found, &wanted.needed)?;
        // While this relay was off nobody could say what is needed.
        if before.short < self.started {
            return Ok(swept);
        }
        let freed = self.sweep_manifests(manifests_to_go(&found, &wanted, before), &mut swept, stop)?;
        let live = live(&self.packs.snapshots, stop)?;
        let found = self.packs.packs.list()?;
        keep_young(&self.packs.packs, &found, &BTreeSet::new())?;
        #[cfg(test)]
        self.between.iter_mut().for_each(|act| act());
        for (id, before) in packs_to_go(&found, &live, &freed, before) {
            if stop.is_cancelled() {
                break;
            }
            if let Some(bytes) = self.packs.packs.remove(&id, before)? {
                swept.packs += 1;
                swept.bytes += bytes;
            }
        }
        Ok(swept)
    }

    fn wanted(&mut self, roots: Roots, found: &[Found], before: Before) -> Wanted {
        let here: BTreeSet<Id> = found.iter().map(|found| found.id).collect();
        let mut needed: BTreeSet<Id> = roots.needed.into_iter().map(|id| id.0).collect();
        self.passed.extend(roots.passed.into_iter().map(|id| id.0));
        self.passed.retain(|id| here.contains(id) && !needed.contains(id));
        let mut fetched = self.packs.fetched();
        fetched.retain(|id| here.contains(id));
        let passed = self.passed.difference(&fetched).copied().collect();
        drop(fetched);
        needed.extend(self.packs.copied_since(before.long).intersection(&here));
        Wanted { needed, passed }
    }

    /// Returns what those that were replaced named; other manifests may name it too.
    fn sweep_manifests(
        &self,
        go: Vec<(Id, WallMs)>,
        swept: &mut Swept,
        stop: &CancellationToken,
    ) -> io::Result<BTreeSet<Id>> {
        let snapshots = &self.packs.snapshots;
        let (mut gone, mut freed) = (Vec::new(), BTreeSet::new());
        for (id, before) in go {
            if stop.is_cancelled() {
                break;
            }
            let named = table_of(&snapshots.path(&id))?;
            if let Some(bytes) = snapshots.remove(&id, before)? {
                swept.snapshots += 1;
                swept.bytes += bytes;
                if self.passed.contains(&id) {
                    freed.extend(named);
                }
                gone.push(id);
            }
        }
        snapshots.sync(&gone)?;
        Ok(freed)
    }
}

/// What records name is counted on as long as they do, so that the grace begins when they no longer
/// do; and a clock that was wrong once keeps nothing for ever.
fn keep_young(shelf: &Shelf, found: &[Found], needed: &BTreeSet<Id>) -> io::Result<()> {
    for found in found {
        if needed.contains(&found.id) || found.touched > shelf.gate().now() {
            shelf.gate().touch(&shelf.path(&found.id))?;
        }
    }
    Ok(())
}

/// The packs that manifests here name.
fn live(snapshots: &Shelf, stop: &CancellationToken) -> io::Result<BTreeSet<Id>> {
    let mut live = BTreeSet::new();
    for found in snapshots.list()? {
        if stop.is_cancelled() {
            return Err(io::Error::other("the relay stops"));
        }
        live.extend(table_of(&snapshots.path(&found.id))?);
    }
    Ok(live)
}

/// The packs that a manifest names; none when it is gone, or damaged so that nobody can open it.
fn table_of(path: &Path) -> io::Result<Vec<Id>> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut file = io::BufReader::new(file);
    let mut sealed = Vec::new();
    file.by_ref().take(table_len(0) as u64).read_to_end(&mut sealed)?;
    let count = sealed.last_chunk().map_or(0, |count| u32::from_le_bytes(*count) as usize);
    let rest = table_len(count.min(MAX_SNAPSHOT_PACKS)) - table_len(0);
    file.take(rest as u64).read_to_end(&mut sealed)?;
    match manifest_table(&sealed) {
        Ok(table) => Ok(table.into_iter().map(|id| id.0).collect()),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "a manifest is damaged; the disk may be failing");
            Ok(Vec::new())
        }
    }
}

#[cfg(test)]
mod tests;
