//! `tllmprof export`: converts records for other tools.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};
use tllmprof_export::{ExportFormat, Exported, FORMATS, FormatWriter, Output, PASSES, Record};
use ureq::http::Uri;

use crate::failure::{usage, worded};
use crate::inherited;
use crate::otlp;
use crate::output;
use crate::processes;
use crate::progress::Progress;
use crate::runs;

#[derive(Args)]
pub(crate) struct ExportArguments {
    #[arg(long, value_name = "FORMAT", value_parser = formats(), help = what_to_write(), required_unless_present = "otlp")]
    to: Option<&'static ExportFormat>,
    /// File or folder to write; the file is compressed if its name ends in .gz, and - means standard output
    #[arg(short, long, value_name = "OUT", required_unless_present = "otlp")]
    output: Option<PathBuf>,
    /// Send windows and their slowest iterations as spans to an OpenTelemetry collector, with OTLP over HTTP, such as
    /// http://localhost:4318
    #[arg(long, value_name = "URL", value_parser = otlp::collector, conflicts_with_all = ["to", "output", "force"])]
    otlp: Option<Uri>,
    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,
    /// Treat the records of several runs as one run
    #[arg(long)]
    merge: bool,
    /// Records, or folders of records [default: the newest tllmprof-RUN folder here]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

fn formats() -> impl TypedValueParser<Value = &'static ExportFormat> {
    let named = |name: String| FORMATS.iter().find(|format| format.name == name);
    PossibleValuesParser::new(FORMATS.iter().map(|format| format.name))
        .try_map(move |name| named(name).ok_or("no format"))
}

fn what_to_write() -> String {
    let each: Vec<_> = FORMATS
        .iter()
        .map(|format| format!("{}, {}", format.name, format.makes))
        .collect();
    format!("Output format: {}", each.join("; "))
}

pub(crate) fn run(arguments: &ExportArguments) -> Result<ExitCode> {
    let files = runs::named(&arguments.files)?;
    processes::are_different(&files)?;
    let (out, counts, write) = match (arguments.to, &arguments.output, &arguments.otlp) {
        (Some(format), Some(output), _) => {
            let write = to_file(format, output, arguments.force, &files)?;
            (output.display().to_string(), format.counts, write)
        }
        (_, _, Some(collector)) => (collector.to_string(), "spans", to_collector(collector)),
        _ => {
            return Err(usage(format_args!(
                "export: --to and --output, or --otlp are wanted"
            )));
        }
    };
    let to_stdout = out == "-";
    let stopped = Stopped::on_signals()?;
    let (records, status) = open(&files, &stopped);
    let records = runs::without_copies(records, |record| &record.process);
    if !arguments.merge {
        runs::are_one(records.iter().map(|record| &record.process), "export")?;
    }
    if records.is_empty() {
        return match stopped.signal() {
            Some(signal) => Err(end_by(signal, None)),
            None => Ok(ExitCode::FAILURE),
        };
    }
    let written = write(&records);
    let read = records.len();
    // Dropping the records removes the progress line from the terminal, so that it does not mix with the messages
    // below.
    drop(records);
    if let Some(signal) = stopped.signal() {
        return Err(end_by(signal, Some(&out)));
    }
    let exported = match written {
        // If the reader of standard output closes the pipe early, this is not an error.
        Err(error) if to_stdout && is_broken_pipe(&error) => return Ok(status),
        written => written?,
    };
    if exported.left_out > 0 {
        output::say(format_args!(
            "{} events were left out: there are too many threads, or too much at once",
            exported.left_out
        ));
    }
    if !to_stdout {
        let processes = if read == 1 { "process" } else { "processes" };
        output::note(format_args!(
            "{out}: {} {counts} of {read} {processes}",
            exported.events
        ));
    }
    Ok(status)
}

/// Writes the tables of records as Parquet files into a folder. Returns the command's exit status, which is a failure
/// if a file could not be read or a record is damaged. Returns `None` if no file could be read as a record.
///
/// # Errors
/// The records belong to several runs and `merge` is false, or the tables cannot be written.
pub(crate) fn tables(files: &[PathBuf], merge: bool, folder: &Path) -> Result<Option<ExitCode>> {
    let stopped = Stopped::on_signals()?;
    let (records, status) = open(files, &stopped);
    let records = runs::without_copies(records, |record| &record.process);
    if !merge {
        runs::are_one(records.iter().map(|record| &record.process), "--query")?;
    }
    let writers = FORMATS.iter().map(|format| &format.write);
    for writer in writers.filter(|_| !records.is_empty()) {
        if let FormatWriter::Folder(write) = writer {
            let written = write(&records, folder);
            if let Some(signal) = stopped.signal() {
                return Err(end_by(signal, None));
            }
            written.with_context(|| folder.display().to_string())?;
        }
    }
    Ok((!records.is_empty()).then_some(status))
}

/// A function that writes records to their target: a file, a folder, standard output or a collector.
type Writing = Box<dyn FnOnce(&[Record]) -> Result<Exported>>;

/// Returns the function that writes records in `format` to `output`: a file, a folder or standard output.
fn to_file(
    format: &'static ExportFormat,
    output: &Path,
    force: bool,
    files: &[PathBuf],
) -> Result<Writing> {
    let out = output.display().to_string();
    let is_stdout = output == Path::new("-");
    let gzip = output.extension() == Some(OsStr::new("gz"));
    if !is_stdout {
        processes::is_no_input("--output", output, files)?;
    }
    let target = match is_stdout {
        true => None,
        false => Some(Output::new(output, force).with_context(|| out.clone())?),
    };
    let write: Writing = match (format.write, target) {
        (FormatWriter::Folder(_), None) => {
            return Err(usage(format_args!(
                "--output -: {} makes {} (wanted: its name)",
                format.name, format.makes
            )));
        }
        (FormatWriter::File(_), None) if !format.is_text && io::stdout().is_terminal() => {
            return Err(usage(format_args!(
                "--output -: {} makes {}, which is not for a terminal (wanted: a file's name, or a pipe)",
                format.name, format.makes
            )));
        }
        (FormatWriter::File(write), None) => {
            Box::new(move |records| Ok(write(records, &mut output::stdout()?, gzip)?))
        }
        (FormatWriter::File(write), Some(target)) => Box::new(move |records| {
            let exported = write(records, &mut target.file()?, gzip)?;
            target.keep()?;
            Ok(exported)
        }),
        (FormatWriter::Folder(write), Some(target)) => Box::new(move |records| {
            let exported = write(records, target.folder()?)?;
            target.keep()?;
            Ok(exported)
        }),
    };
    Ok(Box::new(move |records| write(records).with_context(|| out)))
}

/// Returns the function that sends the spans of records to an OpenTelemetry collector.
fn to_collector(collector: &Uri) -> Writing {
    let collector = collector.clone();
    Box::new(move |records| {
        let events = otlp::send(records, &collector)?;
        Ok(Exported {
            events,
            ..Exported::default()
        })
    })
}

/// Opens records. Logs each file that is not a record, and each record that is incomplete. Returns all records that
/// could be opened, also incomplete ones, and the command's exit status. Returns no record if a signal stopped the
/// export.
fn open(files: &[PathBuf], stopped: &Stopped) -> (Vec<Record>, ExitCode) {
    let length = |file: &PathBuf| fs::metadata(file).map_or(0, |status| status.len());
    let total = files.iter().map(length).sum::<u64>();
    let total = total.saturating_mul(PASSES);
    let progress = Arc::new(Mutex::new(Progress::new("exporting".to_owned(), total)));
    let mut records = Vec::new();
    let mut failed = false;
    for file in files {
        let (progress, is_set) = (Arc::clone(&progress), Arc::clone(&stopped.is_set));
        let watch = Arc::new(move |bytes| {
            if is_set.load(Ordering::Relaxed) {
                return Err(io::Error::other("interrupted"));
            }
            // The lock is never poisoned, because no thread panics while it holds the lock.
            if let Ok(mut progress) = progress.lock() {
                progress.advance(bytes);
            }
            Ok(())
        });
        match Record::open(file, watch) {
            Ok(record) => {
                if let Some(condition) = record.process.condition() {
                    let file = file.display();
                    output::say(format_args!(
                        "{file}: {condition}; what there is is exported"
                    ));
                }
                records.push(record);
            }
            Err(_) if stopped.signal().is_some() => return (Vec::new(), ExitCode::FAILURE),
            Err(error) => {
                let is = |known: io::Result<bool>| known.is_ok_and(|is_one| is_one);
                let why = if is(processes::is_of_nsys(file)) {
                    "it is an nsys report, which nsys exports itself (wanted: a tllmprof record)"
                        .to_owned()
                } else if is(processes::is_json(file)) {
                    "it is JSON, as traces are that other tools read already (wanted: a tllmprof record)"
                        .to_owned()
                } else {
                    worded(&error.to_string())
                };
                output::say(format_args!("{}: {why}", file.display()));
                failed |= !processes::is_empty(&error);
            }
        }
    }
    let status = processes::status(failed, records.iter().map(|record| &record.process));
    (records, status)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<io::Error>();
    cause.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// A request to stop the export, made by a signal such as SIGINT. The unfinished output is then removed.
struct Stopped {
    is_set: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Stopped {
    fn on_signals() -> Result<Self> {
        let new = Self {
            is_set: Arc::default(),
            signal: Arc::default(),
        };
        let heard = |signal: &i32| !inherited::is_ignored(*signal);
        for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(heard) {
            // The first signal sets the flag `is_set`, which requests a stop. A second signal ends the process at once.
            flag::register_conditional_default(signal, Arc::clone(&new.is_set))?;
            flag::register_usize(signal, Arc::clone(&new.signal), signal as usize)?;
            flag::register(signal, Arc::clone(&new.is_set))?;
        }
        Ok(new)
    }

    fn signal(&self) -> Option<i32> {
        let is_set = self.is_set.load(Ordering::Relaxed);
        is_set.then(|| self.signal.load(Ordering::Relaxed) as i32)
    }
}

/// Ends this process by the given signal. Returns an error only if the signal does not end the process.
fn end_by(signal: i32, output: Option<&str>) -> anyhow::Error {
    if let Some(output) = output {
        output::say(format_args!("interrupted: {output} is not written"));
    }
    let _ = low_level::emulate_default_handler(signal);
    anyhow!("interrupted")
}
