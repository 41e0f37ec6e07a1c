//! Reads traces of the PyTorch profiler (Kineto), for GPUs of NVIDIA and AMD, in the same form as tllmprof's own
//! records.
//!
//! [`read`] returns the process of a trace as a [`Recording`](tllmprof_report::Recording). The JSON, plain or
//! compressed, is read as a stream. An event takes about 40 bytes in memory, which is about an eighth of the size of
//! its JSON. Times are nanoseconds since the earliest event, not `CLOCK_MONOTONIC`. They cannot be compared with times
//! in other files.

#![forbid(unsafe_code)]

mod document;
mod error;
mod event;
mod facts;
mod input;
mod iterations;
mod links;
mod names;
mod number;
mod own;
mod process;
mod trace;

use std::io::Read;
use std::path::Path;

use tllmprof_config::Step;

use iterations::Iterations;
use links::Links;
use trace::{HostEvent, HostKind};

pub use error::TraceError;
pub use input::{is_json, looks_like_trace, may_be_json};
pub use process::TraceProcess;

/// Reads a trace. `file` contains its JSON, plain or compressed. `path` is the file's name: it is
/// shown to the user and may contain the rank. `asked` is the rule for iterations that the user
/// typed.
///
/// # Errors
/// Returns an error if the file cannot be read or is not a trace of the PyTorch profiler, if tllmprof exported the
/// trace from records of several processes, if several processes of the trace call CUDA or HIP, or if the rule matches
/// nothing in the trace.
pub fn read(file: impl Read, path: &Path, asked: Option<Step>) -> Result<TraceProcess, TraceError> {
    let mut trace = document::read(file)?;
    if trace.metadata.is_own && (trace.processes.len() > 1 || trace.own.gpus.len() > 1) {
        return Err(TraceError::Several);
    }
    trace.leave_out_far_events();
    trace.keep_one_process()?;
    trace.gpu.sort_unstable_by_key(|work| work.start);
    let mut iterations = Iterations::find(&trace, asked)?;
    let is_scope = |event: &HostEvent| match event.kind {
        HostKind::Module => true,
        HostKind::Annotation => !iterations.step_names.contains(&event.name),
        HostKind::Call | HostKind::Operator | HostKind::Function => false,
    };
    let links = Links::find(&mut trace, is_scope);
    iterations.extend_last(&trace);
    iterations.close(&trace);
    Ok(TraceProcess::new(path, trace, links, iterations))
}
