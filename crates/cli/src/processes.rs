//! The processes that files hold.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use tllmprof_nsys::Scopes;
use tllmprof_record::{Error, Reader};
use tllmprof_report::{Process, State};

use crate::failure::{self, usage};
use crate::progress::{Counted, Progress, Watched};
use crate::{output, parallel};

/// Reads the processes of some files, and logs which files cannot be read; whether there was one. A file of a
/// process that was killed before it recorded anything is logged, too, and is a failure if there is no other.
/// Kernels of nsys exports get their layers by `scopes`.
pub fn read_all<'a>(
    files: impl IntoIterator<Item = &'a PathBuf>,
    scopes: Option<&Scopes>,
) -> (Vec<Process>, bool) {
    let files: Vec<_> = files.into_iter().collect();
    let mut processes = Vec::new();
    let mut failed = false;
    for (file, read) in files.iter().zip(read_each(&files, scopes)) {
        match read.with_context(|| file.display().to_string()) {
            Ok(read) => processes.extend(read),
            Err(error) => {
                output::say(format_args!("{}", failure::text(&error)));
                failed |= !error.downcast_ref().is_some_and(is_empty);
            }
        }
    }
    failed |= processes.is_empty();
    (processes, failed)
}

/// What each file holds, in their order; several are read at once.
fn read_each(files: &[&PathBuf], scopes: Option<&Scopes>) -> Vec<Result<Vec<Process>>> {
    let read = |file: &PathBuf, show| {
        output::detail(format_args!("reads {}", file.display()));
        of_file(file, files.len(), show, scopes)
    };
    if let [file] = files {
        return vec![read(file, true)];
    }
    let progress = Progress::new(format!("reading {} files", files.len()), files.len() as u64);
    let progress = Mutex::new(progress);
    parallel::each(files, |file| {
        let read = read(file, false);
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.advance(1);
        read
    })
}

/// Whether a file is a record that was only begun.
pub const fn is_empty(error: &Error) -> bool {
    matches!(error, Error::Empty(_))
}

/// The exit status: a failure where a file could not be read, or a record is damaged.
pub fn status<'a>(failed: bool, processes: impl IntoIterator<Item = &'a Process>) -> ExitCode {
    let is_damaged = |process: &Process| process.state() == State::Damaged;
    if failed || processes.into_iter().any(is_damaged) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// # Errors
/// Where one of the files is named twice.
pub fn are_different(files: &[PathBuf]) -> Result<()> {
    let mut known = HashSet::new();
    for file in files {
        // One that cannot be found is for others to complain of.
        if let Ok(real) = file.canonicalize()
            && !known.insert(real)
        {
            return Err(usage(format_args!("{} is given twice", file.display())));
        }
    }
    Ok(())
}

/// # Errors
/// Where what is to be made by that option would replace one of the files that it is made of.
pub fn is_no_input(option: &str, output: &Path, files: &[PathBuf]) -> Result<()> {
    let Ok(target) = output.canonicalize() else {
        return Ok(());
    };
    let is_it = |file: &PathBuf| file.canonicalize().is_ok_and(|file| file == target);
    if files.iter().any(is_it) {
        return Err(usage(format_args!(
            "{option} {}: it is one of the records (wanted: another name)",
            output.display()
        )));
    }
    Ok(())
}

/// The records and nsys exports in a folder, or the one file.
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
        let begins = beginning(&file).unwrap_or_default();
        let is_one =
            begins.starts_with(&tllmprof_record::MAGIC) || begins.starts_with(tllmprof_nsys::MAGIC);
        // One that is called so and cannot be read is named when it is tried.
        let is_called_so = |extension: &OsStr| extension == "tllmprof" || extension == "sqlite";
        if is_one || file.extension().is_some_and(is_called_so) {
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
    Ok(Process::read(path.to_owned(), &open(path, "reading")?)?)
}

/// Opens a record that is read twice; if that takes long, the progress line begins with `verb`.
///
/// # Errors
/// Where it cannot be read or is no record.
pub fn open(path: &Path, verb: &str) -> Result<Reader<Watched<File>>, Error> {
    let (file, length) = open_file(path)?;
    Reader::new(Watched::new(file, activity(verb, path), 2 * length))
}

/// A file that may be a record, as it is at one moment, and its length.
fn open_file(path: &Path) -> Result<(File, u64), Error> {
    let file = tllmprof_record::open_still(path)?;
    let length = file.metadata()?.len();
    Ok((file, length))
}

/// The processes of a record or of an nsys export, one of so many files. `show`: with a progress line of its own.
fn of_file(file: &Path, files: usize, show: bool, scopes: Option<&Scopes>) -> Result<Vec<Process>> {
    let path = || file.to_owned();
    if !is_of_nsys(file)? {
        let process = match show {
            true => Process::read_among(path(), &open(file, "reading")?, files)?,
            false => Process::read_among(path(), &Reader::new(open_file(file)?.0)?, files)?,
        };
        return Ok(vec![process]);
    }
    let recorded = exported(file, scopes)?;
    let records = files.max(recorded.len());
    let processes = recorded.iter().map(|one| match show {
        true => {
            let counted = Counted::new(one, activity("reading", file), 2 * one.rows());
            Process::read_among(path(), &counted, records)
        }
        false => Process::read_among(path(), one, records),
    });
    Ok(processes.collect::<Result<_, _>>()?)
}

/// The processes of an nsys export, whose kernels get their layers by `scopes`.
pub fn exported(
    file: &Path,
    scopes: Option<&Scopes>,
) -> Result<Vec<tllmprof_nsys::Process>, tllmprof_nsys::Error> {
    let mut recorded = tllmprof_nsys::open(file)?;
    if let Some(scopes) = scopes {
        for one in &mut recorded {
            one.join(scopes)?;
        }
    }
    Ok(recorded)
}

/// Whether a file is an nsys report or an export of one.
///
/// # Errors
/// Where it cannot be read.
pub fn is_of_nsys(file: &Path) -> io::Result<bool> {
    let begins = beginning(file)?;
    let is_record = begins.starts_with(&tllmprof_record::MAGIC);
    Ok(!file.is_dir() && !is_record && tllmprof_nsys::is_of_nsys(file, &begins))
}

/// What is being done, for the progress line.
pub fn activity(verb: &str, path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    format!("{verb} {}", name.display())
}

/// The first bytes of a file.
fn beginning(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let length = tllmprof_nsys::MAGIC.len() as u64;
    // Whoever opens a FIFO waits until somebody writes to it.
    if fs::metadata(file)?.is_file() {
        File::open(file)?.take(length).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}
