//! The report as JSON. The types of the analyses are its contract: their JSON schema, which `tllmprof report --schema` prints,
//! comes from them, and from that the types of the page's script and `docs/report-json.md`. Doc comments there are the
//! descriptions that users read. A number's unit, where its key does not end with `_ns`, is its `unit`.

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::view::ProcessView;
use super::{Report, ranks};
use crate::findings::Finding;
use crate::print::json::{schema_of, write};
use crate::ranks::arrivals::{ArrivalsView, CollectiveSum};
use crate::ranks::skew::SkewView;

impl Report {
    /// Writes the report as JSON, with a line's end.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn json(&self, to: &mut impl Write) -> io::Result<()> {
        write(&ReportView::of(self, true), to)
    }

    /// The report as it is written as JSON, with lists of iterations left empty: there may be a million.
    #[must_use]
    pub fn summary(&self) -> ReportView<'_> {
        ReportView::of(self, false)
    }

    /// The JSON schema of what [`json`](Self::json) writes.
    #[must_use]
    pub fn schema() -> Value {
        schema_of::<ReportView<'_>>()
    }
}

/// What `tllmprof report --json` prints. Keys that end with `ns` are in nanoseconds; moments are on the clock
/// `CLOCK_MONOTONIC`. Every key is always present; what is not known or was not measured is `null`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Report")]
pub struct ReportView<'a> {
    /// The processes, in the order of their ranks.
    processes: Vec<ProcessView<'a>>,
    /// The processes side by side; `null` where no two of them have an iteration in common.
    skew: Option<SkewView<'a>>,
    /// What the processes' collectives show together; `null` where no two have any.
    collectives: Option<ArrivalsView<'a>>,
    /// What may make the program slow: what holds first, then what is unknown, then what does not hold; of these causes
    /// first, and of those the greatest loss. Empty where no process has iterations.
    findings: &'a [Finding],
}

impl<'a> ReportView<'a> {
    fn of(report: &'a Report, each: bool) -> Self {
        let ranks = ranks(&report.processes);
        let arrivals = report.arrivals.as_ref();
        let view = |(place, process)| {
            let collectives = CollectiveSum::of(&ranks[place], place, arrivals);
            ProcessView::of(process, collectives, each, ranks.len())
        };
        Self {
            processes: report.processes.iter().enumerate().map(view).collect(),
            collectives: arrivals.map(|arrivals| ArrivalsView::of(arrivals, each)),
            skew: report.skew.as_ref().map(|skew| SkewView::of(skew, each)),
            findings: &report.findings,
        }
    }
}
