//! Reads the captured windows (ranges of captured iterations) from the records of the processes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tllmprof_report::Process as Read;

use super::follow::Captured;
use super::{CaptureRequest, name};
use crate::chosen::Chosen;
use crate::live::record::reachable;
use crate::{failure, output, processes};

/// The windows (ranges of iterations) that were captured so far. The key is the record's path, as the captured
/// process knows it. The value is the file to read (the record, or its latest copy) and the first iteration of each
/// window.
#[derive(Default)]
pub(crate) struct CapturedWindows {
    of: BTreeMap<PathBuf, (PathBuf, Vec<u64>)>,
    /// True if the report also includes the iterations right before each window. The record contains these iterations
    /// if the process was started with `TLLMPROF_FLIGHT`.
    past: bool,
}

impl CapturedWindows {
    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Reads the record of each captured process. Of each record, only the captured windows (ranges of captured
    /// iterations) are read.
    ///
    /// # Errors
    /// A record can no longer be read.
    pub(crate) fn read(&self) -> Result<Vec<Read>> {
        let all = self.of.values();
        all.map(|(file, firsts)| {
            read_windows(file, firsts, self.past).with_context(|| file.display().to_string())
        })
        .collect()
    }

    fn add(&mut self, record: &Path, file: PathBuf, first: u64) {
        let (latest, firsts) = self.of.entry(record.to_owned()).or_default();
        *latest = file;
        firsts.push(first);
    }
}

/// Reads the captured windows (ranges of captured iterations). If the user asked for copies of the records, the records
/// are copied first. Also returns true if a window could not be read or copied, or was not recorded; the reason has
/// then been logged.
pub(super) fn read(
    all: &[Captured],
    wanted: &CaptureRequest,
    windows: &mut CapturedWindows,
) -> (Vec<Read>, bool) {
    windows.past = wanted.past;
    let mut read = Vec::new();
    let mut failed = false;
    for captured in all {
        let Some(first) = captured.first else {
            continue;
        };
        let pid = name(&captured.status);
        if let Some(path) = &wanted.torch_trace {
            output::say(format_args!(
                "{pid}: the PyTorch profiler's trace is {path} with -rank-R and -window-K before the extension; the process's log says \
                 when it is written"
            ));
        }
        let Some(record) = &captured.record else {
            failed |= !report_unrecorded(&pid, captured, wanted);
            continue;
        };
        let (file, is_copied) = copy_if_asked(record, captured, wanted);
        failed |= !is_copied;
        match read_windows(&file, &[first], wanted.past) {
            Ok(process) if process.windows.is_empty() => {
                output::say(format_args!(
                    "{pid}: {}: the window is not in the record: the disk may be full, or the record",
                    file.display()
                ));
                failed = true;
            }
            Ok(process) => {
                read.push(process);
                windows.add(record, file, first);
            }
            Err(error) => {
                output::say(format_args!(
                    "{pid}: {}: {}",
                    file.display(),
                    failure::text(&error)
                ));
                failed = true;
            }
        }
    }
    (read, failed)
}

/// Reports a window (a range of captured iterations) of a process that writes no record. Returns true if a profiler in
/// the process has recorded the window instead.
fn report_unrecorded(pid: &str, captured: &Captured, wanted: &CaptureRequest) -> bool {
    if wanted.profiler {
        if let (Some(first), Some(last)) = (captured.first, captured.last) {
            output::say(format_args!(
                "{pid}: the profiler took iterations {first}-{last}"
            ));
        }
        return true;
    }
    if wanted.torch_trace.is_some() {
        return true;
    }
    output::say(format_args!(
        "{pid}: captured, and nothing is recorded: the process makes no record (wanted: a process that was started by \
         tllmprof run or with TLLMPROF_TRACE=PATH, or --profiler for a profiler in it)"
    ));
    false
}

/// Returns the file in which a captured window (a range of captured iterations) can be read: a copy of the record if
/// the user asked for copies, otherwise the record. If the record cannot be copied, logs the reason, and returns the
/// record and false.
fn copy_if_asked(record: &Path, captured: &Captured, wanted: &CaptureRequest) -> (PathBuf, bool) {
    let file = reachable(record, captured.status.pid);
    let Some(folder) = &wanted.output else {
        return (file, true);
    };
    match copy(&file, folder, captured) {
        Ok(copy) => (copy, true),
        Err(error) => {
            output::say(format_args!(
                "{}: -o {}: no copy of {} was made: {} (wanted: a folder that has room for it)",
                name(&captured.status),
                folder.display(),
                file.display(),
                failure::text(&error)
            ));
            (file, false)
        }
    }
}

/// Copies a record into a folder. The copy has another name until it is complete, so that an incomplete copy is never
/// taken for the record.
fn copy(file: &Path, folder: &Path, captured: &Captured) -> Result<PathBuf> {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let number = |number: Option<u64>| number.map_or(String::new(), |number| format!("-{number}"));
    let name = format!(
        "{stem}{}{}.tllmprof",
        number(captured.first),
        number(captured.last)
    );
    let to = folder.join(name);
    let work = tempfile::Builder::new().prefix(".").tempfile_in(folder)?;
    tllmprof_record::copy(file, work.path())?;
    work.as_file().sync_all()?;
    work.persist(&to).map_err(|failed| failed.error)?;
    Ok(to)
}

/// Reads only those windows of a record that begin with an iteration in `firsts`. If `past` is true, also reads the
/// windows that end right before these windows.
fn read_windows(file: &Path, firsts: &[u64], past: bool) -> Result<Read> {
    let chosen = Chosen::new(processes::open(file, "reading")?, firsts, past)?;
    Ok(Read::read(file.to_owned(), &chosen)?)
}
