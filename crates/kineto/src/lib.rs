//! Reads traces of the PyTorch profiler (Kineto), of NVIDIA's and AMD's GPUs, as tllmprof's own records are read.
//!
//! [`read`] gives the process of a trace, a [`Recording`](tllmprof_report::Recording). The JSON, plain or compressed, is
//! read once and never held: an event becomes some 40 bytes, so memory is about an eighth of the JSON. Moments are
//! nanoseconds since the earliest event, and no `CLOCK_MONOTONIC`: they cannot be compared with those of other files.

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

pub use error::Error;
pub use input::{is_json, looks_like_trace, may_be_json};
pub use process::Process;

/// Reads a trace: `file` has its bytes, plain or compressed, and `path` is shown and may say the rank. `asked` is the rule by
/// which the user wants iterations.
///
/// # Errors
/// The file cannot be read, is no trace of the PyTorch profiler, or the rule finds nothing in it.
pub fn read(file: impl Read, path: &Path, asked: Option<Step>) -> Result<Process, Error> {
    let mut trace = document::read(file)?;
    if trace.metadata.is_own && (trace.processes.len() > 1 || trace.own.gpus.len() > 1) {
        return Err(Error::Several);
    }
    trace.keep_one_process();
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
    Ok(Process::new(path, trace, links, iterations))
}
