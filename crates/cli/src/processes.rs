//! The processes that files tell of.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tllmprof_record::{Error, Reader};
use tllmprof_report::Process;

use crate::output;
use crate::progress::Watched;

/// Reads the processes of some files; what cannot be read is told, and whether there was any such.
pub fn read_all<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> (Vec<Process>, bool) {
    let mut processes = Vec::new();
    let mut failed = false;
    for file in files {
        match read(file).with_context(|| file.display().to_string()) {
            Ok(process) => processes.push(process),
            Err(error) => {
                output::say(format_args!("{error:#}"));
                failed = true;
            }
        }
    }
    (processes, failed)
}

/// The records in a folder, or the one file.
///
/// # Errors
/// Where the folder cannot be read or has none.
pub fn of_run(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let name = || path.display().to_string();
    let mut files = Vec::new();
    for entry in fs::read_dir(path).with_context(name)? {
        let file = entry.with_context(name)?.path();
        if file.is_file() && Reader::open(&file).is_ok() {
            files.push(file);
        }
    }
    if files.is_empty() {
        bail!("{}: there is no record in it", path.display());
    }
    files.sort();
    Ok(files)
}

/// Reads a record.
pub fn read(path: &Path) -> Result<Process> {
    let file = File::open(path)?;
    let status = file.metadata()?;
    if status.is_dir() {
        return Err(Error::NoRecord.into());
    }
    let name = path.file_name().unwrap_or(path.as_os_str());
    let what = format!("reading {}", name.display());
    // Twice, says the report.
    let reader = Reader::new(Watched::new(file, what, 2 * status.len()))?;
    Ok(Process::read(path.to_owned(), &reader)?)
}
