//! `tllmprof compare`: compares two runs, or several runs on each side.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use tllmprof_config::Step;
use tllmprof_config::error::shown;
use tllmprof_report::{Comparison, ComparisonOptions, Condition, Met, Report};

use crate::failure::usage;
use crate::processes::ReadOptions;
use crate::repeated::{KnownRuns, ReadRun, RunFiles};
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
    #[arg(long, value_name = "N", default_value_t = 5, requires = "baseline", value_parser = parse_runs)]
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

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ComparisonFormat {
    Text,
    Json,
    Csv,
    Markdown,
    Junit,
}

fn parse_runs(text: &str) -> Result<usize, &'static str> {
    text.parse()
        .map_err(|_| "wanted: a number of runs, such as 5")
}

/// Parses a percentage, such as `2%`, into a fraction (0.02). The percent sign may be missing.
pub(crate) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    let percent = number
        .parse::<f64>()
        .ok()
        .filter(|percent| *percent > 0.0 && *percent <= 100.0);
    let percent = percent.ok_or("wanted: a percentage above 0 and at most 100, such as 2%")?;
    Ok(percent / 100.0)
}

pub(crate) fn run(arguments: &CompareArguments) -> Result<ExitCode> {
    let wanted = CompareRequest {
        step: arguments.step.as_ref(),
        merge: arguments.merge,
        asked: ComparisonOptions {
            within: arguments.within,
            conditions: arguments.fail_if.clone(),
        },
    };
    if let Some(folder) = &arguments.baseline {
        return run_with_baseline(folder, arguments, &wanted);
    }
    let (base, other) = sides(arguments)?;
    match compare(base, other, &wanted)? {
        Some(compared) => show(&compared, arguments),
        None => Ok(ExitCode::FAILURE),
    }
}

/// Compares the new runs with those of the baseline folder, and copies the new runs there if the exit status is 0.
fn run_with_baseline(
    folder: &Path,
    arguments: &CompareArguments,
    wanted: &CompareRequest<'_>,
) -> Result<ExitCode> {
    let new = &arguments.base[..];
    baseline::check_apart(folder, new)?;
    let kept = baseline::runs(folder)?;
    // With `Counting::Once`, a run counts on the first side that contains it, and the new runs are the first side. So
    // if a new run is also in the folder, it is left out of the folder's runs and remains a new run.
    let Some(read) = read_sides([new, &kept], Counting::Once, wanted)? else {
        return Ok(ExitCode::FAILURE);
    };
    let [new, kept] = read.sides;
    if arguments.keep > 0 {
        baseline::check_fit(folder, &new)?;
    }
    // If a new run is in the folder already, it is not copied into the folder again.
    let added = new.iter().map(|run| run.path.clone());
    let added: Vec<_> = added.filter(|path| !read.repeated.contains(path)).collect();
    let status = if kept.is_empty() {
        let which = if added.len() < new.len() {
            "no other run"
        } else {
            "no run yet"
        };
        output::say(format_args!(
            "--baseline {}: it has {which}, so there is nothing to compare with",
            folder.display()
        ));
        processes::status(false, new.iter().flat_map(|run| &run.processes))
    } else {
        show(&Compared::new(kept, new, &wanted.asked), arguments)?
    };
    if status == ExitCode::SUCCESS && arguments.keep > 0 {
        baseline::keep(folder, &added, arguments.keep)?;
    }
    Ok(status)
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

/// Prints the comparison in the requested format. Returns the exit status, which depends on the conditions of
/// `--fail-if`.
fn show(compared: &Compared, arguments: &CompareArguments) -> Result<ExitCode> {
    let Compared { comparison, status } = compared;
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
        Some(Met::Kept) | None => *status,
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

impl Compared {
    fn new(base: Vec<ReadRun>, other: Vec<ReadRun>, asked: &ComparisonOptions) -> Self {
        let [base, other] = [base, other].map(|side| {
            let runs = side.into_iter().map(|run| run.processes);
            runs.collect::<Vec<_>>()
        });
        Self {
            comparison: Comparison::of_runs(&base, &other, asked),
            status: processes::status(false, base.iter().chain(&other).flatten()),
        }
    }
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
    let read = read_sides([base, other], Counting::OnEachSide, wanted)?;
    let compared = |read: ReadSides| {
        let [base, other] = read.sides;
        Compared::new(base, other, &wanted.asked)
    };
    Ok(read.map(compared))
}

/// Rule for a run that the user gave several times: the sides of the comparison on which the run counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counting {
    /// The run counts once on each side. So a run can be compared with itself, which shows no difference.
    OnEachSide,
    /// The run counts once in total, on the first side that contains it.
    Once,
}

/// The runs of both sides of a comparison, after their files were read.
struct ReadSides {
    sides: [Vec<ReadRun>; 2],
    /// For each run of the second side that was left out because it repeats another run, the path of that other run.
    repeated: Vec<PathBuf>,
}

/// Reads the runs of two sides. If a run occurs several times, the occurrences that do not count are left out, and a
/// message reports each of them. Returns `None` if a file cannot be read; the error has then been logged.
fn read_sides(
    sides: [&[PathBuf]; 2],
    counting: Counting,
    wanted: &CompareRequest<'_>,
) -> Result<Option<ReadSides>> {
    let mut known = [KnownRuns::default(), KnownRuns::default()];
    let of_second = usize::from(counting == Counting::OnEachSide);
    let [first, second] = sides;
    let first = known[0].find_files(first)?;
    // `repeated` is for the runs that the second side repeats. So the repetitions within the first side are removed
    // from it: a new run that the user gave twice is still a new run.
    known[0].repeated.clear();
    let sides = [first, known[of_second].find_files(second)?];
    let all = sides.iter().flatten().flat_map(|run| &run.files);
    let all: Vec<_> = all.cloned().collect();
    let reading = ReadOptions::with_step(wanted.step, &all)?;
    let read_all = |runs: Vec<RunFiles>| -> Result<Option<Vec<_>>> {
        let runs = runs.into_iter();
        runs.map(|run| read(run, reading, wanted.merge)).collect()
    };
    let [first, second] = sides;
    let (Some(first), Some(second)) = (read_all(first)?, read_all(second)?) else {
        return Ok(None);
    };
    let repeated = known[of_second].repeated.len();
    let first = known[0].leave_out_copies(first);
    known[of_second].repeated.truncate(repeated);
    let sides = [first, known[of_second].leave_out_copies(second)];
    let repeated = known.into_iter().flat_map(|known| known.repeated);
    Ok(Some(ReadSides {
        sides,
        repeated: repeated.collect(),
    }))
}

/// Reads the processes of a run. Returns `None` if one of the run's files cannot be read, after logging the error.
fn read(run: RunFiles, reading: ReadOptions<'_>, merge: bool) -> Result<Option<ReadRun>> {
    let (processes, failed) = processes::read_all(&run.files, reading);
    let groups = runs::apart(processes, merge);
    let processes = runs::expect_one(groups, &run.path.display().to_string())?;
    Ok((!failed).then(|| ReadRun {
        path: run.path,
        processes: Report::new(processes).processes,
    }))
}
