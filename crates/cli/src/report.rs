//! `tllmprof report`: shows the contents of records.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use tllmprof_config::{RunId, Step};
use tllmprof_export::Output;
use tllmprof_nsys::GraphScopes;
use tllmprof_report::{Process, Report, Style};

use crate::failure::usage;
use crate::page::{self, Measured};
use crate::processes::ReadOptions;
use crate::{manners, output, processes, query, runs};

#[derive(Args)]
pub(crate) struct ReportArguments {
    /// Print the report as JSON, with every iteration
    #[arg(long)]
    json: bool,
    /// Print the report in this format; json is the same as --json, csv prints the tables, and html prints the page of
    /// --html [default: text]
    #[arg(long, value_name = "FORMAT", conflicts_with = "json")]
    format: Option<ReportFormat>,
    /// Show all rows of all tables, with whole names; the default for a pipe or a file
    #[arg(long, conflicts_with = "brief")]
    full: bool,
    /// Show at most N rows of each table
    #[arg(long, value_name = "N", value_parser = parse_rows)]
    top: Option<usize>,
    /// Show only the main results: what was measured, the speed, the reasons for it, and where time was spent
    #[arg(long)]
    brief: bool,
    /// Show all details of one finding, by its identifier, such as host-bound; --brief lists the identifiers
    #[arg(long, value_name = "ID", conflicts_with_all = ["json", "format", "full", "top", "brief", "html", "query"])]
    finding: Option<String>,
    /// Print the result of a query on the tables of export --to parquet: a table with a condition, such as 'kernels
    /// where dur_ns > 50000', or any SQL; requires the duckdb command
    #[arg(long, value_name = "SQL", conflicts_with_all = ["json", "format", "full", "top", "brief", "html", "step", "scopes"])]
    query: Option<String>,
    /// Write an HTML page with timelines to OUT, which needs no network; - means standard output
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
    /// Replace OUT if it exists
    #[arg(long, requires = "html")]
    force: bool,
    /// Print the JSON schema of --json, and nothing else
    #[arg(long, exclusive = true)]
    schema: bool,
    /// Treat the records of several runs as one run
    #[arg(long)]
    merge: bool,
    /// For traces of other profilers: the rule for what counts as an iteration (nvtx:REGEX, py:MODULE:QUALNAME, a CUDA
    /// call, or auto)
    #[arg(long, value_name = "RULE", value_parser = processes::step)]
    step: Option<Step>,
    /// For nsys exports: take the layers of CUDA graphs from this record, which a run of the same program with --layers
    /// made
    #[arg(long, value_name = "RECORD")]
    scopes: Option<PathBuf>,
    /// Records, traces of nsys (.sqlite, .nsys-rep) or of the PyTorch profiler (.json, .json.gz), or folders of these
    /// [default: the newest tllmprof-RUN folder here]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReportFormat {
    Text,
    Json,
    Csv,
    Html,
}

impl ReportFormat {
    /// Returns the option that selects this format, for messages.
    const fn option(self) -> &'static str {
        match self {
            Self::Text => "--format text",
            Self::Json => "--format json",
            Self::Csv => "--format csv",
            Self::Html => "--format html",
        }
    }
}

fn parse_rows(text: &str) -> Result<usize, &'static str> {
    text.parse().map_err(|_| "wanted: a number of rows")
}

/// The file name that stands for standard output.
const STDOUT: &str = "-";

pub(crate) fn run(arguments: &ReportArguments) -> Result<ExitCode> {
    if arguments.schema {
        output::write(|to| writeln!(to, "{:#}", Report::schema()))?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.format == Some(ReportFormat::Html) && io::stdout().is_terminal() {
        return Err(usage(format_args!(
            "--format html: standard output is a terminal (wanted: a pipe or a file, or --html OUT)"
        )));
    }
    let files = runs::named(&arguments.files)?;
    processes::are_different(&files)?;
    if let Some(query) = &arguments.query {
        return query::run(query, &files, arguments.merge);
    }
    let page = match &arguments.html {
        Some(out) if out == Path::new(STDOUT) => {
            if arguments.format() != ReportFormat::Text {
                return Err(usage(format_args!(
                    "--html -: {} goes to standard output (wanted: a file's name, or without it)",
                    arguments.asks_for()
                )));
            }
            Some((out, None))
        }
        Some(out) => {
            processes::is_no_input("--html", out, &files)?;
            let target = Output::new(out, arguments.force);
            Some((
                out,
                Some(target.with_context(|| out.display().to_string())?),
            ))
        }
        None => None,
    };
    let scopes = arguments.scopes.as_deref();
    let scopes = scopes.map(|record| scopes_of(record, &files)).transpose()?;
    let reading = ReadOptions {
        scopes: scopes.as_ref(),
        ..ReadOptions::with_step(arguments.step.as_ref(), &files)?
    };
    let (processes, failed) = processes::read_all(&files, reading);
    let status = processes::status(failed, &processes);
    let mut groups = runs::apart(processes, arguments.merge);
    let format = arguments.format();
    if format != ReportFormat::Text || page.is_some() {
        let option = match format {
            ReportFormat::Text => "--html",
            _ => arguments.asks_for(),
        };
        groups = vec![runs::expect_one(groups, option)?];
    }
    match groups.len() {
        0 => (),
        1 => {
            let processes = groups.pop().unwrap_or_default();
            if !processes.is_empty() {
                show(processes, page, reading, arguments)?;
            }
        }
        _ => {
            let mut text = String::new();
            for group in groups {
                let blank = if text.is_empty() { "" } else { "\n\n" };
                let name = runs::name(&group);
                text.push_str(&format!(
                    "{blank}run {name}\n\n{}",
                    arguments.text(&Report::new(group))?
                ));
            }
            output::text(&text)?;
        }
    }
    Ok(status)
}

/// Reads the layers of CUDA graphs from a record. They are added to exports of nsys, which contain no layers.
///
/// # Errors
/// The record cannot be read or has no layers, or none of the files is an export of nsys.
fn scopes_of(record: &Path, files: &[PathBuf]) -> Result<GraphScopes> {
    let option = || format!("--scopes {}", record.display());
    let is_export = |file: &PathBuf| processes::is_of_nsys(file).unwrap_or(false);
    if !files.iter().any(is_export) {
        return Err(usage(format_args!(
            "{}: no FILE is an export of nsys (wanted: one; a record has its own layers)",
            option()
        )));
    }
    let reader = processes::open(record, "reading").with_context(option)?;
    let scopes = GraphScopes::read(record.to_owned(), &reader).with_context(option)?;
    scopes.with_context(|| {
        format!(
            "{}: it has no layers (wanted: a record of tllmprof run --layers)",
            option()
        )
    })
}

fn show(
    processes: Vec<Process>,
    page: Option<(&PathBuf, Option<Output>)>,
    reading: ReadOptions<'_>,
    arguments: &ReportArguments,
) -> Result<()> {
    let measured = Measured::from_processes(&processes);
    let report = Report::new(processes);
    let format = arguments.format();
    // With `--html`, the page replaces the text report. JSON or CSV is printed in addition to the page.
    let has_page = page.is_some();
    if let Some((out, target)) = page {
        let out = out.display();
        let is_file = target.is_some();
        page::write(&report, &measured, target, false, reading).with_context(|| out.to_string())?;
        if is_file {
            output::note(format_args!("wrote {out}"));
        }
    }
    match format {
        ReportFormat::Text if has_page => (),
        ReportFormat::Text => output::text(&arguments.text(&report)?)?,
        ReportFormat::Json => output::write(|to| report.json(to))?,
        ReportFormat::Csv => output::write(|to| report.csv(to))?,
        ReportFormat::Html => page::write(&report, &measured, None, false, reading)?,
    }
    Ok(())
}

impl ReportArguments {
    /// Returns the format in which the report is printed: JSON with `--json`, otherwise that of `--format`, or text by
    /// default.
    fn format(&self) -> ReportFormat {
        match self.format {
            None if self.json => ReportFormat::Json,
            format => format.unwrap_or(ReportFormat::Text),
        }
    }

    /// Returns the option that selects the format, as the user typed it, for messages. Returns `--format text` if the
    /// user typed no such option.
    fn asks_for(&self) -> &'static str {
        match self.format {
            None if self.json => "--json",
            format => format.unwrap_or(ReportFormat::Text).option(),
        }
    }

    /// Returns the report as text, or only the finding that `--finding` names. Fails if the report has no such finding.
    fn text(&self, report: &Report) -> Result<String> {
        let style = self.style();
        let Some(id) = &self.finding else {
            return Ok(report.styled(style));
        };
        let no_such = || {
            usage(format_args!(
                "--finding {id}: there is no such finding (wanted: {})",
                finding_ids(report)
            ))
        };
        report.finding(id, style).ok_or_else(no_such)
    }

    /// Returns the style of the report's text, which depends on the terminal and on the options of the command line.
    fn style(&self) -> Style {
        let style = manners::stdout();
        Style {
            is_whole: style.is_whole || self.full,
            is_brief: self.brief,
            top: self.top,
            ..style
        }
    }
}

/// Returns the identifiers of a report's findings as a text, separated by commas.
pub(crate) fn finding_ids(report: &Report) -> String {
    let ids: Vec<_> = report.findings.iter().map(|finding| finding.id).collect();
    match &ids[..] {
        [] => "none: no process has iterations".to_owned(),
        ids => ids.join(", "),
    }
}

/// Prints a short summary of a run's records on standard error. Returns true if the records contain iterations, which
/// an HTML page could show.
pub(crate) fn summarise(files: &[PathBuf], run: &RunId) -> bool {
    let (processes, _) = processes::read_all(files, ReadOptions::default());
    let processes = runs::only(processes, run);
    let has_iterations = processes.iter().any(|process| process.sum.is_some());
    if !processes.is_empty() {
        let style = manners::style(&io::stderr());
        output::write_error(&Report::new(processes).styled(style));
    }
    has_iterations
}
