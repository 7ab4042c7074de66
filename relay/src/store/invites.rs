//! Invites that can still be used; only the hash of the code is kept.

use rusqlite::types::Value;

use super::table::{Row, Table, text};
use crate::broker::Record;
use crate::broker::record::Invite;

const CREATE: &str = "CREATE TABLE invites (
    id TEXT PRIMARY KEY,
    member TEXT REFERENCES members (id),
    row TEXT NOT NULL
) STRICT";

const INSERT: &str = "INSERT INTO invites (id, member, row) VALUES (?1, ?2, ?3)
    ON CONFLICT (id) DO UPDATE SET member = excluded.member, row = excluded.row";

pub(super) const DELETE: &str = "DELETE FROM invites WHERE id = ?1";

pub(super) const TABLE: Table = Table {
    name: "invites",
    fresh: CREATE,
    migrations: &[(4, CREATE)],
    read: Some(|json| serde_json::from_str(json).map(Record::Invite)),
};

pub(super) fn row(row: &Invite) -> Row {
    Row {
        insert: INSERT,
        columns: vec![text(&row.id), row.member.as_ref().map_or(Value::Null, text)],
        json: serde_json::to_string(row),
    }
}
