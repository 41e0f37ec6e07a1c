//! Two runs side by side.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use tllmprof_report::{Comparison, Report};

use crate::{manners, output, processes, runs};

#[derive(Args)]
#[command(
    after_help = "Intervals hold the true difference between these two runs 95 times in a hundred. \
                  Repeat the baseline to measure run-to-run variance."
)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Treat the records of several runs in a folder as one run
    #[arg(long)]
    merge: bool,
    /// A record, an nsys export, or a folder of those of several ranks
    #[arg(value_name = "BASE")]
    base: PathBuf,
    /// The run to compare with BASE; the same kinds
    #[arg(value_name = "OTHER")]
    other: PathBuf,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (Some(base), Some(other)) = (
        read(&arguments.base, arguments.merge)?,
        read(&arguments.other, arguments.merge)?,
    ) else {
        return Ok(ExitCode::FAILURE);
    };
    let comparison = Comparison::of(&base.processes, &other.processes);
    if arguments.json {
        output::write(|to| comparison.json(to))?;
    } else {
        output::text(&comparison.styled(manners::stdout()))?;
    }
    let all = base.processes.iter().chain(&other.processes);
    Ok(processes::status(false, all))
}

/// A run; `None`, after an error was logged, if one of its files cannot be read.
fn read(path: &Path, merge: bool) -> Result<Option<Report>> {
    let (processes, failed) = processes::read_all(&processes::of_run(path)?, None);
    let groups = runs::apart(processes, merge);
    let processes = runs::one(groups, &path.display().to_string())?;
    Ok((!failed).then(|| Report::new(processes)))
}
