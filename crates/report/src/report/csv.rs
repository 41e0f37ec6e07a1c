//! The report's tables as CSV. All tables have the same columns, and their figures are the same as
//! in the JSON output.

use std::io::{self, Write};

use serde::Serialize;

use super::Report;
use crate::events::named::Named;
use crate::findings::{Finding, Verdict};
use crate::ledger::LedgerRow;
use crate::numbers::quantiles::Quantiles;
use crate::process::Process;

/// The names of all tables in the CSV output.
pub const TABLES: [&str; 12] = [
    "findings",
    "findings: unknown",
    "findings: no",
    "times",
    "host",
    "gpu",
    "calls",
    "functions",
    "ranges",
    "kernels",
    "copies",
    "layers",
];

/// A row of any of the report's tables. A column is empty if the table does not have it, or if the
/// value was not measured.
#[derive(Serialize, Default)]
pub struct CsvRow<'a> {
    /// The index of the process that the row is about; empty if the row is about all processes.
    pub process: Option<usize>,
    rank: Option<u64>,
    pub table: &'static str,
    pub name: &'a str,
    count: Option<u64>,
    total_ns: Option<u64>,
    mean_ns: Option<u64>,
    p50_ns: Option<u64>,
    max_ns: Option<u64>,
    bytes: Option<u64>,
    /// The loss of a finding, or a row's part of a total time, as a fraction.
    share: Option<f64>,
    text: Option<&'a str>,
}

impl Report {
    /// Writes the report's tables as CSV, with a header line.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn csv(&self, to: &mut impl Write) -> io::Result<()> {
        let mut to = csv::Writer::from_writer(to);
        for row in self.rows() {
            to.serialize(row)?;
        }
        to.flush()
    }

    /// Returns the rows of all tables: first those of the findings, then those of each process.
    pub fn rows(&self) -> impl Iterator<Item = CsvRow<'_>> {
        let processes = self.processes.iter().enumerate();
        let findings = self.findings.iter().map(of_finding);
        findings.chain(processes.flat_map(|(place, process)| of_process(place, process)))
    }
}

fn of_process(place: usize, process: &Process) -> impl Iterator<Item = CsvRow<'_>> {
    let rank = Some(process.facts.rank);
    rows(process).into_iter().map(move |row| CsvRow {
        process: Some(place),
        rank,
        ..row
    })
}

fn of_finding(finding: &Finding) -> CsvRow<'_> {
    CsvRow {
        table: match finding.verdict {
            Verdict::Yes => "findings",
            Verdict::No => "findings: no",
            Verdict::Unknown => "findings: unknown",
        },
        name: finding.rule.name,
        share: finding.loss,
        text: Some(&finding.evidence),
        ..CsvRow::default()
    }
}

/// Returns the rows about a process, from all tables.
fn rows(process: &Process) -> Vec<CsvRow<'_>> {
    let mut rows = times(process);
    for (table, ledger) in [("host", &process.ledger.host), ("gpu", &process.ledger.gpu)] {
        rows.extend(ledger.iter().map(|row| of_ledger(table, row)));
    }
    let calls = &process.calls;
    for (table, of) in [
        ("calls", &calls.calls),
        ("functions", &calls.functions),
        ("ranges", &calls.ranges),
    ] {
        rows.extend(of.iter().map(|row| of_named(table, row)));
    }
    let kernels = &process.kernels;
    rows.extend(kernels.totals.iter().map(|kernel| CsvRow {
        table: "kernels",
        name: &kernel.name,
        count: Some(kernel.count),
        total_ns: known(kernel.total),
        mean_ns: known(kernel.mean()),
        max_ns: known(kernel.longest),
        share: known(kernel.total).map(|_| kernels.share(kernel)),
        ..CsvRow::default()
    }));
    rows.extend(kernels.copies.iter().map(|copy| CsvRow {
        table: "copies",
        name: &copy.kind,
        count: Some(copy.count),
        total_ns: known(copy.total),
        bytes: Some(copy.bytes),
        ..CsvRow::default()
    }));
    rows.extend(
        process
            .layers
            .iter()
            .flat_map(|layers| &layers.rows)
            .map(|layer| CsvRow {
                table: "layers",
                name: &layer.name,
                count: Some(layer.kernels),
                total_ns: Some(layer.ns),
                share: Some(layer.share),
                ..CsvRow::default()
            }),
    );
    rows
}

/// Returns the rows about a process's iteration times.
fn times(process: &Process) -> Vec<CsvRow<'_>> {
    let Some(sum) = &process.sum else {
        return Vec::new();
    };
    let row = |name, count, times: &Quantiles, share| CsvRow {
        table: "times",
        name,
        count: Some(count),
        mean_ns: Some(times.mean),
        p50_ns: Some(times.p50),
        max_ns: Some(times.max),
        share,
        ..CsvRow::default()
    };
    let mut rows = vec![row("iteration", sum.iterations, &sum.time, None)];
    let span = sum.gpu.as_ref();
    rows.extend(span.map(|span| row("GPU span", sum.gpu_iterations, span, sum.gpu_share)));
    let busy = sum.gpu_busy.as_ref().zip(process.kernels.window.as_ref());
    rows.extend(
        busy.map(|(busy, window)| row("GPU busy", window.iterations, busy, process.gpu.share)),
    );
    rows.push(row(
        "waits for the GPU",
        sum.host_iterations,
        &sum.wait,
        Some(sum.wait_share),
    ));
    rows
}

fn of_ledger<'a>(table: &'static str, row: &'a LedgerRow) -> CsvRow<'a> {
    CsvRow {
        table,
        name: &row.cause,
        total_ns: Some(row.ns),
        share: Some(row.share),
        ..CsvRow::default()
    }
}

fn of_named<'a>(table: &'static str, row: &'a Named) -> CsvRow<'a> {
    CsvRow {
        table,
        name: &row.name,
        count: Some(row.count),
        total_ns: Some(row.total),
        mean_ns: Some(row.mean()),
        max_ns: Some(row.longest),
        ..CsvRow::default()
    }
}

/// Returns a GPU time in nanoseconds. A time of 0 becomes `None`, because it means that the driver
/// did not report the time.
fn known(ns: u64) -> Option<u64> {
    Some(ns).filter(|ns| *ns > 0)
}
