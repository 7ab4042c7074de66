use gpunion_protocol::http::Role;
use gpunion_protocol::ids::{DeviceId, MemberId};
use gpunion_protocol::job::Blob;

use super::*;
use crate::broker::record::{Device, Member};
use crate::broker::{Digest, Key};

fn member(n: u8) -> Member {
    let id = MemberId::new(u64::from(n), [n; 10]);
    Member { id, name: format!("member {n}"), role: Role::Member, removed: false }
}

fn device(n: u8, of: &Member) -> Device {
    let id = DeviceId::new(u64::from(n), [n; 10]);
    Device {
        id,
        member: of.id.clone(),
        name: "box".to_owned(),
        public_key: Blob(vec![n; 32]),
        token: Digest([n; 32]),
        revoked: false,
    }
}

/// Everything SQLite knows about a schema, with white space made one.
fn form(connection: &Connection) -> Vec<String> {
    let mut statement =
        connection.prepare("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master").unwrap();
    let rows = statement.query_map([], |row| {
        let parts: [String; 4] = [row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?];
        Ok(parts.join(" ").split_whitespace().collect::<Vec<_>>().join(" "))
    });
    let mut form: Vec<String> = rows.unwrap().map(Result::unwrap).collect();
    form.sort();
    form
}

#[test]
fn a_fresh_schema_equals_a_migrated_one() {
    let dir = tempfile::tempdir().unwrap();
    let fresh = Store::open(&dir.path().join("fresh")).unwrap();
    let path = dir.path().join("old");
    for version in 1..=schema::newest() {
        // Opened anew each time, as by successive programs.
        schema::migrate(&mut Connection::open(&path).unwrap(), version).unwrap();
    }
    let migrated = Store::open(&path).unwrap();
    assert_eq!(form(&fresh.connection), form(&migrated.connection));
    assert_eq!(schema::version(&fresh.connection).unwrap(), schema::newest());
}

#[test]
fn versions_are_one_sequence_without_holes() {
    let versions: Vec<u32> = schema::migrations().into_iter().map(|(version, _)| version).collect();
    assert_eq!(versions, (1..=schema::newest()).collect::<Vec<_>>());
}

#[test]
fn a_newer_database_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE_NAME);
    let store = Store::open(&path).unwrap();
    store.connection.pragma_update(None, "user_version", 999).unwrap();
    drop(store);
    let error = Store::open(&path).unwrap_err();
    assert!(matches!(error, Error::NewerDatabase { found: 999, .. }), "{error}");
}

#[test]
fn records_come_back_as_they_were_and_a_commit_is_all_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE_NAME);
    let (ada, box_1) = (member(1), device(1, &member(1)));
    let mut store = Store::open(&path).unwrap();
    // The device first: the order of changes does not matter inside one commit.
    let both = [Change::Put(Record::Device(box_1.clone())), Change::Put(Record::Member(ada.clone()))];
    store.commit(&both).unwrap();
    let renamed = Member { name: "Ada".to_owned(), ..ada };
    let orphan = device(2, &member(9));
    let half = [Change::Put(Record::Member(renamed.clone())), Change::Put(Record::Device(orphan))];
    store.commit(&half).unwrap_err();
    store.commit(&[Change::Put(Record::Member(renamed.clone()))]).unwrap();
    drop(store);

    let mut store = Store::open(&path).unwrap();
    assert_eq!(store.load().unwrap(), [Record::Member(renamed), Record::Device(box_1.clone())]);
    store.commit(&[Change::Delete(Key::Device(box_1.id))]).unwrap();
    assert_eq!(store.load().unwrap().len(), 1);
}

#[test]
fn each_start_has_a_larger_epoch_also_from_a_backup() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE_NAME);
    assert_eq!(Store::open(&path).unwrap().next_epoch(WallMs(0)).unwrap(), Epoch(1));
    let mut store = Store::open(&path).unwrap();
    assert_eq!(store.next_epoch(WallMs(0)).unwrap(), Epoch(2), "whatever the clock says");
    store.commit(&[Change::Put(Record::Member(member(1)))]).unwrap();
    let copy = dir.path().join("copy.sqlite");
    store.backup(&copy).unwrap();
    store.backup(&copy).unwrap_err();
    // Runs that the backup knows nothing of.
    assert_eq!(store.next_epoch(WallMs(1_000)).unwrap(), Epoch(1_000));
    assert_eq!(store.next_epoch(WallMs(1_000)).unwrap(), Epoch(1_001));
    let mut restored = Store::open(&copy).unwrap();
    assert_eq!(restored.load().unwrap().len(), 1);
    assert_eq!(restored.next_epoch(WallMs(2_000)).unwrap(), Epoch(2_000));
}

#[test]
fn a_full_disk_is_told_apart_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(&dir.path().join(FILE_NAME)).unwrap();
    store.commit(&[Change::Put(Record::Member(member(1)))]).unwrap();
    let pages: u32 = store.connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    let limit = |store: &Store, pages: u32| {
        store.connection.pragma_update(None, "max_page_count", pages).unwrap();
    };
    limit(&store, pages);
    let many: Vec<Change> = (2..200).map(|n| Change::Put(Record::Member(member(n)))).collect();
    let error = store.commit(&many).unwrap_err();
    assert!(error.is_disk_full(), "{error}");
    assert_eq!(store.load().unwrap(), [Record::Member(member(1))]);
    limit(&store, 1_000_000);
    store.commit(&many).unwrap();
    assert_eq!(store.load().unwrap().len(), 199);
}

#[tokio::test(flavor = "multi_thread")]
async fn f81_a_backup_holds_up_no_commit() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join(FILE_NAME)).unwrap();
    // Large enough that its copy takes many times as long as a commit.
    let fill = "CREATE TABLE ballast AS WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 256)
                SELECT i, randomblob(262144) AS bytes FROM n";
    store.connection.execute_batch(fill).unwrap();
    let (writer, _) = Writer::start(store).unwrap();
    let to = dir.path().join("copy.sqlite");
    let mut backup = std::pin::pin!(writer.backup(to.clone()));
    let mut commits = 0;
    loop {
        // The backup first: it is under way before anything is committed.
        tokio::select! {
            biased;
            done = &mut backup => break done.unwrap(),
            done = writer.commit(vec![Change::Put(Record::Member(member(1)))]) => done.unwrap(),
        }
        commits += 1;
    }
    assert!(commits > 0, "no commit came through before the copy was whole");
    assert!(std::fs::metadata(&to).unwrap().len() > 256 * 262_144);
}

#[test]
fn of_a_backup_that_failed_nothing_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE_NAME);
    std::fs::write(&path, "no database").unwrap();
    let to = dir.path().join("copy.sqlite");
    backup(&path, &to).unwrap_err();
    assert!(!to.exists());
}
