//! The broker's records on disk: SQLite, one file of this folder a table.
//!
//! The broker holds all records in memory and looks things up there; the store only has to give
//! them back after a restart, byte for byte what was committed. So a row is its keys, its
//! relations (checked by SQLite) and the record itself as JSON; further columns would be second
//! copies. Product and simulation save and load through this one piece of code.

mod attempts;
mod courses;
mod devices;
mod invites;
mod jobs;
mod members;
mod meta;
mod schema;
mod table;
mod usage;
mod writer;

pub(crate) use writer::Writer;

use std::path::{Path, PathBuf};

use gpunion_protocol::ids::Epoch;
use gpunion_protocol::time::WallMs;
use rusqlite::{Connection, OpenFlags};

use crate::broker::{Change, Record};
use crate::error::Error;

/// The database's file in the state folder.
pub const FILE_NAME: &str = "relay.sqlite";

/// One open database. Only its writer thread uses it, or a simulation.
#[derive(Debug)]
pub struct Store {
    connection: Connection,
    path: PathBuf,
}

impl Store {
    /// Opens or makes it, and brings an older one up to date.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags).map_err(Error::store("open"))?;
        let set = |c: &Connection| {
            c.pragma_update(None, "journal_mode", "WAL")?;
            // Each commit is on the disk before anybody is answered.
            c.pragma_update(None, "synchronous", "FULL")?;
            c.pragma_update(None, "foreign_keys", true)?;
            // Nobody else writes; a backup tool that reads along is over soon.
            c.busy_timeout(std::time::Duration::from_secs(2))
        };
        set(&connection).map_err(Error::store("open"))?;
        schema::bring_up_to_date(&mut connection, path)?;
        Ok(Self { connection, path: path.to_owned() })
    }

    /// The epoch of this start of the relay; on disk before it is returned.
    pub fn next_epoch(&mut self, wall: WallMs) -> Result<Epoch, Error> {
        meta::next_epoch(&mut self.connection, wall).map_err(Error::store("save the epoch in"))
    }

    /// All records, owners before what they own.
    pub fn load(&self) -> Result<Vec<Record>, Error> {
        let mut records = Vec::new();
        for table in schema::TABLES {
            table::load(&self.connection, table, &mut records)?;
        }
        Ok(records)
    }

    /// All of them or none.
    pub fn commit(&mut self, changes: &[Change]) -> Result<(), Error> {
        let failed = Error::store("write to");
        let mut commit = || {
            let transaction = self.connection.transaction()?;
            // Relations are checked at the end: the order of changes is the broker's own.
            transaction.pragma_update(None, "defer_foreign_keys", true)?;
            for change in changes {
                match change {
                    Change::Put(record) => table::put(&transaction, record)?,
                    Change::Delete(key) => table::delete(&transaction, key)?,
                }
            }
            transaction.commit()
        };
        commit().map_err(failed)
    }

    /// A whole, consistent copy. The file must not exist.
    pub fn backup(&self, to: &Path) -> Result<(), Error> {
        backup(&self.path, to)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Copies the database at `path` through a connection of its own, so that whoever writes there
/// goes on meanwhile. `to` must not exist; of a copy that failed nothing stays.
pub(crate) fn backup(path: &Path, to: &Path) -> Result<(), Error> {
    // The copy holds what the database holds, so nobody else may read it.
    private_file(to).map_err(Error::io("write the backup", to))?;
    let copied = copy(path, to);
    if copied.is_err() {
        // The cause is told; a half copy must not be taken for one.
        let _ = std::fs::remove_file(to);
    }
    copied
}

fn copy(path: &Path, to: &Path) -> Result<(), Error> {
    let text = to.to_str().ok_or_else(|| {
        Error::io("write the backup", to)(std::io::Error::from(std::io::ErrorKind::InvalidFilename))
    })?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(Error::store("open"))?;
    connection.busy_timeout(std::time::Duration::from_secs(2)).map_err(Error::store("open"))?;
    connection.execute("VACUUM INTO ?1", [text]).map_err(Error::store("copy"))?;
    std::fs::File::open(to).and_then(|f| f.sync_all()).map_err(Error::io("sync the backup", to))
}

/// Makes an empty file of mode 0600; SQLite fills an empty file as if it were none.
fn private_file(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(())
}

#[cfg(test)]
mod tests;
