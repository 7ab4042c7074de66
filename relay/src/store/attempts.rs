//! Attempts by job and number.

use rusqlite::types::Value;

use super::table::{Row, Table, text};
use crate::broker::Record;
use crate::broker::record::Attempt;

const CREATE: &str = "CREATE TABLE attempts (
    job TEXT NOT NULL REFERENCES jobs (id),
    number INTEGER NOT NULL,
    device TEXT NOT NULL REFERENCES devices (id),
    row TEXT NOT NULL,
    PRIMARY KEY (job, number)
) STRICT";

const INSERT: &str = "INSERT INTO attempts (job, number, device, row) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (job, number) DO UPDATE SET device = excluded.device, row = excluded.row";

pub(super) const DELETE: &str = "DELETE FROM attempts WHERE job = ?1 AND number = ?2";

pub(super) const TABLE: Table = Table {
    name: "attempts",
    fresh: CREATE,
    migrations: &[(7, CREATE)],
    read: Some(|json| serde_json::from_str(json).map(|row| Record::Attempt(Box::new(row)))),
};

pub(super) fn row(row: &Attempt) -> Row {
    Row {
        insert: INSERT,
        columns: vec![text(&row.job), Value::Integer(row.token.attempt.0.into()), text(&row.device)],
        json: serde_json::to_string(row),
    }
}
