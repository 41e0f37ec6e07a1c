//! What records show.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use tllmprof_report::Report;

use crate::failure::usage;
use crate::{output, processes};

#[derive(Args)]
pub struct Arguments {
    /// As JSON, with every iteration
    #[arg(long)]
    json: bool,
    /// Records, one for each process, or what nsys exports to sqlite
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
    let (processes, failed) = processes::read_all(&arguments.files);
    if !processes.is_empty() {
        let report = Report::new(processes);
        if arguments.json {
            output::write(|to| report.json(to))?;
        } else {
            output::print(report.text().as_bytes())?;
        }
    }
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// What records show, in short, on standard error.
pub fn summarise(files: &[PathBuf]) {
    let (processes, _) = processes::read_all(files);
    if !processes.is_empty() {
        output::tell(Report::new(processes).text().as_bytes());
    }
}
