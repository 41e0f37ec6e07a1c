//! Reads the captured windows from the records of the processes.

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

    /// Reads the record of each captured process. Of each record, only the captured windows are read.
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

/// Reads the captured windows. If the user asked for copies of the records, the records are copied first.
///
/// # Errors
/// A record cannot be copied.
pub(super) fn read(
    all: &[Captured],
    wanted: &CaptureRequest,
    windows: &mut CapturedWindows,
) -> Result<Vec<Read>> {
    windows.past = wanted.past;
    let mut read = Vec::new();
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
            match (wanted.profiler, captured.last) {
                (false, _) => output::say(format_args!(
                    "{pid}: captured, and nothing is recorded: the process makes no record (TLLMPROF_TRACE)"
                )),
                (true, Some(last)) => output::say(format_args!(
                    "{pid}: the profiler took iterations {first}-{last}"
                )),
                (true, None) => {}
            }
            continue;
        };
        let file = reachable(record, captured.status.pid);
        let file = match &wanted.output {
            Some(folder) => copy(&file, folder, captured)
                .with_context(|| format!("{pid}: {}", file.display()))?,
            None => file,
        };
        match read_windows(&file, &[first], wanted.past) {
            Ok(process) if process.windows.is_empty() => {
                output::say(format_args!(
                    "{pid}: {}: the window is not in the record: the disk may be full, or the record",
                    file.display()
                ));
            }
            Ok(process) => {
                read.push(process);
                windows.add(record, file, first);
            }
            Err(error) => output::say(format_args!(
                "{pid}: {}: {}",
                file.display(),
                failure::text(&error)
            )),
        }
    }
    Ok(read)
}

fn copy(file: &Path, folder: &Path, captured: &Captured) -> Result<PathBuf> {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let number = |number: Option<u64>| number.map_or(String::new(), |number| format!("-{number}"));
    let name = format!(
        "{stem}{}{}.tllmprof",
        number(captured.first),
        number(captured.last)
    );
    let to = folder.join(name);
    tllmprof_record::copy(file, &to)?;
    Ok(to)
}

/// Reads only those windows of a record that begin with an iteration in `firsts`. If `past` is true, also reads the
/// windows that end right before these windows.
fn read_windows(file: &Path, firsts: &[u64], past: bool) -> Result<Read> {
    let chosen = Chosen::new(processes::open(file, "reading")?, firsts, past)?;
    Ok(Read::read(file.to_owned(), &chosen)?)
}
