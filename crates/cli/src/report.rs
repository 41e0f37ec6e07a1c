//! What records show.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use tllmprof_record::{Error, Reader};
use tllmprof_report::{Process, Report};

use crate::failure::usage;
use crate::output;
use crate::progress::Watched;

#[derive(Args)]
pub struct Arguments {
    /// As JSON, with every iteration
    #[arg(long)]
    json: bool,
    /// Records, one for each process
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    // Part of the interface and not of this version: told by name, and kept out of the help.
    #[arg(long, value_name = "OUT", hide = true)]
    html: Option<PathBuf>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.html.is_some() {
        return Err(usage("--html: this version does not have it"));
    }
    let mut status = ExitCode::SUCCESS;
    let mut processes = Vec::new();
    for file in &arguments.files {
        match read(file).with_context(|| file.display().to_string()) {
            Ok(process) => processes.push(process),
            Err(error) => {
                output::say(format_args!("{error:#}"));
                status = ExitCode::FAILURE;
            }
        }
    }
    if !processes.is_empty() {
        print(&Report::new(processes), arguments.json)?;
    }
    Ok(status)
}

/// What records show, in short, on standard error.
pub fn summarise(files: &[PathBuf]) {
    let mut processes = Vec::new();
    for file in files {
        match read(file).with_context(|| file.display().to_string()) {
            Ok(process) => processes.push(process),
            Err(error) => output::say(format_args!("{error:#}")),
        }
    }
    if !processes.is_empty() {
        output::tell(Report::new(processes).text().as_bytes());
    }
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

fn print(report: &Report, json: bool) -> Result<()> {
    if !json {
        return Ok(output::print(report.text().as_bytes())?);
    }
    let mut stdout = BufWriter::new(io::stdout().lock());
    let written = report
        .json(&mut stdout)
        .and_then(|()| io::Write::flush(&mut stdout));
    match written {
        // A reader that has seen enough is no error.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
