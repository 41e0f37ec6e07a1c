//! Reasons why a trace cannot be read.

use std::{fmt, io};

use tllmprof_foreign::NotFound;

/// The reason why a file cannot be read as a trace.
#[derive(Debug)]
pub enum TraceError {
    /// The file cannot be read, or its compression is damaged.
    Io(io::Error),
    /// The file ends before its JSON is complete.
    Truncated,
    /// The file contains more text after the end of the JSON.
    Trailing { line: usize },
    /// The text is not valid JSON. The field describes the error.
    Syntax(String),
    /// An event, or another value of the trace, has more than `bytes` bytes of JSON. No profiler writes such a value.
    TooLong { bytes: u64 },
    /// The document is valid JSON, but is not a trace: it has no key `traceEvents`, or its value is not a list.
    NoEvents,
    /// The trace has a list of events, but none of them has a category of the PyTorch profiler: another program wrote
    /// the trace.
    Other,
    /// tllmprof exported the trace from records of several processes; only a trace of one process
    /// can be read.
    Several,
    /// The trace has an empty list of events.
    Empty,
    /// Several processes of the trace have calls of CUDA or HIP: the trace was merged from those of several processes.
    Merged,
    /// The rule for iterations (`--step`) that the user typed matches nothing in the trace.
    NotFound(NotFound),
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::NotFound(error) => error.fmt(f),
            Self::Truncated => f.write_str(
                "the trace is truncated: its JSON does not end (wanted: the whole file; the profiler may still be writing it)",
            ),
            Self::Trailing { line } => write!(
                f,
                "more text follows the JSON at line {line} (wanted: one trace a file)"
            ),
            Self::Syntax(what) => write!(f, "not valid JSON: {what}"),
            Self::TooLong { bytes } => write!(
                f,
                "not a PyTorch trace: one event has more than {} MB of JSON",
                bytes >> 20
            ),
            Self::NoEvents => f.write_str(
                "JSON, but not a trace: it has no list of traceEvents (wanted: a record, an nsys export or a PyTorch profiler trace)",
            ),
            Self::Several => f.write_str(
                "a trace that tllmprof exported from several records (wanted: the records, or one of one)",
            ),
            Self::Merged => f.write_str(
                "a merged trace: several of its processes call the GPU (wanted: the trace of each rank)",
            ),
            Self::Empty => f.write_str(
                "the list of traceEvents is empty: the profiler recorded nothing (wanted: a trace with events; a schedule of the \
                 PyTorch profiler needs prof.step() up to its active steps)",
            ),
            Self::Other => f.write_str(
                "a trace of another program: no event has a category of the PyTorch profiler (cpu_op, cuda_runtime, kernel)",
            ),
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => error.source(),
            _ => None,
        }
    }
}

impl From<io::Error> for TraceError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated,
            _ => Self::Io(error),
        }
    }
}

impl From<serde_json::Error> for TraceError {
    fn from(error: serde_json::Error) -> Self {
        match error.classify() {
            serde_json::error::Category::Eof => Self::Truncated,
            serde_json::error::Category::Io => io::Error::from(error).into(),
            // The text is valid JSON, but does not have the structure of a trace.
            serde_json::error::Category::Data => Self::NoEvents,
            serde_json::error::Category::Syntax => Self::Syntax(error.to_string()),
        }
    }
}

impl From<NotFound> for TraceError {
    fn from(error: NotFound) -> Self {
        Self::NotFound(error)
    }
}
