//! Access to the tables of an export of nsys, which is an SQLite database. Its tables and columns differ between
//! versions of nsys and between reports, and a damaged file can contain anything.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::config::DbConfig;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use crate::error::ExportError;

/// An export of nsys, opened as an SQLite database.
pub struct Database {
    connection: Connection,
    tables: HashMap<String, HashSet<String>>,
    /// Number of SQLite instructions that the running statement has executed. It includes the instructions of
    /// statements that ran while rows of this statement were read.
    taken: Arc<AtomicU64>,
    is_under_way: Cell<bool>,
}

/// Number of SQLite instructions between two checks of whether a statement has run more instructions than
/// [`FOR_EACH_BYTE`] and [`BESIDES`] allow.
const ASKS: i32 = 1000;
/// Number of SQLite instructions that one statement may run for each byte of the file, in addition to [`BESIDES`].
/// Reading a correct file needs fewer instructions, because each row has dozens of bytes. In a damaged file, a page
/// can refer back to an earlier page. Without this limit, a statement on such a file would never end.
const FOR_EACH_BYTE: u64 = 16;
/// Number of SQLite instructions that every statement may run in addition to [`FOR_EACH_BYTE`] for
/// each byte of the file.
const BESIDES: u64 = 100_000;

/// A condition on a table's rows: the value in `column` is at least `from` and less than `before`.
#[derive(Clone, Copy)]
pub struct RowRange<'a> {
    pub column: &'a str,
    pub from: i64,
    pub before: i64,
}

/// A row of a query's result. Columns are numbered in the order in which the query requested them.
pub struct Row<'a>(&'a rusqlite::Row<'a>);

impl Row<'_> {
    /// Returns the integer in a column, or `None` if the column holds no integer.
    pub fn number(&self, column: usize) -> Option<i64> {
        match self.0.get_ref(column) {
            Ok(ValueRef::Integer(value)) => Some(value),
            _ => None,
        }
    }

    /// Returns the text in a column, or `None` if the column holds no text.
    pub fn text(&self, column: usize) -> Option<String> {
        match self.0.get_ref(column) {
            Ok(ValueRef::Text(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }
}

/// Returns the URI under which SQLite opens the file. The URI declares the file immutable, so that
/// SQLite creates no files next to a database that uses a write-ahead log. A database is not declared immutable if its
/// write-ahead log or its rollback journal has content, because SQLite then has to read that file, too.
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
    /// Returns an error if the file cannot be read or is not a database.
    pub fn open(path: &Path) -> Result<Self, ExportError> {
        let mut connection = Connection::open_with_flags(
            name_for_reading(path),
            OpenFlags::SQLITE_OPEN_READ_ONLY
                | OpenFlags::SQLITE_OPEN_NO_MUTEX
                | OpenFlags::SQLITE_OPEN_URI,
        )?;
        // The file may come from an untrusted source, so its schema (such as triggers and views) must not call SQL
        // functions that have side effects.
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

    /// Runs a statement with a limit on its instructions. A row can need a text from another table, so a second
    /// statement may run inside the first. The inner statement does not reset the count of instructions. If it did,
    /// the outer statement could run forever on a damaged table.
    fn limited<T>(&self, run: impl FnOnce(&Connection) -> T) -> T {
        let is_inner = self.is_under_way.replace(true);
        if !is_inner {
            self.taken.store(0, Ordering::Relaxed);
        }
        let result = run(&self.connection);
        self.is_under_way.set(is_inner);
        result
    }

    /// Returns the names of a table's columns, or `None` if there is no such table.
    pub fn columns(&self, table: &str) -> Option<&HashSet<String>> {
        self.tables.get(table)
    }

    /// Passes each row of a table, with the requested columns, to `each`. If `wanted` is given, only rows that
    /// satisfy this condition are passed. If the table lacks the condition's column, all rows are passed. Does
    /// nothing if the table does not exist.
    ///
    /// An entry of `columns` may list alternative names, separated by bars; the first name that exists in the table
    /// is used. If none exists, the column is empty.
    ///
    /// # Errors
    /// Returns an error if the table cannot be read completely.
    pub fn rows(
        &self,
        table: &str,
        columns: &[&str],
        wanted: Option<RowRange<'_>>,
        mut each: impl FnMut(&Row<'_>),
    ) -> Result<(), ExportError> {
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

    /// Returns true if the table has rows that satisfy the condition `wanted`, or any rows if `wanted` is `None`.
    pub fn has(&self, table: &str, wanted: Option<RowRange<'_>>) -> bool {
        let query = format!("SELECT 1 FROM \"{table}\"{} LIMIT 1", condition(wanted));
        // If the table cannot be read, it counts as a table without rows.
        self.limited(|connection| {
            let statement = connection.prepare(&query);
            statement.is_ok_and(|mut statement| statement.exists([]).unwrap_or(false))
        })
    }

    /// Returns the largest row id of a table, which is about its number of rows.
    pub fn count(&self, table: &str) -> u64 {
        let query = format!("SELECT max(rowid) FROM \"{table}\"");
        let found = self
            .limited(|connection| connection.query_row(&query, [], |row| Ok(Row(row).number(0))));
        found.ok().flatten().map_or(0, i64::unsigned_abs)
    }

    /// Returns the text that has the number `id` in nsys's table of strings, or `None` if the text is missing or cannot
    /// be read.
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

fn condition(wanted: Option<RowRange<'_>>) -> String {
    wanted.map_or_else(
        String::new,
        |RowRange {
             column,
             from,
             before,
         }| { format!(" WHERE \"{column}\" >= {from} AND \"{column}\" < {before}") },
    )
}
