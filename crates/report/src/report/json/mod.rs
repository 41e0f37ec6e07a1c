//! The report as JSON. These types are its contract: their JSON schema, which `tllmprof report --schema` prints,
//! comes from them, and from that the types of the page's script and `docs/report-json.md`. Doc comments here are the
//! descriptions that users read. A number's unit, where its key does not end with `_ns`, is its `unit`.

mod batch;
mod collectives;
mod gpu;
mod groups;
mod iterations;
mod layers;
mod process;
mod routing;
mod stacks;

use std::io::{self, Write};

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::Report;
use crate::findings::Kind;
use crate::findings::{Finding, Verdict};
use crate::numbers::quantiles::Quantiles;
use crate::print::json::{schema_of, write};
use crate::ranks::skew::{Skew, Step};
use collectives::{JsonCollective, JsonCollectives};
use process::JsonProcess;

impl Report {
    /// Writes the report as JSON, with a line's end.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn json(&self, to: &mut impl Write) -> io::Result<()> {
        write(&JsonReport::of(self, true), to)
    }

    /// The report as it is written as JSON, with lists of iterations left empty: there may be a million.
    #[must_use]
    pub fn summary(&self) -> JsonReport<'_> {
        JsonReport::of(self, false)
    }

    /// The JSON schema of what [`json`](Self::json) writes.
    #[must_use]
    pub fn schema() -> Value {
        schema_of::<JsonReport<'_>>()
    }
}

/// What `tllmprof report --json` prints. Keys that end with `ns` are in nanoseconds; moments are on the clock
/// `CLOCK_MONOTONIC`. Every key is always present; what is not known or was not measured is `null`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Report")]
pub struct JsonReport<'a> {
    /// The processes, in the order of their ranks.
    processes: Vec<JsonProcess<'a>>,
    /// The processes side by side; `null` where no two of them have an iteration in common.
    skew: Option<JsonSkew<'a>>,
    /// What the processes' collectives show together; `null` where no two have any.
    collectives: Option<JsonCollectives<'a>>,
    /// What may make the program slow: what holds first, then what is unknown, then what does not hold; of these causes
    /// first, and of those the greatest loss. Empty where no process has iterations.
    findings: Vec<JsonFinding<'a>>,
}

/// A rule, and whether it holds for these records.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Finding")]
struct JsonFinding<'a> {
    /// The rule's name, such as `launch-bound`.
    rule: &'static str,
    /// What it is about.
    kind: Kind,
    /// Whether it holds.
    verdict: Verdict,
    /// The figures it was judged by, in words.
    evidence: &'a str,
    /// What to do: if it holds, against it; if it is unknown, to know it. Else empty.
    advice: &'a str,
    /// How much of the iterations' time would be gained if it went away; `null` if that is not known. No time counts for two
    /// findings.
    #[schemars(extend("unit" = "part of 1"))]
    loss: Option<f64>,
}

impl<'a> JsonFinding<'a> {
    fn of(finding: &'a Finding) -> Self {
        Self {
            rule: finding.rule.name,
            kind: finding.rule.kind,
            verdict: finding.verdict,
            evidence: &finding.evidence,
            advice: &finding.advice,
            loss: finding.loss,
        }
    }
}

/// Iterations that several processes have, matched by number. Iterations that were cut off do not count.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Skew")]
struct JsonSkew<'a> {
    /// How much longer the slowest process took than the fastest, over these iterations.
    spread: Quantiles,
    /// For each of `processes`: in how many of these iterations it is.
    #[schemars(extend("unit" = "iterations"))]
    common: &'a [u64],
    /// For each of `processes`: in how many of these iterations it took longer than all others.
    #[schemars(extend("unit" = "iterations"))]
    slowest: &'a [u64],
    /// These iterations, in the order of their numbers.
    #[schemars(with = "Vec<JsonStep>")]
    iterations: Steps<'a>,
}

/// Steps, turned one by one: there may be a million.
#[derive(Debug)]
struct Steps<'a>(&'a [Step]);

impl Serialize for Steps<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|step| JsonStep {
            n: step.n,
            slowest: step.slowest,
            fastest: step.fastest,
            dur_ns: step.duration,
            spread_ns: step.spread,
        }))
    }
}

/// An iteration over the processes that have it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "SkewStep")]
struct JsonStep {
    /// The iteration's number.
    n: u64,
    /// The place in `processes` of the process that took longest; where several took as long, of one of them.
    slowest: usize,
    /// The place in `processes` of the process that took shortest.
    fastest: usize,
    /// How long the slowest took.
    dur_ns: u64,
    /// How much longer the slowest took than the fastest.
    spread_ns: u64,
}

impl<'a> JsonReport<'a> {
    fn of(report: &'a Report, each: bool) -> Self {
        let ranks = report.processes.len();
        let arrivals = report.arrivals.as_ref();
        let process = |(place, process)| {
            let collectives = JsonCollective::of(process, place, arrivals);
            JsonProcess::of(process, collectives, each, ranks)
        };
        Self {
            processes: report.processes.iter().enumerate().map(process).collect(),
            collectives: arrivals.map(|arrivals| JsonCollectives::of(arrivals, each)),
            skew: report.skew.as_ref().map(|skew| JsonSkew::of(skew, each)),
            findings: report.findings.iter().map(JsonFinding::of).collect(),
        }
    }
}

impl<'a> JsonSkew<'a> {
    fn of(skew: &'a Skew, each: bool) -> Self {
        Self {
            spread: skew.spread,
            common: &skew.common,
            slowest: &skew.slowest,
            iterations: Steps(if each { &skew.iterations } else { &[] }),
        }
    }
}
