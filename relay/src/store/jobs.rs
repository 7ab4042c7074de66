//! Jobs as they were asked for.

use super::table::{Row, Table, text};
use crate::broker::Record;
use crate::broker::record::Job;

const CREATE: &str = "CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    member TEXT NOT NULL REFERENCES members (id),
    row TEXT NOT NULL
) STRICT";

const INSERT: &str = "INSERT INTO jobs (id, member, row) VALUES (?1, ?2, ?3)
    ON CONFLICT (id) DO UPDATE SET member = excluded.member, row = excluded.row";

pub(super) const DELETE: &str = "DELETE FROM jobs WHERE id = ?1";

pub(super) const TABLE: Table = Table {
    name: "jobs",
    fresh: CREATE,
    migrations: &[(5, CREATE)],
    read: Some(|json| serde_json::from_str(json).map(|row| Record::Job(Box::new(row)))),
};

pub(super) fn row(row: &Job) -> Row {
    Row { insert: INSERT, columns: vec![text(&row.id), text(&row.member)], json: serde_json::to_string(row) }
}
