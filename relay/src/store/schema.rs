//! The schema's one sequence of versions, out of the migrations of all tables.
//!
//! A new database is made in its present form at once, an older one is brought there step by
//! step; a test holds both to be the same. A newer one is refused: an older program would drop
//! what it does not know.

use std::path::Path;

use rusqlite::Connection;

use super::table::Table;
use super::{attempts, courses, devices, invites, jobs, members, meta, usage};
use crate::error::Error;

/// Owners before what they own.
pub(super) const TABLES: &[&Table] = &[
    &meta::TABLE,
    &members::TABLE,
    &devices::TABLE,
    &invites::TABLE,
    &jobs::TABLE,
    &courses::TABLE,
    &attempts::TABLE,
    &usage::TABLE,
];

/// All migrations by version.
pub(super) fn migrations() -> Vec<(u32, &'static str)> {
    let mut all: Vec<_> = TABLES.iter().flat_map(|table| table.migrations.iter().copied()).collect();
    all.sort_by_key(|(version, _)| *version);
    all
}

pub(super) fn newest() -> u32 {
    migrations().last().map_or(0, |(version, _)| *version)
}

pub(super) fn version(connection: &Connection) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

pub(super) fn bring_up_to_date(connection: &mut Connection, path: &Path) -> Result<(), Error> {
    let found = version(connection).map_err(Error::store("read"))?;
    let known = newest();
    if found > known {
        return Err(Error::NewerDatabase { path: path.to_owned(), found, known });
    }
    let done = if found == 0 { make(connection) } else { migrate(connection, known) };
    done.map_err(Error::store("bring up to date"))
}

fn make(connection: &mut Connection) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    for table in TABLES {
        transaction.execute_batch(table.fresh)?;
    }
    transaction.pragma_update(None, "user_version", newest())?;
    transaction.commit()
}

/// Runs what is missing up to `to`, each in a transaction of its own.
pub(super) fn migrate(connection: &mut Connection, to: u32) -> rusqlite::Result<()> {
    let found = version(connection)?;
    for (version, sql) in migrations() {
        if version > found && version <= to {
            let transaction = connection.transaction()?;
            transaction.execute_batch(sql)?;
            transaction.pragma_update(None, "user_version", version)?;
            transaction.commit()?;
        }
    }
    Ok(())
}
