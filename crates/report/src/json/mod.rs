//! The report as JSON: the fields of the command's interface, and more.

mod gpu;
mod routing;

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde::{Serialize, Serializer};
use tllmprof_record::Ended;

use crate::diagnosis::Kind;
use crate::iteration::Iteration;
use crate::process::{Named, Process};
use crate::quantiles::Quantiles;
use crate::skew::{Skew, Step};
use crate::slow::SlowCause;
use crate::sum::{GpuFrom, Sum};
use crate::window::Window;
use crate::{Finding, Report, Verdict};
use gpu::{JsonCopy, JsonKernel, JsonKernelSum, JsonMetric};
use routing::JsonRouting;

impl Report {
    /// Writes the report as JSON, with a line's end.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn json(&self, to: &mut impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut *to, &JsonReport::of(self, true))?;
        to.write_all(b"\n")
    }

    /// Writes the report as JSON, with lists of iterations left empty: there may be a million.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn summary(&self, to: &mut impl Write) -> io::Result<()> {
        Ok(serde_json::to_writer(to, &JsonReport::of(self, false))?)
    }
}

#[derive(Serialize)]
struct JsonReport<'a> {
    processes: Vec<JsonProcess<'a>>,
    skew: Option<JsonSkew<'a>>,
    findings: Vec<JsonFinding<'a>>,
}

#[derive(Serialize)]
struct JsonFinding<'a> {
    rule: &'static str,
    kind: Kind,
    verdict: Verdict,
    evidence: &'a str,
    advice: &'a str,
    /// The part of the iterations' time that is lost to it; `null`: that cannot be told.
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

#[derive(Serialize)]
struct JsonProcess<'a> {
    file: String,
    pid: u32,
    parent: u32,
    host: &'a str,
    rank: u64,
    command: &'a str,
    name: &'a str,
    rule: &'a str,
    rule_why: &'a str,
    engine: &'a str,
    library: &'a str,
    python: &'a str,
    gpus: &'a [String],
    cuda_driver: Option<u64>,
    /// How the process ended.
    ended: &'static str,
    /// `null`: the clock is sure.
    clock_tied_ns: Option<u64>,
    /// What to add to moments for nanoseconds since 1970.
    unix_minus_monotonic_ns: i64,
    windows_asked: &'a str,
    windows: Vec<JsonWindow<'a>>,
    inside: Option<JsonSum>,
    outside: JsonOutside,
    slowest: Vec<JsonSlow<'a>>,
    calls: Vec<JsonNamed<'a>>,
    calls_counted: Vec<JsonCounted<'a>>,
    gc: Vec<JsonNamed<'a>>,
    gc_collected: u64,
    gil_wait: JsonNamed<'a>,
    gil_hold: JsonNamed<'a>,
    gil_forced: u64,
    gil_handoffs: u64,
    functions: Vec<JsonNamed<'a>>,
    ranges: Vec<JsonNamed<'a>>,
    kernels: Vec<JsonKernel<'a>>,
    copies: Vec<JsonCopy<'a>>,
    /// The iterations in which kernels were taken; `null`: none were.
    kernel_window: Option<JsonKernelSum>,
    gpu_metrics: Vec<JsonMetric>,
    /// How unbalanced the learned routers of experts are; `null`: that was not counted.
    routing: Option<JsonRouting<'a>>,
    threads: Vec<JsonThread<'a>>,
    settings: &'a [String],
    refused: &'a [String],
    events: u64,
    dropped: u64,
    own_cost_ns: u64,
    gpu_times_lost: u64,
    /// What was wrong with the file; `null`: nothing.
    damage: Option<String>,
    /// Things that were too many for this report.
    left_out: u64,
}

#[derive(Serialize)]
struct JsonWindow<'a> {
    first: u64,
    last: u64,
    closed: bool,
    cut: bool,
    iterations: Iterations<'a>,
}

/// Iterations, turned one by one: there may be a million.
struct Iterations<'a>(&'a [Iteration]);

impl Serialize for Iterations<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(JsonIteration::of))
    }
}

#[derive(Serialize)]
struct JsonIteration {
    n: u64,
    start_ns: u64,
    dur_ns: u64,
    gpu_ns: Option<u64>,
    thread: u32,
    launches: u32,
    calls: u32,
    wait_ns: u64,
    gil_wait_ns: u64,
    gc_ns: u64,
    kernels: u32,
    gpu_busy_ns: Option<u64>,
    cut: bool,
}

#[derive(Serialize)]
struct JsonSum {
    iterations: u64,
    per_second: Option<f64>,
    wall_ns: u64,
    time: Quantiles,
    gpu: Option<Quantiles>,
    /// What GPU time is of: iterations without kernels taken, those with, or the kernels themselves.
    gpu_from: &'static str,
    gpu_share: Option<f64>,
    with_kernels: Option<Quantiles>,
    without_kernels: Option<Quantiles>,
    wait: Quantiles,
    wait_share: f64,
    gil_wait_share: f64,
    gc_share: f64,
    launches: f64,
    calls: f64,
}

#[derive(Serialize)]
struct JsonOutside {
    iterations: u64,
    p50_ns: Option<u64>,
    p90_ns: Option<u64>,
    p99_ns: Option<u64>,
    max_ns: Option<u64>,
}

#[derive(Serialize)]
struct JsonSlow<'a> {
    n: u64,
    start_ns: u64,
    dur_ns: u64,
    overlaps: Vec<JsonCause<'a>>,
}

#[derive(Serialize)]
struct JsonCause<'a> {
    kind: &'static str,
    name: &'a str,
    count: u64,
    ns: u64,
    usual_ns: u64,
}

#[derive(Serialize)]
struct JsonNamed<'a> {
    name: &'a str,
    count: u64,
    total_ns: u64,
    max_ns: u64,
}

#[derive(Serialize)]
struct JsonCounted<'a> {
    name: &'a str,
    inside: u64,
    outside: u64,
}

#[derive(Serialize)]
struct JsonThread<'a> {
    tid: u32,
    name: Option<&'a str>,
    gil_hold_ns: u64,
}

#[derive(Serialize)]
struct JsonSkew<'a> {
    spread: Quantiles,
    /// Of the processes, in their order.
    slowest: &'a [u64],
    iterations: Steps<'a>,
}

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

#[derive(Serialize)]
struct JsonStep {
    n: u64,
    /// Places in `processes`.
    slowest: usize,
    fastest: usize,
    dur_ns: u64,
    spread_ns: u64,
}

impl<'a> JsonReport<'a> {
    fn of(report: &'a Report, each: bool) -> Self {
        let ranks = report.processes.len();
        let process = |process| JsonProcess::of(process, each, ranks);
        Self {
            processes: report.processes.iter().map(process).collect(),
            skew: report.skew.as_ref().map(|skew| JsonSkew::of(skew, each)),
            findings: report.findings.iter().map(JsonFinding::of).collect(),
        }
    }
}

impl<'a> JsonProcess<'a> {
    fn of(process: &'a Process, each: bool, ranks: usize) -> Self {
        let window = |window| JsonWindow::of(window, each);
        let facts = &process.facts;
        Self {
            file: process.file.display().to_string(),
            pid: process.pid,
            parent: process.parent,
            host: &facts.host,
            rank: facts.rank,
            command: &facts.command,
            name: &facts.process,
            rule: &facts.rule,
            rule_why: &facts.rule_why,
            engine: &facts.engine,
            library: &facts.library,
            python: &facts.python,
            gpus: &facts.gpus,
            cuda_driver: facts.cuda_driver,
            ended: ended(process.ended),
            clock_tied_ns: process.tied_briefly,
            unix_minus_monotonic_ns: process.unix_minus_monotonic,
            windows_asked: &facts.windows,
            windows: process.windows.iter().map(window).collect(),
            inside: process.sum.as_ref().map(JsonSum::of),
            outside: JsonOutside {
                iterations: process.outside.iterations,
                p50_ns: process.outside.p50,
                p90_ns: process.outside.p90,
                p99_ns: process.outside.p99,
                max_ns: process.outside.max,
            },
            slowest: process
                .slowest
                .iter()
                .map(|slow| JsonSlow {
                    n: slow.n,
                    start_ns: slow.start,
                    dur_ns: slow.duration,
                    overlaps: slow.causes.iter().map(JsonCause::of).collect(),
                })
                .collect(),
            calls: process.calls.iter().map(JsonNamed::of).collect(),
            calls_counted: facts
                .calls
                .iter()
                .map(|row| JsonCounted {
                    name: &row.name,
                    inside: row.inside,
                    outside: row.outside,
                })
                .collect(),
            gc: process.gc.iter().map(JsonNamed::of).collect(),
            gc_collected: process.collected,
            gil_wait: JsonNamed::of(&process.gil_wait),
            gil_hold: JsonNamed::of(&process.gil_hold),
            gil_forced: process.gil_forced,
            gil_handoffs: process.gil_handoffs,
            functions: process.functions.iter().map(JsonNamed::of).collect(),
            ranges: process.ranges.iter().map(JsonNamed::of).collect(),
            kernels: process.kernels.iter().map(JsonKernel::of).collect(),
            copies: process.copies.iter().map(JsonCopy::of).collect(),
            kernel_window: process.kernel_window.as_ref().map(JsonKernelSum::of),
            gpu_metrics: process.metrics.iter().map(JsonMetric::of).collect(),
            routing: JsonRouting::of(&process.experts, facts, ranks),
            threads: threads(process),
            settings: &facts.settings,
            refused: &facts.refused,
            events: process.events,
            dropped: process.dropped,
            own_cost_ns: process.own_cost,
            gpu_times_lost: process.gpu_lost,
            damage: (!process.damage.is_none()).then(|| process.damage.to_string()),
            left_out: process.left_out,
        }
    }
}

/// The threads that have a name or held the GIL.
fn threads(process: &Process) -> Vec<JsonThread<'_>> {
    let names = &process.facts.threads;
    let tids: BTreeSet<_> = names.keys().chain(process.holds.keys()).collect();
    let thread = |tid: &u32| JsonThread {
        tid: *tid,
        name: names.get(tid).map(String::as_str),
        gil_hold_ns: process.holds.get(tid).copied().unwrap_or(0),
    };
    tids.into_iter().map(thread).collect()
}

/// How a process ended, in a word.
pub const fn ended(ended: Option<Ended>) -> &'static str {
    match ended {
        Some(Ended::Not) => "not",
        Some(Ended::InOrder) => "in order",
        Some(Ended::AtOnce) => "at once",
        None => "?",
    }
}

impl<'a> JsonWindow<'a> {
    fn of(window: &'a Window, each: bool) -> Self {
        Self {
            first: window.first,
            last: window.last,
            closed: window.closed,
            cut: window.cut,
            iterations: Iterations(if each { &window.iterations } else { &[] }),
        }
    }
}

impl JsonIteration {
    const fn of(iteration: &Iteration) -> Self {
        Self {
            n: iteration.n,
            start_ns: iteration.start,
            dur_ns: iteration.duration,
            gpu_ns: iteration.gpu,
            thread: iteration.thread,
            launches: iteration.launches,
            calls: iteration.calls,
            wait_ns: iteration.wait,
            gil_wait_ns: iteration.gil_wait,
            gc_ns: iteration.gc,
            kernels: iteration.kernels,
            gpu_busy_ns: iteration.gpu_busy,
            cut: iteration.cut,
        }
    }
}

impl JsonSum {
    fn of(sum: &Sum) -> Self {
        Self {
            iterations: sum.iterations,
            per_second: sum.rate(),
            wall_ns: sum.wall,
            time: sum.time,
            gpu: sum.gpu,
            gpu_from: match sum.gpu_from {
                GpuFrom::Plain => "events",
                GpuFrom::Stretched => "events in kernel windows",
                GpuFrom::Kernels => "kernels",
            },
            gpu_share: sum.gpu_share,
            with_kernels: sum.with_kernels,
            without_kernels: sum.without_kernels,
            wait: sum.wait,
            wait_share: sum.share(sum.wait_total),
            gil_wait_share: sum.share(sum.gil_wait_total),
            gc_share: sum.share(sum.gc_total),
            launches: sum.launches,
            calls: sum.calls,
        }
    }
}

impl<'a> JsonCause<'a> {
    fn of(cause: &'a SlowCause) -> Self {
        Self {
            kind: cause.kind,
            name: &cause.name,
            count: cause.count,
            ns: cause.time,
            usual_ns: cause.usual,
        }
    }
}

impl<'a> JsonNamed<'a> {
    fn of(named: &'a Named) -> Self {
        Self {
            name: &named.name,
            count: named.count,
            total_ns: named.total,
            max_ns: named.longest,
        }
    }
}

impl<'a> JsonSkew<'a> {
    fn of(skew: &'a Skew, each: bool) -> Self {
        Self {
            spread: skew.spread,
            slowest: &skew.slowest,
            iterations: Steps(if each { &skew.iterations } else { &[] }),
        }
    }
}
