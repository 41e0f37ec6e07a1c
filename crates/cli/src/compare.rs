//! `tllmprof compare`: compares two runs, or several runs on each side.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use tllmprof_config::Step;
use tllmprof_config::error::shown;
use tllmprof_report::{Comparison, ComparisonOptions, Condition, Met, Process, Report};

use crate::failure::usage;
use crate::processes::ReadOptions;
use crate::{baseline, manners, output, processes, runs};

/// The exit status of the command if a condition of `--fail-if` holds.
const EXCEEDED: u8 = 3;
/// The exit status of the command if the runs are too few or too noisy to decide whether a condition of `--fail-if`
/// holds.
const CANNOT_TELL: u8 = 4;

#[derive(Args)]
#[command(
    override_usage = "tllmprof compare [OPTIONS] <BASE>... [--] <OTHER>...\n       tllmprof compare [OPTIONS] --baseline <DIR> <OTHER>...",
    after_help = "Intervals are 95 % confidence intervals of the true difference. With several runs on each side, they \
                  include the variation from run to run."
)]
pub(crate) struct CompareArguments {
    /// Print the comparison as JSON
    #[arg(long)]
    json: bool,
    /// Print the comparison in this format; json is the same as --json, and junit is JUnit XML [default: text]
    #[arg(long, value_name = "FORMAT", conflicts_with = "json")]
    format: Option<ComparisonFormat>,
    /// Treat runs that differ by no more than this as equal
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = percent)]
    within: f64,
    /// Exit with status 3 if this condition holds, and with 4 if the runs are too few or too noisy to decide. CONDITION
    /// is NAME > +N% or NAME < -N%, where NAME is rate, mean, p50, p90, p99, gpu, busy, launches, kernel:NAME or
    /// layer:NAME; may be repeated
    #[arg(long, value_name = "CONDITION", value_parser = Condition::parse)]
    fail_if: Vec<Condition>,
    /// Compare with the runs in this folder, and copy the new runs there if the status is 0
    #[arg(long, value_name = "DIR", conflicts_with = "other")]
    baseline: Option<PathBuf>,
    /// With --baseline: number of runs to keep in the folder, after which the oldest are removed; 0 adds none and
    /// removes none
    #[arg(long, value_name = "N", default_value_t = 5, requires = "baseline")]
    keep: usize,
    /// Treat the records of several runs in a folder as one run
    #[arg(long)]
    merge: bool,
    /// For traces of other profilers: the rule for what counts as an iteration (nvtx:REGEX, py:MODULE:QUALNAME, a CUDA
    /// call, or auto)
    #[arg(long, value_name = "RULE", value_parser = processes::step)]
    step: Option<Step>,
    /// Runs to compare with: each is a record, a trace of nsys or of the PyTorch profiler, or a folder with the records
    /// or traces of several ranks
    #[arg(value_name = "BASE", required = true)]
    base: Vec<PathBuf>,
    /// Runs that are compared with BASE
    #[arg(value_name = "OTHER", last = true)]
    other: Vec<PathBuf>,
}

/// The format of a printed comparison.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ComparisonFormat {
    Text,
    Json,
    Csv,
    Markdown,
    Junit,
}

/// Parses a percentage, such as `2%`, into a fraction (0.02).
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    let percent = number
        .parse::<f64>()
        .ok()
        .filter(|percent| *percent > 0.0 && *percent <= 100.0);
    let percent = percent.ok_or("wanted: a percentage above 0, such as 2%")?;
    Ok(percent / 100.0)
}

pub(crate) fn run(arguments: &CompareArguments) -> Result<ExitCode> {
    let Some(folder) = &arguments.baseline else {
        let (base, other) = sides(arguments)?;
        return show(base, other, arguments);
    };
    let new = &arguments.base[..];
    baseline::check_apart(folder, new)?;
    let kept = baseline::runs(folder)?;
    let status = match &kept[..] {
        [] => {
            output::say(format_args!(
                "--baseline {}: it has no run yet, so there is nothing to compare with",
                folder.display()
            ));
            check_readable(new, arguments)?
        }
        kept => show(kept, new, arguments)?,
    };
    if status == ExitCode::SUCCESS && arguments.keep > 0 {
        baseline::keep(folder, new, arguments.keep)?;
    }
    Ok(status)
}

/// Returns the exit status for new runs while the baseline folder is still empty: success if the new runs can be read.
fn check_readable(runs: &[PathBuf], arguments: &CompareArguments) -> Result<ExitCode> {
    for run in runs {
        let files = processes::find_files(run)?;
        let reading = ReadOptions::with_step(arguments.step.as_ref(), &files)?;
        if read(run, &files, reading, arguments.merge)?.is_none() {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the runs of both sides of the comparison: the base runs, and the runs that are compared with them.
fn sides(arguments: &CompareArguments) -> Result<(&[PathBuf], &[PathBuf])> {
    match (&arguments.base[..], &arguments.other[..]) {
        ([base, other], []) => Ok((std::slice::from_ref(base), std::slice::from_ref(other))),
        ([.., last], []) => {
            let last = shown(last.as_os_str());
            let wanted = "(wanted: BASE OTHER, or BASE... -- OTHER...)";
            Err(match arguments.base.len() {
                1 => usage(format_args!(
                    "{last}: there is no run to compare it with {wanted}"
                )),
                _ => usage(format_args!(
                    "{last}: one argument too many, or -- is missing {wanted}"
                )),
            })
        }
        (base, other) => Ok((base, other)),
    }
}

/// Compares the base runs with the other runs, prints the comparison, and returns the exit status.
fn show(base: &[PathBuf], other: &[PathBuf], arguments: &CompareArguments) -> Result<ExitCode> {
    let wanted = CompareRequest {
        step: arguments.step.as_ref(),
        merge: arguments.merge,
        asked: ComparisonOptions {
            within: arguments.within,
            conditions: arguments.fail_if.clone(),
        },
    };
    let Some(Compared { comparison, status }) = compare(base, other, &wanted)? else {
        return Ok(ExitCode::FAILURE);
    };
    let format = arguments.format.unwrap_or(match arguments.json {
        true => ComparisonFormat::Json,
        false => ComparisonFormat::Text,
    });
    match format {
        ComparisonFormat::Text => output::text(&comparison.styled(manners::stdout()))?,
        ComparisonFormat::Json => output::write(|to| comparison.json(to))?,
        ComparisonFormat::Csv => output::write(|to| comparison.csv(to))?,
        ComparisonFormat::Markdown => output::text(&comparison.markdown())?,
        ComparisonFormat::Junit => output::write(|to| comparison.junit(to))?,
    }
    let results = comparison.conditions.iter().map(|checked| checked.result);
    Ok(match results.max() {
        Some(Met::Exceeded) => ExitCode::from(EXCEEDED),
        Some(Met::CannotTell) => ExitCode::from(CANNOT_TELL),
        Some(Met::Kept) | None => status,
    })
}

/// The options that decide how runs are read and compared.
pub(crate) struct CompareRequest<'a> {
    /// The rule that says what an iteration is in traces of other profilers.
    pub step: Option<&'a Step>,
    /// True if the records of several runs in a folder count as one run.
    pub merge: bool,
    pub asked: ComparisonOptions,
}

/// A comparison, and the exit status of the command. The status is a failure if a record is damaged.
pub(crate) struct Compared {
    pub comparison: Comparison,
    pub status: ExitCode,
}

/// Compares the runs of two sides. Returns `None` if a file cannot be read; the error has then been logged.
///
/// # Errors
/// A folder has no record, a folder has records of several runs, or the rule of `--step` cannot be used.
pub(crate) fn compare(
    base: &[PathBuf],
    other: &[PathBuf],
    wanted: &CompareRequest<'_>,
) -> Result<Option<Compared>> {
    let files_of = |runs: &[PathBuf]| -> Result<Vec<_>> {
        runs.iter().map(|run| processes::find_files(run)).collect()
    };
    let files = [files_of(base)?, files_of(other)?];
    let all: Vec<_> = files.iter().flatten().flatten().cloned().collect();
    let reading = ReadOptions::with_step(wanted.step, &all)?;
    let read_all = |runs: &[PathBuf], files: &[Vec<PathBuf>]| -> Result<Option<Vec<_>>> {
        let runs = runs.iter().zip(files);
        runs.map(|(run, files)| read(run, files, reading, wanted.merge))
            .collect()
    };
    let (Some(base), Some(other)) = (read_all(base, &files[0])?, read_all(other, &files[1])?)
    else {
        return Ok(None);
    };
    Ok(Some(Compared {
        comparison: Comparison::of_runs(&base, &other, &wanted.asked),
        status: processes::status(false, base.iter().chain(&other).flatten()),
    }))
}

/// Reads the processes of a run. Returns `None` if one of the run's files cannot be read, after logging the error.
fn read(
    path: &Path,
    files: &[PathBuf],
    reading: ReadOptions<'_>,
    merge: bool,
) -> Result<Option<Vec<Process>>> {
    let (processes, failed) = processes::read_all(files, reading);
    let groups = runs::apart(processes, merge);
    let processes = runs::expect_one(groups, &path.display().to_string())?;
    Ok((!failed).then(|| Report::new(processes).processes))
}
