//! The planner's decisions, the hand that removes, and many writers beside it.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use gpunion_protocol::ids::SnapshotId;
use gpunion_protocol::tables::MANIFEST_MAGIC;
use proptest::prelude::*;

use super::super::{Kept, Received, gate};
use super::*;
use crate::room::Room;

const HOUR: u64 = 3_600_000;
const GRACES: Graces = Graces { long: Millis(24 * HOUR), short: Millis(HOUR) };

fn id(n: u8) -> Id {
    [n; 32]
}

fn set(numbers: &[u8]) -> BTreeSet<Id> {
    numbers.iter().copied().map(id).collect()
}

/// Found, and counted on so many hours before hour 100.
fn ago(n: u8, hours: u64) -> Found {
    Found { id: id(n), touched: WallMs(((100 - hours) * HOUR) as i64) }
}

fn before(tight: bool) -> Before {
    Before::new(WallMs(100 * HOUR as i64), GRACES, tight)
}

fn names(go: Vec<(Id, WallMs)>) -> Vec<u8> {
    go.into_iter().map(|(id, _)| id[0]).collect()
}

#[test]
fn a_manifest_goes_when_nothing_names_it_and_its_grace_is_over() {
    let found = [ago(1, 90), ago(2, 23), ago(3, 24), ago(4, 2), ago(5, 0), ago(6, 90)];
    let wanted = Wanted { needed: set(&[1]), passed: set(&[2, 5]) };
    assert_eq!(names(manifests_to_go(&found, &wanted, before(false))), [2, 3, 6]);
    assert_eq!(
        names(manifests_to_go(&found, &wanted, before(true))),
        [2, 3, 4, 6],
        "the disk is nearly full"
    );
}

#[test]
fn a_pack_goes_when_no_manifest_names_it_and_its_grace_is_over() {
    let found = [ago(1, 90), ago(2, 23), ago(3, 24), ago(4, 2), ago(5, 0)];
    let (live, freed) = (set(&[1]), set(&[1, 2, 5]));
    assert_eq!(names(packs_to_go(&found, &live, &freed, before(false))), [2, 3]);
    assert_eq!(names(packs_to_go(&found, &live, &freed, before(true))), [2, 3, 4]);
}

proptest! {
    #[test]
    fn what_is_needed_or_young_never_goes(
        found in prop::collection::vec((any::<u8>(), 0..100u64), 0..40),
        needed in prop::collection::btree_set(any::<u8>(), 0..40),
        soon in prop::collection::btree_set(any::<u8>(), 0..40),
        tight in any::<bool>(),
    ) {
        let found: Vec<Found> = found.into_iter().map(|(n, hours)| ago(n, hours)).collect();
        let set = |numbers: &BTreeSet<u8>| numbers.iter().copied().map(id).collect::<BTreeSet<_>>();
        let wanted = Wanted { needed: set(&needed), passed: set(&soon) };
        let go = manifests_to_go(&found, &wanted, before(tight));
        prop_assert_eq!(&go, &packs_to_go(&found, &set(&needed), &set(&soon), before(tight)));
        for (id, _) in &go {
            prop_assert!(!needed.contains(&id[0]));
        }
        let grace = |n: u8| if tight || soon.contains(&n) { 1 } else { 24 };
        for found in found.iter().filter(|found| !needed.contains(&found.id[0])) {
            let hours = 100 - found.touched.0 as u64 / HOUR;
            let goes = go.iter().any(|(id, _)| *id == found.id && hours >= grace(found.id[0]));
            prop_assert!(goes || hours < grace(found.id[0]));
        }
    }
}

struct Store {
    _dir: tempfile::TempDir,
    packs: Arc<Packs>,
    sweeper: Sweeper,
    free: Arc<AtomicU64>,
}

impl Store {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let free = Arc::new(AtomicU64::new(u64::MAX));
        let packs = Arc::new(Packs::with_room(dir.path(), Room::told(Arc::clone(&free), 1_000)).unwrap());
        Self { _dir: dir, sweeper: Sweeper::new(Arc::clone(&packs), GRACES), packs, free }
    }

    /// A relay that has been there for long.
    fn old() -> Self {
        let mut store = Self::new();
        store.sweeper.started = WallMs(0);
        store
    }

    async fn pack(&self, bytes: &[u8]) -> Id {
        put_pack(&self.packs, bytes).await
    }

    async fn snapshot(&self, packs: &[Id], salt: &[u8]) -> SnapshotId {
        put_snapshot(&self.packs, packs, salt).await.unwrap()
    }

    /// As if so many hours had passed, for all files.
    fn pass(&self, hours: u64) {
        for shelf in [&self.packs.packs, &self.packs.snapshots] {
            for found in shelf.list().unwrap() {
                let touched = WallMs(found.touched.0 - (hours * HOUR) as i64);
                gate::touch(&shelf.path(&found.id), touched).unwrap();
            }
        }
    }

    fn sweep(&mut self, needed: &[SnapshotId], passed: &[SnapshotId]) -> Swept {
        sweep(&self.packs, &mut self.sweeper, needed, passed)
    }

    /// Of these packs the numbers that are here.
    fn here(&self, packs: &[Id]) -> Vec<usize> {
        (0..packs.len()).filter(|n| self.packs.packs.has(&packs[*n])).collect()
    }

    fn has(&self, snapshot: &SnapshotId) -> bool {
        self.packs.snapshots.has(&snapshot.0)
    }
}

fn sweep(packs: &Packs, sweeper: &mut Sweeper, needed: &[SnapshotId], passed: &[SnapshotId]) -> Swept {
    let begun = packs.begins_to_sweep();
    let set = |ids: &[SnapshotId]| ids.iter().copied().collect();
    let roots = Roots { needed: set(needed), passed: set(passed) };
    sweeper.sweep(begun, roots, &CancellationToken::new()).unwrap()
}

async fn received(shelf: &Shelf, bytes: &[u8]) -> Received {
    let id = *blake3::hash(bytes).as_bytes();
    let stream = futures_util::stream::iter([Ok::<_, &str>(Bytes::copy_from_slice(bytes))]);
    Received::read(shelf, id, stream).await.unwrap()
}

async fn put_pack(packs: &Packs, bytes: &[u8]) -> Id {
    received(&packs.packs, bytes).await.keep().await.unwrap();
    *blake3::hash(bytes).as_bytes()
}

/// Its id; or what must be sent first.
async fn put_snapshot(packs: &Packs, named: &[Id], salt: &[u8]) -> Result<SnapshotId, Vec<Id>> {
    let table: BTreeSet<Id> = named.iter().copied().collect();
    let mut bytes = MANIFEST_MAGIC.to_vec();
    bytes.extend((table.len() as u32).to_le_bytes());
    bytes.extend(table.iter().flatten());
    bytes.extend(salt);
    let received = received(&packs.snapshots, &bytes).await;
    match received.keep_with(&packs.packs, named.to_vec()).await.unwrap() {
        Kept::New | Kept::Known => Ok(SnapshotId(*blake3::hash(&bytes).as_bytes())),
        Kept::Without(missing) => Err(missing),
    }
}

/// Each manifest here has all its packs.
fn is_whole(packs: &Packs) -> bool {
    let tables = packs.snapshots.list().unwrap().into_iter().map(|found| packs.snapshots.path(&found.id));
    tables.flat_map(|path| table_of(&path).unwrap()).all(|id| packs.packs.has(&id))
}

#[tokio::test]
async fn what_nothing_needs_goes_after_its_grace_and_what_is_needed_stays_with_its_packs() {
    let mut store = Store::old();
    let mut packs = Vec::new();
    for n in 0..5u8 {
        packs.push(store.pack(&[n; 100]).await);
    }
    let kept = store.snapshot(&packs[..2], b"kept").await;
    let left = store.snapshot(&packs[1..3], b"left").await;
    let passed = store.snapshot(&packs[1..4], b"passed").await;
    store.pass(2);
    let swept = store.sweep(&[kept], &[passed]);
    assert_eq!((swept.snapshots, swept.packs, store.has(&passed)), (1, 1, false));
    assert_eq!(store.here(&packs), [0, 1, 2, 4], "what another names stays, and what may be on its way");
    store.pass(24);
    let swept = store.sweep(&[kept], &[]);
    assert_eq!((swept.snapshots, swept.packs, store.has(&left)), (1, 2, false));
    assert_eq!(store.here(&packs), [0, 1]);
    assert_eq!((store.packs.packs.files(), store.packs.packs.bytes()), (2, 200), "and is counted");
    assert_eq!((store.packs.snapshots.files(), swept.missing), (1, 0));
    store.pass(1_000);
    assert_eq!(store.sweep(&[kept], &[]), Swept::default(), "however old it is");
    assert_eq!(store.sweep(&[], &[]), Swept::default(), "the grace begins when nothing names it any more");
    store.pass(25);
    assert_eq!(store.sweep(&[], &[]).packs, 2);
}

#[tokio::test]
async fn an_answer_is_a_promise() {
    let mut store = Store::old();
    let (pack, other) = (store.pack(b"asked for").await, store.pack(b"not asked for").await);
    let snapshot = store.snapshot(&[pack], b"published").await;
    let fetched = store.snapshot(&[], b"fetched").await;
    store.pass(1_000);
    assert_eq!(store.packs.packs.missing(vec![pack, id(9)]).await.unwrap(), [id(9)]);
    assert!(store.packs.snapshots.missing(vec![snapshot.0]).await.unwrap().is_empty());
    store.packs.fetches(fetched).await;
    assert_eq!(store.sweep(&[], &[]).packs, 1);
    assert_eq!(store.here(&[pack, other]), [0]);
    store.pass(2);
    assert!(store.packs.packs.missing(vec![pack]).await.unwrap().is_empty());
    assert_eq!(store.sweep(&[], &[fetched, snapshot]).snapshots, 1, "replaced, and nobody fetches it");
    assert!(store.has(&fetched) && !store.has(&snapshot));
    store.pass(23);
    assert_eq!(store.sweep(&[], &[]).packs, 0, "what was promised may be for another one");
    // Sent once more it is as good as new.
    store.pass(23);
    assert_eq!(store.pack(b"asked for").await, pack);
    assert_eq!(store.sweep(&[], &[]).packs, 0);
    store.pass(25);
    assert_eq!(store.sweep(&[], &[]).packs, 1);
}

#[tokio::test]
async fn who_names_a_pack_that_was_swept_is_told_to_send_it() {
    let mut store = Store::old();
    let packs = [store.pack(b"one").await, store.pack(b"two").await];
    assert!(store.packs.packs.missing(packs.to_vec()).await.unwrap().is_empty());
    // A writer that is slower than the grace.
    store.pass(25);
    assert_eq!(store.sweep(&[], &[]).packs, 2);
    let two = store.pack(b"two").await;
    assert_eq!(put_snapshot(&store.packs, &packs, b"late").await, Err(vec![packs[0]]));
    assert_eq!(store.packs.snapshots.files(), 0);
    store.pack(b"one").await;
    let late = store.snapshot(&packs, b"late").await;
    assert_eq!((store.has(&late), two), (true, packs[1]));
}

#[tokio::test]
async fn a_relay_that_has_just_started_removes_nothing() {
    let mut store = Store::new();
    store.pack(b"left").await;
    store.pass(1_000);
    assert_eq!(store.sweep(&[], &[]), Swept::default(), "whoever needs it could not say so");
    store.sweeper.started = WallMs(store.sweeper.started.0 - HOUR as i64);
    assert_eq!(store.sweep(&[], &[]).packs, 1);
}

#[tokio::test]
async fn f101_a_full_disk_takes_nothing_until_a_sweep_has_made_room_and_serves_what_it_has() {
    let mut store = Store::old();
    let kept = store.pack(b"published").await;
    let snapshot = store.snapshot(&[kept], b"").await;
    let left = store.pack(b"left").await;
    store.pass(2);
    assert_eq!(store.sweep(&[snapshot], &[]).packs, 0, "there is room");
    store.free.store(1_050, Ordering::Relaxed);
    assert!(store.packs.packs.place(50).is_none() && store.packs.packs.place(49).is_some());
    assert_eq!(store.sweep(&[snapshot], &[]).packs, 1, "the grace is short now");
    assert_eq!(store.here(&[kept, left]), [0]);
    store.free.store(2_001, Ordering::Relaxed);
    assert!(store.packs.packs.place(50).is_some());
    assert!(store.packs.packs.read(&kept).await.unwrap().is_some());
}

#[tokio::test]
async fn what_a_copy_of_the_database_names_stays_while_the_files_are_copied() {
    let mut store = Store::old();
    let pack = store.pack(b"copied").await;
    let snapshot = store.snapshot(&[pack], b"").await;
    store.packs.copied([snapshot].into());
    store.pass(1_000);
    assert_eq!(store.sweep(&[], &[snapshot]), Swept::default());
    assert_eq!(store.here(&[pack]), [0]);
    store.packs.copied_since(WallMs(i64::MAX));
    assert_eq!(store.sweep(&[], &[snapshot]).packs, 0, "counted on until then");
    store.pass(2);
    assert_eq!(store.sweep(&[], &[snapshot]).packs, 1);
}

#[tokio::test]
async fn what_is_named_and_not_here_is_told() {
    let mut store = Store::old();
    assert_eq!(store.sweep(&[SnapshotId(id(1)), SnapshotId(id(2))], &[]).missing, 2);
}

#[tokio::test]
async fn a_sweep_that_is_cut_leaves_no_manifest_without_its_packs() {
    let mut store = Store::old();
    let pack = store.pack(b"x").await;
    let snapshot = store.snapshot(&[pack], b"").await;
    store.pass(1_000);
    let stop = CancellationToken::new();
    stop.cancel();
    let begun = store.packs.begins_to_sweep();
    assert!(store.sweeper.sweep(begun, Roots::default(), &stop).is_err());
    assert!(store.has(&snapshot) && is_whole(&store.packs));
    // Cut after the manifests.
    store.packs.snapshots.remove(&snapshot.0, begun).unwrap().unwrap();
    assert!(is_whole(&store.packs));
    assert_eq!(store.sweep(&[], &[]).packs, 1, "the next one goes on");
}

#[tokio::test]
async fn a_clock_that_was_wrong_once_keeps_nothing_for_ever() {
    let mut store = Store::old();
    let pack = store.pack(b"x").await;
    let year = WallMs(store.packs.begins_to_sweep().0 + 9_000 * HOUR as i64);
    gate::touch(&store.packs.packs.path(&pack), year).unwrap();
    store.sweep(&[], &[]);
    store.pass(25);
    assert_eq!(store.sweep(&[], &[]).packs, 1);
}

#[tokio::test]
async fn a_file_that_is_nobodys_is_left_alone_and_a_damaged_manifest_goes_like_any() {
    let mut store = Store::old();
    let odd = store.packs.packs.path(&id(7)).with_file_name("README");
    std::fs::write(&odd, "x").unwrap();
    let damaged = SnapshotId(id(8));
    std::fs::write(store.packs.snapshots.path(&damaged.0), "GPUMANI1 and no more").unwrap();
    store.packs.snapshots.count(0);
    assert_eq!(store.sweep(&[], &[]).snapshots, 0);
    store.pass(25);
    assert_eq!(store.sweep(&[], &[]).snapshots, 1);
    assert!(odd.exists());
}

#[tokio::test]
async fn a_manifest_that_comes_in_the_midst_of_a_sweep_keeps_its_packs() {
    let mut store = Store::old();
    let (named, asked) = (store.pack(b"named").await, store.pack(b"asked for").await);
    let left = store.pack(b"left").await;
    store.pass(1_000);
    let (packs, runtime) = (Arc::clone(&store.packs), tokio::runtime::Handle::current());
    store.sweeper.between = Some(Box::new(move || {
        runtime.block_on(async {
            put_snapshot(&packs, &[named], b"late").await.unwrap();
            assert!(packs.packs.missing(vec![asked]).await.unwrap().is_empty());
        });
    }));
    let store = tokio::task::spawn_blocking(move || {
        assert_eq!(store.sweep(&[], &[]).packs, 1);
        store
    });
    let store = store.await.unwrap();
    assert_eq!(store.here(&[named, asked, left]), [0, 1]);
    assert!(is_whole(&store.packs));
}

#[test]
fn of_a_promise_and_a_removal_at_the_same_instant_one_is_first() {
    let store = Store::old();
    let shelf = &store.packs.packs;
    let before = WallMs(store.packs.begins_to_sweep().0 - 1_000);
    let path = shelf.path(&id(1));
    let (mut promised, mut removed) = (0, 0);
    for _ in 0..3_000 {
        std::fs::write(&path, "x").unwrap();
        shelf.count(1);
        gate::touch(&path, WallMs(0)).unwrap();
        let ready = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let remover = scope.spawn(|| {
                ready.wait();
                shelf.remove(&id(1), before).unwrap().is_some()
            });
            ready.wait();
            let here = shelf.promise(&id(1)).unwrap();
            let gone = remover.join().unwrap();
            assert_eq!((here, gone), (path.exists(), !path.exists()));
            promised += u32::from(here);
            removed += u32::from(gone);
        });
    }
    assert!(promised > 0 && removed > 0, "{promised} and {removed}");
}

/// Writers that ask, skip what is here, send the rest, put a manifest, and count on it for a while;
/// a sweeper beside them with graces as short as their steps. At every look each manifest has all its
/// packs, and what a record names is here.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn whoever_writes_while_sweeps_go_on_is_never_left_with_a_manifest_without_packs() {
    const GRACE: Millis = Millis(40);
    let mut store = Store::old();
    store.sweeper.graces = Graces { long: GRACE, short: GRACE };
    let packs = Arc::clone(&store.packs);
    let named: Arc<std::sync::Mutex<Vec<SnapshotId>>> = Arc::default();
    let (stop, refused) = (CancellationToken::new(), Arc::new(AtomicU64::new(0)));
    let writers: Vec<_> = (0..8u64)
        .map(|seed| {
            let (packs, named, refused) = (Arc::clone(&packs), Arc::clone(&named), Arc::clone(&refused));
            tokio::spawn(async move { write(seed, &packs, &named, &refused).await })
        })
        .collect();
    let sweeping = tokio::task::spawn_blocking({
        let (stop, named) = (stop.clone(), Arc::clone(&named));
        move || {
            let mut swept = Swept::default();
            while !stop.is_cancelled() {
                let begun = store.packs.begins_to_sweep();
                let needed = named.lock().unwrap().iter().copied().collect();
                let roots = Roots { needed, passed: BTreeSet::new() };
                let now = store.sweeper.sweep(begun, roots, &CancellationToken::new()).unwrap();
                assert_eq!(now.missing, 0, "a record names what is not here");
                assert!(is_whole(&store.packs));
                swept.packs += now.packs;
                swept.snapshots += now.snapshots;
            }
            swept
        }
    });
    for writer in writers {
        writer.await.unwrap();
    }
    stop.cancel();
    let swept = sweeping.await.unwrap();
    assert!(swept.packs > 0 && swept.snapshots > 0, "sweeps had work: {swept:?}");
    assert!(refused.load(Ordering::Relaxed) > 0, "some were too slow, and were told so");
}

async fn write(seed: u64, packs: &Packs, named: &std::sync::Mutex<Vec<SnapshotId>>, refused: &AtomicU64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    for round in 0..25u64 {
        // Few packs, so that writers share them, and one may find what another one left.
        let wanted: Vec<Vec<u8>> = (0..1 + draw(5)).map(|_| vec![draw(60) as u8; 64]).collect();
        let ids: Vec<Id> = wanted.iter().map(|bytes| *blake3::hash(bytes).as_bytes()).collect();
        let salt = [seed.to_le_bytes(), round.to_le_bytes()].concat();
        let mut missing = packs.packs.missing(ids.clone()).await.unwrap();
        let slow = draw(4) == 0;
        if slow {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        let snapshot = loop {
            for bytes in wanted.iter().filter(|bytes| missing.contains(blake3::hash(bytes).as_bytes())) {
                put_pack(packs, bytes).await;
            }
            match put_snapshot(packs, &ids, &salt).await {
                Ok(snapshot) => break snapshot,
                Err(gone) => missing = gone,
            }
            refused.fetch_add(1, Ordering::Relaxed);
        };
        // Seen to be here, and then named by a record, before the sweep's next look at records.
        let mut named = named.lock().unwrap();
        if draw(3) == 0 && packs.snapshots.promise(&snapshot.0).unwrap() {
            named.push(snapshot);
            if named.len() > 6 {
                named.remove(0);
            }
        }
    }
}
