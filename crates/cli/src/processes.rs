//! Reads files (records, nsys exports and PyTorch traces) into the processes that they describe.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use tllmprof_config::{Problem, Step};
use tllmprof_nsys::GraphScopes;
use tllmprof_record::{Reader, RecordError};
use tllmprof_report::{Process, State};

use crate::failure::{self, usage};
use crate::profiler::NSYS;
use crate::progress::{Counted, Progress, ProgressSource};
use crate::{output, parallel, traces};

/// Options for reading traces of other profilers, such as nsys.
#[derive(Clone, Copy, Default)]
pub(crate) struct ReadOptions<'a> {
    /// The layers of CUDA graphs, from a record of the same program. They are needed because nsys exports do not
    /// contain layers.
    pub scopes: Option<&'a GraphScopes>,
    /// The rule that says what an iteration is, for traces that contain no such rule.
    pub step: Option<&'a Step>,
}

impl<'a> ReadOptions<'a> {
    /// Returns the options for reading these files, after a check that the rule of `--step` can be used with them.
    ///
    /// # Errors
    /// The rule names calls that traces do not hold, or none of the files is a trace.
    pub(crate) fn with_step(step: Option<&'a Step>, files: &[PathBuf]) -> Result<Self> {
        let reading = Self { scopes: None, step };
        let Some(step) = step else {
            return Ok(reading);
        };
        if let Err(why) = tllmprof_foreign::check(step) {
            return Err(usage(format_args!("--step {step}: {why}")));
        }
        // Files that cannot be read are treated like traces here, because the error is reported later, when they are
        // opened.
        if files.iter().any(|file| is_foreign(file).unwrap_or(true)) {
            return Ok(reading);
        }
        Err(usage(format_args!(
            "--step {step}: no FILE is a trace of another profiler (wanted: one; a record has its own iterations)"
        )))
    }
}

/// Parses the rule of `--step`.
///
/// # Errors
/// The text is not a step rule.
pub(crate) fn step(text: &str) -> Result<Step, Problem> {
    Step::parse(text)
}

/// Reads the processes of some files, and logs each file that cannot be read. Also returns true if any file failed. A
/// process that was killed before it recorded anything leaves an empty record. This record is logged too, but it counts
/// as a failure only if no other file has a process.
pub(crate) fn read_all<'a>(
    files: impl IntoIterator<Item = &'a PathBuf>,
    reading: ReadOptions<'_>,
) -> (Vec<Process>, bool) {
    let files: Vec<_> = files.into_iter().collect();
    let mut processes = Vec::new();
    let mut failed = false;
    for (file, read) in files.iter().zip(read_each(&files, reading)) {
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

/// Reads the processes of each file, in the order of the files. Several files are read in parallel.
fn read_each(files: &[&PathBuf], reading: ReadOptions<'_>) -> Vec<Result<Vec<Process>>> {
    let read = |file: &PathBuf, show| {
        output::detail(format_args!("reads {}", file.display()));
        read_file(file, files.len(), show, reading)
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

/// Returns true if the error means that the record was created but nothing was written to it.
pub(crate) const fn is_empty(error: &RecordError) -> bool {
    matches!(error, RecordError::Empty(_))
}

/// Returns the exit status: a failure if a file could not be read or a record is damaged.
pub(crate) fn status<'a>(
    failed: bool,
    processes: impl IntoIterator<Item = &'a Process>,
) -> ExitCode {
    let is_damaged = |process: &Process| process.state() == State::Damaged;
    if failed || processes.into_iter().any(is_damaged) {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Checks that no file is given twice, and that none is a copy of another one.
///
/// # Errors
/// A file is given twice, or is a copy of another one.
pub(crate) fn are_different(files: &[PathBuf]) -> Result<()> {
    let mut known = HashSet::new();
    for file in files {
        // A file that does not exist is reported later, when it is opened.
        if let Ok(real) = file.canonicalize()
            && !known.insert(real)
        {
            return Err(usage(format_args!("{} is given twice", file.display())));
        }
    }
    match find_copy(files) {
        Some((copy, of)) => Err(usage(format_args!(
            "{}: it has the same bytes as {} (wanted: a trace of each rank)",
            copy.display(),
            of.display()
        ))),
        None => Ok(()),
    }
}

/// Returns the first trace of another profiler that has the same bytes as an earlier one, and that one. Two processes
/// never have the same trace.
fn find_copy(files: &[PathBuf]) -> Option<(&Path, &Path)> {
    let mut by_size: HashMap<u64, Vec<&Path>> = HashMap::new();
    for file in files.iter().filter(|file| is_trace_file(file)) {
        let Ok(size) = fs::metadata(file).map(|data| data.len()) else {
            continue;
        };
        let same = by_size.entry(size).or_default();
        let equal = |other: &&Path| have_same_bytes(file, other).unwrap_or(false);
        if size > 0
            && let Some(other) = same.iter().copied().find(equal)
        {
            return Some((file, other));
        }
        same.push(file);
    }
    None
}

/// Returns true if a file is a trace of the PyTorch profiler or of nsys, by its name.
fn is_trace_file(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().as_bytes();
    let endings: [&[u8]; 5] = [b".json", b".json.gz", b".sqlite", b".nsys-rep", b".qdrep"];
    endings.iter().any(|ending| name.ends_with(ending))
}

fn have_same_bytes(one: &Path, other: &Path) -> io::Result<bool> {
    let [mut one, mut other] = [
        BufReader::new(File::open(one)?),
        BufReader::new(File::open(other)?),
    ];
    loop {
        let (left, right) = (one.fill_buf()?, other.fill_buf()?);
        let length = left.len().min(right.len());
        if length == 0 {
            return Ok(left.is_empty() && right.is_empty());
        }
        if left[..length] != right[..length] {
            return Ok(false);
        }
        one.consume(length);
        other.consume(length);
    }
}

/// Checks that the output of `option` is not one of the input files, which it would replace.
///
/// # Errors
/// The output is one of the input files.
pub(crate) fn is_no_input(option: &str, output: &Path, files: &[PathBuf]) -> Result<()> {
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

/// Returns the records, nsys exports and PyTorch traces in a folder. If `path` is a file, returns that file.
///
/// # Errors
/// The folder cannot be read, or contains no such file.
pub(crate) fn find_files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let name = || path.display().to_string();
    let mut files = Vec::new();
    for entry in fs::read_dir(path).with_context(name)? {
        let file = entry.with_context(name)?.path();
        files.extend(kind(&file).map(|_| file));
    }
    if files.is_empty() {
        bail!("{}: there is no record in it", path.display());
    }
    files.sort();
    // nsys writes the export of a report into the report's folder. Reading both would show the same run twice, so a
    // report that has an export is left out.
    let reports = files.clone();
    files.retain(|file| {
        let export = file.with_extension("sqlite");
        !tllmprof_nsys::is_report(file) || !reports.contains(&export)
    });
    Ok(files)
}

/// Returns a name for the type of a file: a record, or a trace of some profiler. `None` if the file is neither. The
/// type is determined from the file's first bytes. If these show no known type, it is determined from the extension, so
/// that a damaged file is still listed. The damage is then reported when the file is read.
pub(crate) fn kind(file: &Path) -> Option<&'static str> {
    const RECORD: &str = "tllmprof record";
    const EXPORT: &str = "nsys export";
    const REPORT: &str = "nsys report";
    let begins = beginning(file).unwrap_or_default();
    let extension = file.extension().and_then(OsStr::to_str);
    match extension {
        _ if begins.starts_with(&tllmprof_record::MAGIC) => Some(RECORD),
        _ if begins.starts_with(tllmprof_nsys::MAGIC) => Some(EXPORT),
        _ if traces::is_trace(file, &begins) => Some("PyTorch trace"),
        Some("tllmprof") => Some(RECORD),
        Some("sqlite") => Some(EXPORT),
        Some("nsys-rep") => Some(REPORT),
        _ => None,
    }
}

/// Reads the process that a record describes. Shows the progress if reading takes long.
pub(crate) fn read(path: &Path) -> Result<Process> {
    Ok(Process::read(path.to_owned(), &open(path, "reading")?)?)
}

/// Opens a record that will be read in two passes. If reading takes long, a progress line that begins with `verb` is
/// shown.
///
/// # Errors
/// The file cannot be read, or is not a record.
pub(crate) fn open(path: &Path, verb: &str) -> Result<Reader<ProgressSource<File>>, RecordError> {
    let (file, length) = open_file(path)?;
    Reader::new(ProgressSource::new(file, activity(verb, path), 2 * length))
}

/// Opens a snapshot of a file that may be a record. Returns the snapshot and its length in bytes.
fn open_file(path: &Path) -> Result<(File, u64), RecordError> {
    let file = tllmprof_record::open_still(path)?;
    let length = file.metadata()?.len();
    Ok((file, length))
}

/// Reads the processes of a record, an nsys export or a PyTorch trace. `files` is the total number of files that are
/// read. If `show` is true, a progress line is shown.
fn read_file(
    file: &Path,
    files: usize,
    show: bool,
    reading: ReadOptions<'_>,
) -> Result<Vec<Process>> {
    let path = || file.to_owned();
    if is_json(file)? {
        let shown = show.then(|| activity("reading", file));
        let trace = traces::read(file, reading.step, shown)?;
        return Ok(vec![Process::read_among(path(), &trace, files)?]);
    }
    if !is_of_nsys(file)? {
        let process = match show {
            true => Process::read_among(path(), &open(file, "reading")?, files)?,
            false => Process::read_among(path(), &Reader::new(open_file(file)?.0)?, files)?,
        };
        return Ok(vec![process]);
    }
    let recorded = exported(file, reading)?;
    let records = files.max(recorded.len());
    // The iterator drops the data of each process after reading it, to save memory.
    let processes = recorded.into_iter().map(|one| match show {
        true => {
            let counted = Counted::new(&one, activity("reading", file), 2 * one.rows());
            Process::read_among(path(), &counted, records)
        }
        false => Process::read_among(path(), &one, records),
    });
    Ok(processes.collect::<Result<_, _>>()?)
}

/// Reads the processes of an nsys export, or of an nsys report if nsys is installed.
pub(crate) fn exported(
    file: &Path,
    ReadOptions { scopes, step }: ReadOptions<'_>,
) -> Result<Vec<tllmprof_nsys::ExportProcess>, tllmprof_nsys::ExportError> {
    let nsys = match tllmprof_nsys::is_report(file) {
        true => NSYS
            .find()
            .map_err(|error| tllmprof_nsys::ExportError::WrongNsys(error.to_string()))?,
        false => None,
    };
    let nsys = nsys.unwrap_or_else(|| NSYS.name.into());
    let mut recorded = tllmprof_nsys::open(file, &nsys, step)?;
    if let Some(scopes) = scopes {
        for one in &mut recorded {
            one.join(scopes)?;
        }
    }
    Ok(recorded)
}

/// Returns true if a file is a trace of another profiler.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn is_foreign(file: &Path) -> io::Result<bool> {
    Ok(is_of_nsys(file)? || is_json(file)?)
}

/// Returns true if a file is JSON, as the PyTorch profiler's traces are.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn is_json(file: &Path) -> io::Result<bool> {
    traces::is_json(file, &beginning(file)?)
}

/// Returns true if a file is an nsys report or an export of such a report.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn is_of_nsys(file: &Path) -> io::Result<bool> {
    let begins = beginning(file)?;
    let is_record = begins.starts_with(&tllmprof_record::MAGIC);
    Ok(!file.is_dir() && !is_record && tllmprof_nsys::is_of_nsys(file, &begins))
}

/// Returns the text of the progress line for the file `path`. `verb` says what is done with the file.
pub(crate) fn activity(verb: &str, path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    format!("{verb} {}", name.display())
}

/// Returns the first bytes of a file, which show the file's type. There are none if the file is a folder.
///
/// # Errors
/// The file cannot be read, or is a pipe or a device, which cannot be read twice.
fn beginning(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let length = tllmprof_nsys::MAGIC.len() as u64;
    let status = fs::metadata(file)?;
    // Opening a FIFO would block until a process writes to it, so only regular files are opened.
    if status.is_file() {
        File::open(file)?.take(length).read_to_end(&mut bytes)?;
    } else if !status.is_dir() {
        return Err(io::Error::other(
            "it is a pipe or a device (wanted: a file, because it is read more than once)",
        ));
    }
    Ok(bytes)
}
