//! Reads the captured windows (ranges of captured iterations) from the records of the processes.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::NamedTempFile;
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
/// taken for the record. The copy replaces no existing file: records of several containers may have the same name.
fn copy(file: &Path, folder: &Path, captured: &Captured) -> Result<PathBuf> {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let number = |number: Option<u64>| number.map_or(String::new(), |number| format!("-{number}"));
    let name = format!("{stem}{}{}", number(captured.first), number(captured.last));
    let work = tempfile::Builder::new().prefix(".").tempfile_in(folder)?;
    tllmprof_record::copy(file, work.path())?;
    work.as_file().sync_all()?;
    Ok(keep(work, folder, &name, captured.status.pid)?)
}

/// Gives a file in `folder` its final name, `name` and an extension. If that name is taken, the name of this host and
/// the process id are added to it. If that name is taken, too, a number is added. Returns the file's path.
///
/// # Errors
/// The file cannot be renamed.
fn keep(mut file: NamedTempFile, folder: &Path, name: &str, pid: u64) -> io::Result<PathBuf> {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().replace('/', "_");
    let mut count = 0_u64;
    loop {
        let to = folder.join(match count {
            0 => format!("{name}.tllmprof"),
            1 => format!("{name}-{host}-{pid}.tllmprof"),
            _ => format!("{name}-{host}-{pid}-{count}.tllmprof"),
        });
        match file.persist_noclobber(&to) {
            Ok(_) => return Ok(to),
            Err(failed) if failed.error.kind() == ErrorKind::AlreadyExists => file = failed.file,
            Err(failed) => return Err(failed.error),
        }
        count += 1;
    }
}

/// Reads only those windows of a record that begin with an iteration in `firsts`. If `past` is true, also reads the
/// windows that end right before these windows.
fn read_windows(file: &Path, firsts: &[u64], past: bool) -> Result<Read> {
    let chosen = Chosen::new(processes::open(file, "reading")?, firsts, past)?;
    Ok(Read::read(file.to_owned(), &chosen)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_copy_replaces_no_other_copy() {
        let folder = tempfile::tempdir().unwrap();
        let kept = |text: &str| {
            let file = NamedTempFile::new_in(folder.path()).unwrap();
            fs::write(file.path(), text).unwrap();
            keep(file, folder.path(), "record-5-9", 7).unwrap()
        };
        let all = ["a", "b", "c"].map(|text| (kept(text), text));
        for (path, text) in &all {
            assert_eq!(fs::read_to_string(path).unwrap(), *text);
        }
        assert!(all[0].0.ends_with("record-5-9.tllmprof"));
        let second = all[1].0.to_string_lossy().into_owned();
        assert!(second.ends_with("-7.tllmprof"), "{second}");
    }
}
