//! The tables of an export. Which there are, and which columns they have, differs from version to
//! version and from report to report, and a damaged file can have anything.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, OptionalExtension};

use crate::error::Error;

/// The SQLite database that an export is.
pub struct Database {
    connection: Connection,
    tables: HashMap<String, HashSet<String>>,
    /// More rows than a table of a file of this size can have: a row takes two bytes at least.
    rows: u64,
}

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

impl Database {
    /// Opens an export, to be read alone.
    ///
    /// # Errors
    /// Where it cannot be read or is no database.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let connection = Connection::open_with_flags(
            path,
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        // It comes from somewhere else: what its schema says is not to be run.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
        connection.pragma_update(None, "cell_size_check", true)?;
        let rows = std::fs::metadata(path).map_or(u64::MAX, |file| file.len() / 2 + 1);
        let mut tables = HashMap::new();
        let mut statement = connection.prepare(
            "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'",
        )?;
        let mut found = statement.query([])?;
        while let Some(row) = found.next()? {
            let (table, column): (String, String) = (row.get(0)?, row.get(1)?);
            let columns: &mut HashSet<String> = tables.entry(table).or_default();
            columns.insert(column);
        }
        drop(found);
        drop(statement);
        Ok(Self {
            connection,
            tables,
            rows,
        })
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
    /// Where the table cannot be read to its end.
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
        let mut statement = self.connection.prepare(&query)?;
        let mut rows = statement.query([])?;
        let mut count = 0;
        while let Some(row) = rows.next()? {
            count += 1;
            // Pages that lead back to one another have rows without an end.
            if count > self.rows {
                let corrupt = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
                let why = format!("{table}: more rows than the file has room for");
                return Err(rusqlite::Error::SqliteFailure(corrupt, Some(why)).into());
            }
            each(&Row(row));
        }
        Ok(())
    }

    /// Whether a table has such rows.
    pub fn has(&self, table: &str, wanted: Option<Wanted<'_>>) -> bool {
        let query = format!("SELECT 1 FROM \"{table}\"{} LIMIT 1", condition(wanted));
        let statement = self.connection.prepare(&query);
        // One that cannot be read is as good as none.
        statement.is_ok_and(|mut statement| statement.exists([]).unwrap_or(false))
    }

    /// About how many rows a table has.
    pub fn count(&self, table: &str) -> u64 {
        let query = format!("SELECT max(rowid) FROM \"{table}\"");
        let found = self
            .connection
            .query_row(&query, [], |row| Ok(Row(row).number(0)));
        found.ok().flatten().map_or(0, i64::unsigned_abs)
    }

    /// The text of one of nsys's strings.
    pub fn string(&self, id: i64) -> Option<String> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT value FROM StringIds WHERE id = ?1")
            .ok()?;
        let found = statement.query_row([id], |row| Ok(Row(row).text(0)));
        found.optional().ok()?.flatten()
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
