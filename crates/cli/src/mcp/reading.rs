//! The tools of `tllmprof mcp` that show parts of a run's report.

use anyhow::{Result, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tllmprof_report::{GpuLayerPattern, Iteration, Process, Report, Style, TABLES};

use super::answer::{self, Page};
use super::reports::RunOf;
use super::shared::Shared;
use crate::report::finding_ids;

/// The name of the table of iterations. [`TABLES`], the tables of the CSV report, does not contain it, because only the
/// JSON report and this server show it.
const ITERATIONS: &str = "iterations";

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Brief {
    #[serde(flatten)]
    of: RunOf,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Finding {
    #[serde(flatten)]
    of: RunOf,
    /// Identifier of the finding, such as launch-bound. Without it, all findings are listed.
    #[schemars(with = "String")]
    #[serde(default)]
    id: Option<String>,
    #[serde(flatten)]
    page: Page,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Table")]
pub(super) struct TableRequest {
    #[serde(flatten)]
    of: RunOf,
    /// Name of the table.
    #[schemars(extend("enum" = tables()))]
    table: String,
    /// Index of the only process to show, counted from 0 in the order of ranks (default: all processes).
    #[schemars(with = "u64")]
    #[serde(default)]
    process: Option<usize>,
    /// Text that the names of rows must contain, ignoring upper and lower case (default: all rows).
    #[schemars(with = "String")]
    #[serde(default)]
    contains: Option<String>,
    #[serde(flatten)]
    page: Page,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Layer {
    #[serde(flatten)]
    of: RunOf,
    /// Name of the layer, such as model.layers.3, or with * for numbers, such as model.layers.*.mlp. Its row and the
    /// rows of the layers within it are listed. Without a name, all layers are listed, with * for numbers.
    #[schemars(with = "String")]
    #[serde(default)]
    name: Option<String>,
    /// Index of the only process to show, counted from 0 in the order of ranks (default: all processes).
    #[schemars(with = "u64")]
    #[serde(default)]
    process: Option<usize>,
    #[serde(flatten)]
    page: Page,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct SlowIterations {
    #[serde(flatten)]
    of: RunOf,
    /// Index of the only process to show, counted from 0 in the order of ranks (default: all processes).
    #[schemars(with = "u64")]
    #[serde(default)]
    process: Option<usize>,
    #[serde(flatten)]
    page: Page,
}

fn tables() -> Vec<&'static str> {
    TABLES.into_iter().chain([ITERATIONS]).collect()
}

/// A row of a table in the answer, and the index of the process to which the row belongs.
#[derive(Serialize)]
struct Of<T> {
    process: usize,
    #[serde(flatten)]
    row: T,
}

pub(crate) fn brief(asked: &Brief, shared: &mut Shared) -> Result<String> {
    let report = shared.reports.get(&asked.of)?;
    let style = Style {
        is_brief: true,
        ..Style::whole()
    };
    let more = "finding, table and slow_iterations have the rest";
    Ok(answer::text(&report.styled(style), more))
}

pub(crate) fn finding(asked: &Finding, shared: &mut Shared) -> Result<String> {
    let report = shared.reports.get(&asked.of)?;
    let Some(id) = &asked.id else {
        let findings = report.findings.iter().map(without_claims);
        return answer::list(Map::new(), asked.page, findings);
    };
    let findings = &report.findings;
    let Some(finding) = findings.iter().find(|finding| finding.id == *id) else {
        bail!(
            "id {id:?}: there is no such finding (wanted: {})",
            finding_ids(&report)
        );
    };
    answer::list(without_claims(finding), asked.page, finding.claims.iter())
}

/// Returns a finding as JSON, without `claims`, its list of the times that the finding explains. If a single finding is
/// requested, this list becomes the rows of the answer.
fn without_claims(finding: &tllmprof_report::Finding) -> Map<String, Value> {
    let mut json = match serde_json::to_value(finding) {
        Ok(Value::Object(json)) => json,
        _ => Map::new(),
    };
    json.remove("claims");
    json
}

/// Returns the requested process, or all processes if none was requested. Each process comes with its index in the
/// report.
fn chosen(
    report: &Report,
    process: Option<usize>,
) -> Result<impl Iterator<Item = (usize, &Process)>> {
    check_process(report, process)?;
    let all = report.processes.iter().enumerate();
    Ok(all.filter(move |(place, _)| process.is_none_or(|process| process == *place)))
}

fn check_process(report: &Report, process: Option<usize>) -> Result<()> {
    let count = report.processes.len();
    match process {
        Some(process) if process >= count => {
            bail!("process {process}: there are {count}, counted from 0")
        }
        _ => Ok(()),
    }
}

pub(super) fn table(asked: &TableRequest, shared: &mut Shared) -> Result<String> {
    let name = asked.table.as_str();
    if !tables().contains(&name) {
        bail!(
            "table {name:?}: there is no such table (wanted: {})",
            tables().join(", ")
        );
    }
    let report = shared.reports.get(&asked.of)?;
    if name == ITERATIONS {
        return iterations(asked, &report);
    }
    check_process(&report, asked.process)?;
    let part = asked.contains.as_ref().map(|part| part.to_lowercase());
    let rows = report.rows().filter(|row| {
        row.table == name
            && asked
                .process
                .is_none_or(|process| row.process == Some(process))
            && part
                .as_ref()
                .is_none_or(|part| row.name.to_lowercase().contains(part))
    });
    answer::list(Map::new(), asked.page, rows)
}

fn iterations(asked: &TableRequest, report: &Report) -> Result<String> {
    if let Some(part) = &asked.contains {
        bail!("contains {part:?}: iterations have no name (wanted: without contains)");
    }
    let of_process = |(process, one): (usize, &'_ Process)| {
        let iterations = one.windows.iter().flat_map(|window| &window.iterations);
        let row = move |row: &Iteration| Of { process, row: *row };
        iterations.map(row).collect::<Vec<_>>()
    };
    let rows = chosen(report, asked.process)?.flat_map(of_process);
    answer::list(Map::new(), asked.page, rows)
}

pub(crate) fn layer(asked: &Layer, shared: &mut Shared) -> Result<String> {
    let report = shared.reports.get(&asked.of)?;
    let processes: Vec<_> = chosen(&report, asked.process)?.collect();
    if processes
        .iter()
        .all(|(_, process)| process.layers.is_none())
    {
        bail!(
            "layers: the run has none (wanted: a run with --layers, whose kernels were recorded)"
        );
    }
    let name = asked.name.as_deref();
    let has_stars = name.is_none_or(|name| name.contains('*'));
    let rows = processes.iter().flat_map(|(process, one)| {
        let layers = one.layers.iter();
        let patterns = layers.flat_map(move |layers| match has_stars {
            true => &layers.patterns,
            false => &layers.tree,
        });
        patterns.map(move |row| Of {
            process: *process,
            row,
        })
    });
    let rows: Vec<_> = rows
        .filter(|row| name.is_none_or(|name| is_within(row.row, name)))
        .collect();
    match name {
        Some(name) if rows.is_empty() => bail!(
            "name {name:?}: there is no such layer (wanted: a name that layer lists without name, or with numbers in place of *)"
        ),
        _ => answer::list(Map::new(), asked.page, rows.into_iter()),
    }
}

/// Returns true if `layer` is the layer that is called `name`, or lies within that layer.
fn is_within(layer: &GpuLayerPattern, name: &str) -> bool {
    let rest = layer.name.strip_prefix(name);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '/']))
}

pub(crate) fn slow_iterations(asked: &SlowIterations, shared: &mut Shared) -> Result<String> {
    let report = shared.reports.get(&asked.of)?;
    let rows = chosen(&report, asked.process)?.flat_map(|(process, one)| {
        let slowest = one.slowest.iter();
        slowest.map(move |row| Of { process, row })
    });
    answer::list(Map::new(), asked.page, rows)
}
