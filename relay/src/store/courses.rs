//! How far each job came; apart from `jobs`, whose rows are large and hardly change.

use super::table::{Row, Table, text};
use crate::broker::Record;
use crate::broker::record::Course;

const CREATE: &str =
    "CREATE TABLE courses (job TEXT PRIMARY KEY REFERENCES jobs (id), row TEXT NOT NULL) STRICT";

const INSERT: &str = "INSERT INTO courses (job, row) VALUES (?1, ?2)
    ON CONFLICT (job) DO UPDATE SET row = excluded.row";

pub(super) const DELETE: &str = "DELETE FROM courses WHERE job = ?1";

pub(super) const TABLE: Table = Table {
    name: "courses",
    fresh: CREATE,
    migrations: &[(6, CREATE)],
    read: Some(|json| serde_json::from_str(json).map(Record::Course)),
};

pub(super) fn row(row: &Course) -> Row {
    Row { insert: INSERT, columns: vec![text(&row.job)], json: serde_json::to_string(row) }
}
