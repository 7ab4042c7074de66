//! People of the group; removed ones stay, so that old jobs keep a name.

use super::table::{Row, Table, text};
use crate::broker::Record;
use crate::broker::record::Member;

const CREATE: &str = "CREATE TABLE members (id TEXT PRIMARY KEY, row TEXT NOT NULL) STRICT";

const INSERT: &str = "INSERT INTO members (id, row) VALUES (?1, ?2)
    ON CONFLICT (id) DO UPDATE SET row = excluded.row";

pub(super) const DELETE: &str = "DELETE FROM members WHERE id = ?1";

pub(super) const TABLE: Table = Table {
    name: "members",
    fresh: CREATE,
    migrations: &[(2, CREATE)],
    read: Some(|json| serde_json::from_str(json).map(Record::Member)),
};

pub(super) fn row(row: &Member) -> Row {
    Row { insert: INSERT, columns: vec![text(&row.id)], json: serde_json::to_string(row) }
}
