//! The reasons why an export cannot be read.

use std::fmt;
use std::io;

use tllmprof_foreign::NotFound;

#[derive(Debug)]
pub enum ExportError {
    /// SQLite failed to open or read the file. The field is SQLite's error.
    Database(rusqlite::Error),
    /// An SQL query ran more instructions of SQLite than it needs for a correct file of this size, so the file is
    /// damaged.
    Endless,
    /// The file is a database, but not an export of nsys.
    NotAnExport,
    /// The file is a report in nsys's own format, which only nsys can read, and nsys was not found.
    NoNsys,
    /// The environment variable `TLLMPROF_NSYS`, which contains the path of nsys, names no executable file. The field
    /// is the text of the error.
    WrongNsys(String),
    /// nsys did not export its report: it failed, could not be started, or took too long. The field contains the
    /// reason.
    NotExported(String),
    /// The temporary folder for the exported file could not be created.
    NoPlace(io::Error),
    /// The rule for iterations (`--step`) that the user typed matches nothing in the trace.
    NotFound(NotFound),
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Database(error) => error.fmt(f),
            Self::Endless => f.write_str("its pages lead in circles: the file is damaged"),
            Self::NotAnExport => f.write_str(
                "an SQLite database, but no export of nsys: it has none of its tables (wanted: a file that nsys export --type \
                 sqlite made)",
            ),
            Self::NoNsys => f.write_str(
                "a report of nsys, and no nsys was found to export it (wanted: nsys on PATH or in TLLMPROF_NSYS, or the \
                 file that nsys export --type sqlite makes of it)",
            ),
            Self::WrongNsys(why) => f.write_str(why),
            Self::NotExported(why) => write!(f, "nsys could not export it: {why}"),
            Self::NoPlace(error) => write!(f, "no folder for nsys to export it to: {error}"),
            Self::NotFound(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ExportError {}

impl From<rusqlite::Error> for ExportError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            // SQLite interrupts a query only if the query exceeds the maximum number of instructions that
            // `Database::open` sets.
            Some(rusqlite::ErrorCode::OperationInterrupted) => Self::Endless,
            _ => Self::Database(error),
        }
    }
}
