//! Reads traces of the PyTorch profiler.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use tllmprof_config::Step;
use tllmprof_kineto::{TraceError, TraceProcess};

use crate::progress::Progress;

/// Returns true if a file is JSON, as traces of the PyTorch profiler are. `beginning` is the file's first bytes.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn is_json(file: &Path, beginning: &[u8]) -> io::Result<bool> {
    Ok(tllmprof_kineto::may_be_json(beginning) && tllmprof_kineto::is_json(File::open(file)?)?)
}

/// Returns true if a JSON file looks like a trace of the PyTorch profiler. The check is needed because folders may also
/// contain other JSON files.
pub(crate) fn is_trace(file: &Path, beginning: &[u8]) -> bool {
    let looks_so = || tllmprof_kineto::looks_like_trace(File::open(file)?);
    tllmprof_kineto::may_be_json(beginning) && looks_so().unwrap_or(false)
}

/// Reads a trace of the PyTorch profiler. `step` is the step rule, if the user typed one. `activity` is the text of the
/// progress line that is shown if reading takes long, or `None` for no line.
///
/// # Errors
/// The file cannot be read, or is not a trace.
pub(crate) fn read(
    file: &Path,
    step: Option<&Step>,
    activity: Option<String>,
) -> Result<TraceProcess, TraceError> {
    let source = File::open(file)?;
    let length = fs::metadata(file)?.len();
    let Some(activity) = activity else {
        return tllmprof_kineto::read(source, file, step.cloned());
    };
    let progress = Progress::new(activity, length);
    let watched = ProgressFile { source, progress };
    tllmprof_kineto::read(watched, file, step.cloned())
}

/// A file that advances a progress line when it is read.
struct ProgressFile {
    source: File,
    progress: Progress,
}

impl Read for ProgressFile {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let length = self.source.read(to)?;
        self.progress.advance(length as u64);
        Ok(length)
    }
}
