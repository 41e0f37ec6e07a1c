//! What records show.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use tllmprof_config::RunId;
use tllmprof_export::Output;
use tllmprof_nsys::Scopes;
use tllmprof_report::{Process, Report};

use crate::failure::usage;
use crate::page::{self, Measured};
use crate::{manners, output, processes, runs};

#[derive(Args)]
pub struct Arguments {
    /// Print JSON, with every iteration
    #[arg(long)]
    json: bool,
    /// Write a page with timelines: one HTML file that needs no network
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
    /// For exports of nsys: take the layers of CUDA graphs from this record, of a run of the same program with --layers
    #[arg(long, value_name = "RECORD")]
    scopes: Option<PathBuf>,
    /// Records, folders of records, or SQLite exports of nsys [default: the newest tllmprof-RUN folder here]
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    if arguments.schema {
        output::write(|to| writeln!(to, "{:#}", Report::schema()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let files = runs::named(&arguments.files)?;
    processes::are_different(&files)?;
    let page = match &arguments.html {
        Some(out) => {
            processes::is_no_input("--html", out, &files)?;
            let target = Output::new(out, arguments.force);
            Some((out, target.with_context(|| out.display().to_string())?))
        }
        None => None,
    };
    let scopes = arguments.scopes.as_deref();
    let scopes = scopes.map(|record| scopes_of(record, &files)).transpose()?;
    let (processes, failed) = processes::read_all(&files, scopes.as_ref());
    let status = processes::status(failed, &processes);
    let mut groups = runs::apart(processes, arguments.merge);
    if arguments.json || page.is_some() {
        let option = if arguments.json { "--json" } else { "--html" };
        groups = vec![runs::one(groups, option)?];
    }
    match groups.len() {
        0 => (),
        1 => {
            let processes = groups.pop().unwrap_or_default();
            if !processes.is_empty() {
                show(processes, page, scopes.as_ref(), arguments)?;
            }
        }
        _ => {
            let mut text = String::new();
            for group in groups {
                let blank = if text.is_empty() { "" } else { "\n\n" };
                let name = runs::name(&group);
                text.push_str(&format!(
                    "{blank}run {name}\n\n{}",
                    Report::new(group).styled(manners::stdout())
                ));
            }
            output::text(&text)?;
        }
    }
    Ok(status)
}

/// What a record knows of the graphs that exports of nsys have.
///
/// # Errors
/// Where it cannot be read or has no layers, or there is no export.
fn scopes_of(record: &Path, files: &[PathBuf]) -> Result<Scopes> {
    let option = || format!("--scopes {}", record.display());
    let is_export = |file: &PathBuf| processes::is_of_nsys(file).unwrap_or(false);
    if !files.iter().any(is_export) {
        return Err(usage(format_args!(
            "{}: no FILE is an export of nsys (wanted: one; a record has its own layers)",
            option()
        )));
    }
    let reader = processes::open(record, "reading").with_context(option)?;
    let scopes = Scopes::read(record.to_owned(), &reader).with_context(option)?;
    scopes.with_context(|| {
        format!(
            "{}: it has no layers (wanted: a record of tllmprof run --layers)",
            option()
        )
    })
}

fn show(
    processes: Vec<Process>,
    page: Option<(&PathBuf, Output)>,
    scopes: Option<&Scopes>,
    arguments: &Arguments,
) -> Result<()> {
    let Some((out, target)) = page else {
        return print(&Report::new(processes), arguments.json);
    };
    let measured = Measured::of(&processes);
    let report = Report::new(processes);
    let out = out.display();
    page::write(&report, &measured, target, false, scopes).with_context(|| out.to_string())?;
    output::note(format_args!("wrote {out}"));
    // A page is asked for instead of the text, and beside the JSON.
    if arguments.json {
        print(&report, true)?;
    }
    Ok(())
}

fn print(report: &Report, json: bool) -> Result<()> {
    if json {
        output::write(|to| report.json(to))?;
    } else {
        output::text(&report.styled(manners::stdout()))?;
    }
    Ok(())
}

/// What the records of a run show, in short, on standard error; whether there is anything that a page could show.
pub fn summarise(files: &[PathBuf], run: &RunId) -> bool {
    let (processes, _) = processes::read_all(files, None);
    let processes = runs::only(processes, run);
    let has_iterations = processes.iter().any(|process| process.sum.is_some());
    if !processes.is_empty() {
        let style = manners::style(&io::stderr());
        output::write_error(&Report::new(processes).styled(style));
    }
    has_iterations
}
