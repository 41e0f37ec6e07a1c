//! Why there is nothing to read.

use std::fmt;

#[derive(Debug)]
pub enum Error {
    /// What SQLite says.
    Database(rusqlite::Error),
    /// A table has more rows than fit into the file.
    Endless,
    /// A report of nsys itself, whose format is nobody else's.
    NotExported,
    /// None of our iterations are in it.
    NoIterations,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Database(error) => error.fmt(f),
            Self::Endless => f.write_str("its pages lead in circles: the file is damaged"),
            Self::NotExported => {
                f.write_str("a report of nsys: export it by nsys export --type sqlite, and give that")
            }
            Self::NoIterations => f.write_str(
                "no iterations of tllmprof are in it: profile with tllmprof run --nsys, or preload the \
                 library and have nsys trace nvtx (-t cuda,nvtx)",
            ),
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
