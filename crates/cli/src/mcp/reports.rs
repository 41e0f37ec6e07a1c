//! Makes the reports for the tools of `tllmprof mcp`, and keeps the latest report in memory.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Result, anyhow, bail};
use schemars::JsonSchema;
use serde::Deserialize;
use tllmprof_config::Step;
use tllmprof_report::{Process, Report, State};

use crate::processes::{self, ReadOptions};
use crate::runs;

/// The run that a tool reads.
#[derive(Deserialize, JsonSchema, Clone, PartialEq, Eq, Default)]
#[serde(default)]
pub(crate) struct RunOf {
    /// Paths of the run's records, of traces of nsys or of the PyTorch profiler, or of folders of these (default: the
    /// newest tllmprof-RUN folder).
    files: Vec<PathBuf>,
    /// Identifier of the run, required if the files belong to several runs.
    #[schemars(with = "String")]
    run: Option<String>,
    /// For traces of other profilers: the rule for what counts as an iteration (nvtx:REGEX, py:MODULE:QUALNAME, a CUDA
    /// call, or auto).
    #[schemars(with = "String")]
    step: Option<String>,
}

/// The files and options from which a report was made. If the files and options are unchanged, the report is still
/// valid.
#[derive(PartialEq, Eq)]
struct ReportInputs {
    of: RunOf,
    /// The path, length in bytes, and modification time of each file of the report.
    files: Vec<(PathBuf, u64, Option<SystemTime>)>,
}

/// The report that was requested last. It stays in memory because an assistant usually asks several questions about one
/// run.
#[derive(Default)]
pub(super) struct Reports {
    last: Option<(ReportInputs, Arc<Report>)>,
}

impl Reports {
    /// Returns the report of a run, from memory if the report in memory is still valid.
    ///
    /// # Errors
    /// The files cannot be read, or belong to several runs.
    pub(crate) fn get(&mut self, of: &RunOf) -> Result<Arc<Report>> {
        let files = runs::named(&of.files)?;
        processes::are_different(&files)?;
        let source = ReportInputs {
            of: of.clone(),
            files: files.into_iter().map(with_state).collect(),
        };
        if let Some((known, report)) = &self.last
            && *known == source
        {
            return Ok(Arc::clone(report));
        }
        // The old report is dropped first, because the new one needs the memory.
        self.last = None;
        let files: Vec<_> = source.files.iter().map(|(file, ..)| file.clone()).collect();
        let report = Arc::new(Report::new(read(of, &files)?));
        // Only reports on complete records are kept in memory. A running process writes to its record through a
        // memory mapping, which does not change the file's modification time at once. So the report in memory could
        // be out of date without a sign of it.
        let is_whole = |process: &Process| process.state() == State::Whole;
        if report.processes.iter().all(is_whole) {
            self.last = Some((source, Arc::clone(&report)));
        }
        Ok(report)
    }
}

fn with_state(file: PathBuf) -> (PathBuf, u64, Option<SystemTime>) {
    let status = fs::metadata(&file).ok();
    let length = status.as_ref().map_or(0, fs::Metadata::len);
    let time = status.and_then(|status| status.modified().ok());
    (file, length, time)
}

/// Parses a step rule, if there is one.
///
/// # Errors
/// The text is not a step rule.
pub(crate) fn step(text: Option<&str>) -> Result<Option<Step>> {
    let parse = |text| Step::parse(text).map_err(|problem| anyhow!("step {text:?}: {problem}"));
    text.map(parse).transpose()
}

/// Reads the processes of one run from `files`.
fn read(of: &RunOf, files: &[PathBuf]) -> Result<Vec<Process>> {
    let step = step(of.step.as_deref())?;
    let reading = ReadOptions::with_step(step.as_ref(), files)?;
    let (processes, failed) = processes::read_all(files, reading);
    if failed && processes.is_empty() {
        bail!("none of the files can be read");
    }
    let mut groups = runs::apart(processes, false);
    let names: Vec<_> = groups.iter().map(|group| runs::name(group)).collect();
    if let Some(run) = &of.run {
        let Some(place) = names.iter().position(|name| name == run) else {
            bail!(
                "run {run:?}: the files have none of it (wanted: {})",
                names.join(", ")
            );
        };
        return Ok(groups.swap_remove(place));
    }
    match groups.len() {
        0 | 1 => Ok(groups.pop().unwrap_or_default()),
        several => bail!(
            "files: the records belong to {several} runs (wanted: run, which is one of {})",
            names.join(", ")
        ),
    }
}
