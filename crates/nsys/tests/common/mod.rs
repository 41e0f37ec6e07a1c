//! Writes exports for tests, with the schema that nsys's documentation describes.

#![allow(dead_code)] // not every test file uses all of the helpers

use std::path::Path;

use rusqlite::{Connection, params};
use tempfile::TempDir;

/// Returns nsys's number of a thread: the number of the machine (here 1) and the operating system's ids of the
/// process and the thread, packed into one integer.
pub(crate) const fn thread(pid: i64, tid: i64) -> i64 {
    1 << 48 | pid << 24 | tid
}

/// Creates a temporary folder that is removed when it is dropped.
pub(crate) fn scratch() -> TempDir {
    TempDir::with_prefix("tllmprof-").unwrap()
}

/// The variant of the export's schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Schema {
    /// The schema of nsys 2023.4, with every table and column.
    Full,
    /// A schema with few tables and columns: rows for GPU work do not contain the process, texts of NVTX ranges are
    /// stored in the rows of the ranges, and payloads of ranges are `int64`.
    Sparse,
}

pub(crate) struct Export {
    connection: Connection,
    schema: Schema,
    strings: i64,
}

impl Export {
    pub(crate) fn new(path: &Path, schema: Schema) -> Self {
        let connection = Connection::open(path).unwrap();
        let sql = match schema {
            Schema::Full => include_str!("full.sql"),
            Schema::Sparse => include_str!("sparse.sql"),
        };
        connection.execute_batch(sql).unwrap();
        connection.execute_batch("BEGIN").unwrap();
        Self {
            connection,
            schema,
            strings: 0,
        }
    }

    pub(crate) fn sql(&self, sql: &str) {
        self.connection.execute_batch(sql).unwrap();
    }

    pub(crate) fn string(&mut self, text: &str) -> i64 {
        self.strings += 1;
        let row = params![self.strings, text];
        self.connection
            .prepare_cached("INSERT INTO StringIds VALUES (?1, ?2)")
            .unwrap()
            .execute(row)
            .unwrap();
        self.strings
    }

    pub(crate) fn domain(&self, thread: i64, id: i64, name: &str) {
        let row = params![thread, id, name];
        self.connection
            .execute("INSERT INTO NVTX_EVENTS (start, eventType, globalTid, domainId, text) VALUES (-100, 75, ?1, ?2, ?3)", row)
            .unwrap();
    }

    /// Adds a range. `kind` is 59 for a push/pop range and 60 for a start/end range.
    pub(crate) fn range(
        &mut self,
        kind: i64,
        thread: i64,
        domain: i64,
        text: &str,
        payload: Option<i64>,
        at: [i64; 2],
    ) {
        let (text, id, value) = match self.schema {
            Schema::Full => (None, Some(self.string(text)), "uint64Value"),
            Schema::Sparse => (Some(text), None, "int64Value"),
        };
        let end = Some(at[1]).filter(|end| *end < i64::MAX);
        let id_column = if id.is_some() { "textId" } else { "category" };
        let sql = format!(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, domainId, text, {id_column}, {value})
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)"
        );
        let row = params![at[0], end, kind, thread, domain, text, id, payload];
        self.connection
            .prepare_cached(&sql)
            .unwrap()
            .execute(row)
            .unwrap();
    }

    pub(crate) fn call(&self, thread: i64, name: i64, at: [i64; 2]) {
        let sql = "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, correlationId, nameId, returnValue)
                   VALUES (?1, ?2, 0, ?3, 1, ?4, 0)";
        let row = params![at[0], at[1], thread, name];
        self.connection
            .prepare_cached(sql)
            .unwrap()
            .execute(row)
            .unwrap();
    }

    pub(crate) fn kernel(&self, pid: i64, name: i64, device: i64, at: [i64; 2]) {
        let (columns, values) = match self.schema {
            Schema::Full => (
                "globalPid, demangledName, shortName",
                format!("{}, {name}, 1", thread(pid, 0)),
            ),
            Schema::Sparse => ("shortName", name.to_string()),
        };
        let sql = format!(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, streamId, correlationId, {columns})
             VALUES (?1, ?2, ?3, 7, 1, {values})"
        );
        self.connection
            .prepare_cached(&sql)
            .unwrap()
            .execute(params![at[0], at[1], device])
            .unwrap();
    }

    pub(crate) fn finish(self) {
        self.connection.execute_batch("COMMIT").unwrap();
    }
}
