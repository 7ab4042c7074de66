//! What all tables have in common: how a record becomes a row and back.

use rusqlite::types::Value;
use rusqlite::{Connection, Transaction, params_from_iter};

use super::{attempts, courses, devices, invites, jobs, members, usage};
use crate::broker::{Key, Record};
use crate::error::Error;

/// One table: its present form, how older forms became it, and how its rows are read.
pub(super) struct Table {
    pub(super) name: &'static str,
    /// What makes it in a new database.
    pub(super) fresh: &'static str,
    /// What brought it there in older ones: the version of the schema, and the statement.
    /// Append only: databases out there have run these.
    pub(super) migrations: &'static [(u32, &'static str)],
    /// Reads the JSON of a row; `None` for a table without records.
    pub(super) read: Option<fn(&str) -> serde_json::Result<Record>>,
}

/// Columns of one row: keys and relations first, the record's JSON last.
pub(super) struct Row {
    pub(super) insert: &'static str,
    pub(super) columns: Vec<Value>,
    pub(super) json: serde_json::Result<String>,
}

pub(super) fn put(to: &Transaction<'_>, record: &Record) -> rusqlite::Result<()> {
    let row = match record {
        Record::Member(row) => members::row(row),
        Record::Device(row) => devices::row(row),
        Record::Invite(row) => invites::row(row),
        Record::Job(row) => jobs::row(row),
        Record::Course(row) => courses::row(row),
        Record::Attempt(row) => attempts::row(row),
        Record::Usage(row) => usage::row(row),
    };
    let json = row.json.map_err(|e| rusqlite::Error::ToSqlConversionFailure(e.into()))?;
    let columns = row.columns.into_iter().chain([Value::Text(json)]);
    to.prepare_cached(row.insert)?.execute(params_from_iter(columns))?;
    Ok(())
}

pub(super) fn delete(from: &Transaction<'_>, key: &Key) -> rusqlite::Result<()> {
    let (sql, columns) = match key {
        Key::Member(id) => (members::DELETE, vec![text(id)]),
        Key::Device(id) => (devices::DELETE, vec![text(id)]),
        Key::Invite(id) => (invites::DELETE, vec![text(id)]),
        Key::Job(id) => (jobs::DELETE, vec![text(id)]),
        Key::Course(id) => (courses::DELETE, vec![text(id)]),
        Key::Attempt(job, number) => (attempts::DELETE, vec![text(job), Value::Integer(number.0.into())]),
        Key::Usage(id) => (usage::DELETE, vec![text(id)]),
    };
    from.prepare_cached(sql)?.execute(params_from_iter(columns))?;
    Ok(())
}

/// Appends all records of the table.
pub(super) fn load(from: &Connection, table: &Table, to: &mut Vec<Record>) -> Result<(), Error> {
    let Some(read) = table.read else { return Ok(()) };
    let failed = || Error::store("read");
    let sql = format!("SELECT row FROM {} ORDER BY rowid", table.name);
    let mut statement = from.prepare(&sql).map_err(failed())?;
    let mut rows = statement.query([]).map_err(failed())?;
    while let Some(row) = rows.next().map_err(failed())? {
        let json: String = row.get(0).map_err(failed())?;
        let bad = |e: serde_json::Error| Error::BadRow { table: table.name, reason: e.to_string() };
        to.push(read(&json).map_err(bad)?);
    }
    Ok(())
}

pub(super) fn text(id: &impl ToString) -> Value {
    Value::Text(id.to_string())
}
