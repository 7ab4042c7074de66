//! Machines, and the hash of each one's token; revoked ones stay, so that old attempts keep a name.

use super::table::{Row, Table, text};
use crate::broker::Record;
use crate::broker::record::Device;

const CREATE: &str = "CREATE TABLE devices (
    id TEXT PRIMARY KEY,
    member TEXT NOT NULL REFERENCES members (id),
    row TEXT NOT NULL
) STRICT";

const INSERT: &str = "INSERT INTO devices (id, member, row) VALUES (?1, ?2, ?3)
    ON CONFLICT (id) DO UPDATE SET member = excluded.member, row = excluded.row";

pub(super) const DELETE: &str = "DELETE FROM devices WHERE id = ?1";

pub(super) const TABLE: Table = Table {
    name: "devices",
    fresh: CREATE,
    migrations: &[(3, CREATE)],
    read: Some(|json| serde_json::from_str(json).map(Record::Device)),
};

pub(super) fn row(row: &Device) -> Row {
    Row { insert: INSERT, columns: vec![text(&row.id), text(&row.member)], json: serde_json::to_string(row) }
}
