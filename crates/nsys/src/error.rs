//! Reasons why an export cannot be read.

use std::fmt;
use std::io;

use tllmprof_foreign::NotFound;

#[derive(Debug)]
pub enum Error {
    /// The message of SQLite.
    Database(rusqlite::Error),
    /// A table has more rows than fit into the file.
    Endless,
    /// A database of something else.
    NotAnExport,
    /// A report of nsys itself. Only nsys reads its format, and none was found.
    NoNsys,
    /// The variable that has its path names none.
    WrongNsys(String),
    /// nsys did not export its report.
    NotExported(String),
    /// There is no place for what nsys exports.
    NoPlace(io::Error),
    /// The rule that the user typed finds nothing.
    NotFound(NotFound),
}

impl fmt::Display for Error {
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

impl std::error::Error for Error {}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            // What interrupts a statement here is its limit (`Database::open`).
            Some(rusqlite::ErrorCode::OperationInterrupted) => Self::Endless,
            _ => Self::Database(error),
        }
    }
}
