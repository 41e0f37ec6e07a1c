//! What tllmprof's records hold, in the formats of other tools.
//!
//! [`Record`] is an open record with what of it there is little of; [`Clocks`] puts the records of
//! several machines on one time line. [`chrome`] and [`perfetto`] draw that time line: both give each
//! event the same track ([`activity`], [`lanes`]) and differ in how they write it down. [`parquet`]
//! writes tables. All go through a record once more, and hold what they write for some thousand events.

mod activity;
mod chrome;
mod clocks;
mod lanes;
mod output;
mod perfetto;
mod record;
mod sink;
mod tables;
mod timeline;

pub use clocks::Clocks;
pub use output::{Output, OutputError};
pub use record::{PASSES, Progress, Record};

use std::io::{self, Write};

/// How much was exported.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Exported {
    /// Events, or rows of tables.
    pub events: u64,
    /// Events that no place was left for: those of too many threads, or at once.
    pub left_out: u64,
}

/// Writes the trace event format that chrome://tracing and the Perfetto UI read, compressed if
/// `gzip` says so.
///
/// # Errors
/// Where a record cannot be read or `to` not be written.
pub fn chrome(records: &[Record], to: impl Write + Send, gzip: bool) -> io::Result<Exported> {
    sink::through(to, gzip, |sink| {
        timeline::write(records, &mut chrome::Chrome::new(sink))
    })
}

/// Writes a Perfetto trace, compressed if `gzip` says so: the Perfetto UI reads that, too.
///
/// # Errors
/// As [`chrome`].
pub fn perfetto(records: &[Record], to: impl Write + Send, gzip: bool) -> io::Result<Exported> {
    sink::through(to, gzip, |sink| {
        timeline::write(records, &mut perfetto::Perfetto::new(sink))
    })
}

pub use tables::{TABLES, parquet};
