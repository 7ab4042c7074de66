//! Single values of the relay itself: the epoch.

use gpunion_protocol::ids::Epoch;
use gpunion_protocol::time::WallMs;
use rusqlite::Connection;

use super::table::Table;

const CREATE: &str = "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT";

pub(super) const TABLE: Table = Table { name: "meta", fresh: CREATE, migrations: &[(1, CREATE)], read: None };

/// Larger than any before, also than those of runs that a restored backup knows nothing of: it is
/// at least the wall time of this start in milliseconds.
pub(super) fn next_epoch(connection: &mut Connection, wall: WallMs) -> rusqlite::Result<Epoch> {
    let sql = "INSERT INTO meta (key, value) VALUES ('epoch', max(?1, 1))
               ON CONFLICT (key) DO UPDATE SET value = max(value + 1, ?1) RETURNING value";
    let transaction = connection.transaction()?;
    let epoch: i64 = transaction.query_row(sql, [wall.0], |row| row.get(0))?;
    transaction.commit()?;
    Ok(Epoch(epoch.unsigned_abs()))
}
