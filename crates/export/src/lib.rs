//! Exports tllmprof's records to the formats of other tools.
//!
//! [`Record`] is an open record, with its tables of names and scopes in memory. [`Clocks`] puts the records of several
//! machines on a common clock. [`FORMATS`] lists the formats that are written to files or folders; [`otlp()`] makes
//! requests for an OpenTelemetry collector. The trace formats ([`chrome()`], [`perfetto()`]) show timelines. An item is
//! on the same line of the same track in both ([`trace`], [`lanes`]), and only the encoding differs. [`parquet`] writes
//! tables. An open record does not contain the items, so trace formats and tables read them from the file. A trace
//! format keeps only a few thousand items in memory at a time.

#![forbid(unsafe_code)]

mod activity;
mod chrome;
mod clocks;
mod exported;
mod lanes;
mod otlp;
mod output;
mod perfetto;
mod private;
mod record;
mod sink;
mod stacks;
mod tables;
mod trace;

pub use clocks::Clocks;
pub use exported::Exported;
pub use otlp::{Request, otlp, rejected};
pub use output::{Output, OutputError};
pub use record::{OnRead, PASSES, Record};
pub use stacks::{collapsed, speedscope};

use std::io::{self, Write};
use std::path::Path;

/// Writes the records in the trace event format, which chrome://tracing and the Perfetto UI read. The
/// output is compressed if `gzip` is true.
///
/// # Errors
/// Returns an error if a record cannot be read or `to` cannot be written.
pub fn chrome(records: &[Record], to: impl Write + Send, gzip: bool) -> io::Result<Exported> {
    sink::through(to, gzip, |sink| {
        trace::write(records, &mut chrome::Chrome::new(sink))
    })
}

/// Writes the records as a Perfetto trace, which the Perfetto UI reads. The output is compressed if
/// `gzip` is true.
///
/// # Errors
/// Returns the same errors as [`chrome`].
pub fn perfetto(records: &[Record], to: impl Write + Send, gzip: bool) -> io::Result<Exported> {
    sink::through(to, gzip, |sink| {
        trace::write(records, &mut perfetto::Perfetto::new(sink))
    })
}

pub use tables::{TABLES, parquet};

/// A format to which records can be exported, with the function that writes it.
#[derive(Clone, Copy, Debug)]
pub struct ExportFormat {
    /// The name by which users select the format.
    pub name: &'static str,
    /// A description of the output, for the command's help.
    pub makes: &'static str,
    /// The plural of the unit in which [`Exported`] counts the output of this format, such as `events` or `rows`.
    pub counts: &'static str,
    /// True if the output is text without characters that control a terminal.
    pub is_text: bool,
    pub write: FormatWriter,
}

/// The function that writes records in a format, to one file or into a folder.
#[derive(Clone, Copy, Debug)]
pub enum FormatWriter {
    /// A function that writes to a file or a pipe, compressed if the last argument is true.
    File(fn(&[Record], &mut (dyn Write + Send), bool) -> io::Result<Exported>),
    /// A function that writes into a folder.
    Folder(fn(&[Record], &Path) -> io::Result<Exported>),
}

/// All formats to which records can be exported.
pub const FORMATS: &[ExportFormat] = &[
    ExportFormat {
        name: "chrome",
        makes: "JSON for chrome://tracing and the Perfetto UI",
        counts: "events",
        is_text: true,
        write: FormatWriter::File(|records, to, gzip| chrome(records, to, gzip)),
    },
    ExportFormat {
        name: "perfetto",
        makes: "a Perfetto trace",
        counts: "events",
        is_text: false,
        write: FormatWriter::File(|records, to, gzip| perfetto(records, to, gzip)),
    },
    ExportFormat {
        name: "parquet",
        makes: "a folder of tables",
        counts: "rows",
        is_text: false,
        write: FormatWriter::Folder(parquet),
    },
    ExportFormat {
        name: "speedscope",
        makes: "sampled stacks for speedscope.app",
        counts: "samples",
        is_text: true,
        write: FormatWriter::File(|records, to, gzip| speedscope(records, to, gzip)),
    },
    ExportFormat {
        name: "collapsed",
        makes: "sampled stacks, a line each, for flamegraph.pl and its like",
        counts: "samples",
        is_text: true,
        write: FormatWriter::File(|records, to, gzip| collapsed(records, to, gzip)),
    },
];
