//! The tables of an export. Which there are, and which columns they have, differs from version to
//! version and from report to report, and a damaged file can have anything.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::config::DbConfig;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use crate::error::Error;

/// The SQLite database that an export is.
pub struct Database {
    connection: Connection,
    tables: HashMap<String, HashSet<String>>,
    /// Instructions that the statement under way has taken, with those that were run in the middle of it.
    taken: Arc<AtomicU64>,
    is_under_way: Cell<bool>,
}

/// Number of SQLite instructions between two checks of the limit of a statement.
const ASKS: i32 = 1000;
/// Maximum number of steps of a statement: some for each byte of the file, of which a row has dozens, and some more. Pages
/// of a damaged file can lead back to themselves, and have rows without end.
const FOR_EACH_BYTE: u64 = 16;
const BESIDES: u64 = 100_000;

/// Rows of a table that are wanted: those whose column has a value from the first to before the last.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    pub column: &'a str,
    pub from: i64,
    pub before: i64,
}

/// A row, with the columns that were asked for.
pub struct Row<'a>(&'a rusqlite::Row<'a>);

impl Row<'_> {
    /// A column's number; none where the row has none there.
    pub fn number(&self, column: usize) -> Option<i64> {
        match self.0.get_ref(column) {
            Ok(ValueRef::Integer(value)) => Some(value),
            _ => None,
        }
    }

    /// A column's text; none where the row has none there.
    pub fn text(&self, column: usize) -> Option<String> {
        match self.0.get_ref(column) {
            Ok(ValueRef::Text(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }
}

/// Returns the name for SQLite to open: of the file as it is, so that SQLite makes no other file, as it does for a file
/// with a write-ahead log, even an empty one. A log that is not empty has rows, and SQLite has to read it.
fn name_for_reading(path: &Path) -> String {
    let mut uri = String::from("file:");
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'~' => uri.push(byte.into()),
            _ if byte.is_ascii_alphanumeric() => uri.push(byte.into()),
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    let has = |ending: &str| {
        let mut beside = path.as_os_str().to_owned();
        beside.push(ending);
        std::fs::metadata(beside).is_ok_and(|file| file.len() > 0)
    };
    if !has("-wal") && !has("-journal") {
        uri.push_str("?immutable=1");
    }
    uri
}

impl Database {
    /// Opens an export read-only.
    ///
    /// # Errors
    /// The file cannot be read, or is no database.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut connection = Connection::open_with_flags(
            name_for_reading(path),
            OpenFlags::SQLITE_OPEN_READ_ONLY
                | OpenFlags::SQLITE_OPEN_NO_MUTEX
                | OpenFlags::SQLITE_OPEN_URI,
        )?;
        // It comes from somewhere else: what its schema says is not to be run.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        connection.pragma_update(None, "cell_size_check", true)?;
        let taken = Arc::new(AtomicU64::new(0));
        let size = std::fs::metadata(path).map_or(0, |file| file.len());
        let most = size.saturating_mul(FOR_EACH_BYTE).saturating_add(BESIDES);
        let counted = Arc::clone(&taken);
        connection.progress_handler(
            ASKS,
            Some(move || {
                let asks = u64::from(ASKS.unsigned_abs());
                counted.fetch_add(asks, Ordering::Relaxed) > most
            }),
        )?;
        let mut tables = HashMap::new();
        let mut statement = connection.prepare(
            "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'",
        )?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let (table, column): (String, String) = (row.get(0)?, row.get(1)?);
            let columns: &mut HashSet<String> = tables.entry(table).or_default();
            columns.insert(column);
        }
        drop(rows);
        drop(statement);
        Ok(Self {
            connection,
            tables,
            taken,
            is_under_way: Cell::new(false),
        })
    }

    /// Runs a statement, maybe in the middle of another one, whose limit then is for both: each of its rows may ask for
    /// a string, and both tables may be damaged.
    fn limited<T>(&self, run: impl FnOnce(&Connection) -> T) -> T {
        let is_inner = self.is_under_way.replace(true);
        if !is_inner {
            self.taken.store(0, Ordering::Relaxed);
        }
        let result = run(&self.connection);
        self.is_under_way.set(is_inner);
        result
    }

    /// The names of a table's columns, if there is such a table.
    pub fn columns(&self, table: &str) -> Option<&HashSet<String>> {
        self.tables.get(table)
    }

    /// Gives some columns of a table's rows to `each`: none where there is no such table. Of a column
    /// there may be several names, separated by bars, of which the first that the table has counts; a
    /// column that it does not have is empty.
    ///
    /// # Errors
    /// The table cannot be read to its end.
    pub fn rows(
        &self,
        table: &str,
        columns: &[&str],
        wanted: Option<Wanted<'_>>,
        mut each: impl FnMut(&Row<'_>),
    ) -> Result<(), Error> {
        let Some(there) = self.tables.get(table) else {
            return Ok(());
        };
        let column = |names: &&str| {
            let found = names.split('|').find(|name| there.contains(*name));
            found.map_or_else(|| "NULL".to_owned(), |name| format!("\"{name}\""))
        };
        let columns: Vec<_> = columns.iter().map(column).collect();
        let wanted = wanted.filter(|wanted| there.contains(wanted.column));
        let condition = condition(wanted);
        let query = format!("SELECT {} FROM \"{table}\"{condition}", columns.join(", "));
        self.limited(|connection| {
            let mut statement = connection.prepare(&query)?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                each(&Row(row));
            }
            Ok(())
        })
    }

    /// Returns true if a table has such rows.
    pub fn has(&self, table: &str, wanted: Option<Wanted<'_>>) -> bool {
        let query = format!("SELECT 1 FROM \"{table}\"{} LIMIT 1", condition(wanted));
        // One that cannot be read is as good as none.
        self.limited(|connection| {
            let statement = connection.prepare(&query);
            statement.is_ok_and(|mut statement| statement.exists([]).unwrap_or(false))
        })
    }

    /// About how many rows a table has.
    pub fn count(&self, table: &str) -> u64 {
        let query = format!("SELECT max(rowid) FROM \"{table}\"");
        let found = self
            .limited(|connection| connection.query_row(&query, [], |row| Ok(Row(row).number(0))));
        found.ok().flatten().map_or(0, i64::unsigned_abs)
    }

    /// The text of one of nsys's strings.
    pub fn string(&self, id: i64) -> Option<String> {
        self.limited(|connection| {
            let mut statement = connection
                .prepare_cached("SELECT value FROM StringIds WHERE id = ?1")
                .ok()?;
            let found = statement.query_row([id], |row| Ok(Row(row).text(0)));
            found.optional().ok()?.flatten()
        })
    }
}

fn condition(wanted: Option<Wanted<'_>>) -> String {
    wanted.map_or_else(
        String::new,
        |Wanted {
             column,
             from,
             before,
         }| { format!(" WHERE \"{column}\" >= {from} AND \"{column}\" < {before}") },
    )
}
