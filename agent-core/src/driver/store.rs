//! The provider half's records on disk: one SQLite file, one table of records.
//!
//! A commit is one transaction and is on the disk when it returns. What a record means is the
//! machine's; this keeps bytes.

use std::path::Path;

use anyhow::Context as _;
use rusqlite::{Connection, params};

use crate::provider::record::{Change, Record};

/// Grows with each migration; a file of a newer program is refused, not guessed at.
const MIGRATIONS: &[&str] = &["CREATE TABLE record (
        kind TEXT NOT NULL,
        key TEXT NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (kind, key)
    ) STRICT, WITHOUT ROWID"];

#[derive(Debug)]
pub struct Store {
    db: Connection,
}

impl Store {
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let db =
            Connection::open(path).with_context(|| format!("the agent's records {shown} can't be opened"))?;
        db.pragma_update(None, "journal_mode", "WAL")?;
        db.pragma_update(None, "synchronous", "FULL")?;
        let mut store = Self { db };
        store.migrate().with_context(|| format!("the agent's records {shown} can't be used"))?;
        Ok(store)
    }

    fn migrate(&mut self) -> anyhow::Result<()> {
        let version: u32 = self.db.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let version = version as usize;
        anyhow::ensure!(
            version <= MIGRATIONS.len(),
            "they were written by a newer gpunion (version {version}, this one knows {}); update gpunion",
            MIGRATIONS.len()
        );
        for (at, step) in MIGRATIONS.iter().enumerate().skip(version) {
            let tx = self.db.transaction()?;
            tx.execute_batch(step)?;
            tx.pragma_update(None, "user_version", u32::try_from(at + 1)?)?;
            tx.commit()?;
        }
        Ok(())
    }

    /// All records; one that can't be read is an error, never left out.
    pub fn load(&self) -> anyhow::Result<Vec<Record>> {
        let mut rows = self.db.prepare("SELECT kind, key, body FROM record ORDER BY kind, key")?;
        let mut records = Vec::new();
        let mut found = rows.query([])?;
        while let Some(row) = found.next()? {
            let (kind, key, body): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let record = serde_json::from_str(&body)
                .with_context(|| format!("the agent's record {kind} {key} is damaged"))?;
            records.push(record);
        }
        Ok(records)
    }

    pub fn commit(&mut self, changes: &[Change]) -> anyhow::Result<()> {
        let tx = self.db.transaction()?;
        for change in changes {
            match change {
                Change::Put(record) => {
                    let key = record.key();
                    let body = serde_json::to_string(record)?;
                    tx.execute(
                        "INSERT INTO record (kind, key, body) VALUES (?1, ?2, ?3)
                         ON CONFLICT (kind, key) DO UPDATE SET body = excluded.body",
                        params![key.0, key.1, body],
                    )?;
                }
                Change::Delete(key) => {
                    tx.execute("DELETE FROM record WHERE kind = ?1 AND key = ?2", params![key.0, key.1])?;
                }
            }
        }
        tx.commit().context("the agent's records can't be written")
    }
}

#[cfg(test)]
mod tests {

    use gpunion_protocol::local::{Caps, Wish};
    use gpunion_protocol::units::Bytes;

    use super::*;
    use crate::provider::record::{Key, WishRecord};

    fn wish(machine: Wish) -> Record {
        let caps = Caps { cpus: 1, memory: Bytes(1), disk: Bytes(1) };
        Record::Wish(WishRecord { machine, ..WishRecord::new(caps) })
    }

    #[test]
    fn what_is_committed_is_loaded_and_what_is_deleted_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sqlite");
        let mut store = Store::open(&path).unwrap();
        store.commit(&[Change::Put(wish(Wish::NotSharing))]).unwrap();
        store.commit(&[Change::Put(wish(Wish::Sharing { until: None }))]).unwrap();
        drop(store);
        let mut store = Store::open(&path).unwrap();
        assert_eq!(store.load().unwrap(), vec![wish(Wish::Sharing { until: None })]);
        store.commit(&[Change::Delete(Key("wish", String::new()))]).unwrap();
        assert_eq!(store.load().unwrap(), Vec::new());
    }

    #[test]
    fn a_newer_file_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sqlite");
        let store = Store::open(&path).unwrap();
        store.db.pragma_update(None, "user_version", 99).unwrap();
        drop(store);
        let error = format!("{:#}", Store::open(&path).unwrap_err());
        assert!(error.contains("newer gpunion"), "{error}");
    }
}
