//! The report as JSON. The JSON schema, which `tllmprof report --schema` prints, is derived from the types of the
//! analyses. `docs/report-json.md` and the types of the HTML page's script are generated from that schema, so the doc
//! comments of these types are written for users. For a number whose key does not end with `_ns`, the schema states the
//! unit as `unit`.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::view::ProcessDescription;
use super::{Report, ranks};
use crate::findings::Finding;
use crate::print::json::{schema_of, write};
use crate::ranks::arrivals::{ArrivalsView, CollectiveSum};
use crate::ranks::skew::SkewView;

impl Report {
    /// Writes the report as JSON, followed by a newline.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn json(&self, to: &mut impl Write) -> io::Result<()> {
        write(&ReportView::new(self, true), to)
    }

    /// Returns the report in the form that is written as JSON, but with empty lists of iterations,
    /// because there may be a million.
    #[must_use]
    pub fn summary(&self) -> ReportView<'_> {
        ReportView::new(self, false)
    }

    /// Returns the JSON schema of the report that [`json`](Self::json) writes.
    #[must_use]
    pub fn schema() -> Value {
        schema_of::<ReportView<'_>>()
    }
}

/// The output of `tllmprof report --json`. Keys that end with `ns` are in nanoseconds. Times are on the clock
/// `CLOCK_MONOTONIC`. Every key is always present. A value that is not known or was not measured is `null`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Report")]
pub struct ReportView<'a> {
    /// The processes, in the order of their ranks.
    processes: Vec<ProcessDescription<'a>>,
    /// A comparison of the durations of iterations between processes; `null` if no two processes have an iteration in
    /// common.
    skew: Option<SkewView<'a>>,
    /// A comparison of the collectives of all processes; `null` if fewer than two processes have collectives.
    collectives: Option<ArrivalsView<'a>>,
    /// The findings about the duration of iterations. Some findings are causes of lost time, others are limits of the
    /// speed, consequences of causes, or notes on facts that are not faults (see `kind`). Findings that hold come
    /// first, then findings that could not be checked, then findings that do not hold. Within each of these groups,
    /// causes come first, and the cause with the greatest loss is the first of them. Empty if no process has
    /// iterations.
    findings: &'a [Finding],
}

impl<'a> ReportView<'a> {
    fn new(report: &'a Report, each: bool) -> Self {
        let ranks = ranks(&report.processes);
        let arrivals = report.arrivals.as_ref();
        let view = |(place, process)| {
            let collectives = CollectiveSum::of_process(&ranks[place], place, arrivals);
            ProcessDescription::new(process, collectives, each, ranks.len())
        };
        Self {
            processes: report.processes.iter().enumerate().map(view).collect(),
            collectives: arrivals.map(|arrivals| ArrivalsView::new(arrivals, each)),
            skew: report.skew.as_ref().map(|skew| SkewView::new(skew, each)),
            findings: &report.findings,
        }
    }
}
