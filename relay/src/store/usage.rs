//! What members used of late, for fairness.

use super::table::{Row, Table, text};
use crate::broker::Record;
use crate::broker::record::Usage;

const CREATE: &str =
    "CREATE TABLE usage (member TEXT PRIMARY KEY REFERENCES members (id), row TEXT NOT NULL) STRICT";

const INSERT: &str = "INSERT INTO usage (member, row) VALUES (?1, ?2)
    ON CONFLICT (member) DO UPDATE SET row = excluded.row";

pub(super) const DELETE: &str = "DELETE FROM usage WHERE member = ?1";

pub(super) const TABLE: Table = Table {
    name: "usage",
    fresh: CREATE,
    migrations: &[(8, CREATE)],
    read: Some(|json| serde_json::from_str(json).map(Record::Usage)),
};

pub(super) fn row(row: &Usage) -> Row {
    Row { insert: INSERT, columns: vec![text(&row.member)], json: serde_json::to_string(row) }
}
