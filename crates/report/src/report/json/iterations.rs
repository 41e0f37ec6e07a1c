//! The windows of a process and their iterations, as JSON.

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::batch::JsonBatch;
use crate::events::iteration::GpuFrom;
use crate::events::iteration::Iteration;
use crate::events::window::Window;
use crate::iterations::sum::Sum;
use crate::ledger::{Ledger, LedgerKind};
use crate::numbers::quantiles::Quantiles;
use crate::process::Outside;

/// A window: the iterations that were recorded one by one.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Window")]
pub struct JsonWindow<'a> {
    /// The number of its first iteration.
    first: u64,
    /// The number of its last iteration.
    last: u64,
    /// How many iterations between those are missing.
    #[schemars(extend("unit" = "iterations"))]
    missing: u64,
    /// Whether it was closed.
    closed: bool,
    /// Whether something other than its last iteration closed it, such as the end of the process.
    cut: bool,
    /// Whether the flight recorder had kept its iterations: those before a window, or before the end of the process.
    past: bool,
    /// Where the time of its iterations goes, by cause.
    ledger: &'a Ledger,
    /// Its iterations, in the order of their starts.
    #[schemars(with = "Vec<JsonIteration>")]
    iterations: Iterations<'a>,
}

/// Iterations, turned one by one: there may be a million.
#[derive(Debug)]
struct Iterations<'a>(&'a [Iteration]);

impl Serialize for Iterations<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(JsonIteration::of))
    }
}

/// An iteration.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Iteration")]
struct JsonIteration {
    /// Its number, counted from 0.
    n: u64,
    /// When it began.
    start_ns: u64,
    /// How long it took.
    dur_ns: u64,
    /// How long the GPU was busy for it; `null`: not measured.
    gpu_ns: Option<u64>,
    /// The ID of the thread that ended it.
    thread: u32,
    /// Launches of kernels and graphs during it, on all threads.
    #[schemars(extend("unit" = "launches"))]
    launches: u32,
    /// CUDA calls during it, on all threads.
    #[schemars(extend("unit" = "calls"))]
    calls: u32,
    /// How long its thread waited in CUDA calls for the GPU to work.
    wait_ns: u64,
    /// How long its thread was blocked waiting for requests: in a function in which a known engine does, or in a call that
    /// waits for a GPU that was given nothing to do. It is part of `dur_ns`, and of no percentile and no finding.
    idle_ns: u64,
    /// How long its thread waited for the GIL.
    gil_wait_ns: u64,
    /// How long garbage collections of Python took during it, on all threads.
    gc_ns: u64,
    /// How long its thread was on a processor; `null`: not known.
    processor_ns: Option<u64>,
    /// How long its thread could have run and had no processor, where another thread was given its own; `null`: not known.
    delayed_ns: Option<u64>,
    /// Page faults of its thread, and those of up to seven iterations before it that took no longer than others, in which the
    /// thread was on a processor; `null`: not known.
    #[schemars(extend("unit" = "page faults"))]
    page_faults: Option<u32>,
    /// Kernels that began during it; 0 where kernels were not recorded.
    #[schemars(extend("unit" = "kernels"))]
    kernels: u32,
    /// How long at least one kernel or copy ran during it, of the device where that is longest; `null`: kernels were
    /// not recorded. Recording them makes an iteration longer.
    gpu_busy_ns: Option<u64>,
    /// What was in its batch, by the arguments of the engine's step function; `null`: not known.
    batch: Option<JsonBatch>,
    /// Whether figures of windows include it: `unqualified` says which ones they do not.
    qualifies: bool,
    /// Whether something other than its own end ended it.
    cut: bool,
}

/// Iterations, one after the other.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Sum")]
pub struct JsonSum {
    /// How many there are.
    #[schemars(extend("unit" = "iterations"))]
    iterations: u64,
    /// Iterations in a second; `null`: they took no time.
    #[schemars(extend("unit" = "1/s"))]
    per_second: Option<f64>,
    /// The time from the first one's start to the last one's end, summed over windows, without iterations that are missing or
    /// do not qualify.
    wall_ns: u64,
    /// How long they took, without waiting for requests.
    time: Quantiles,
    /// Of how many iterations `idle`, `wait` and `wait_share` are: those without kernels, where there are such, as recording
    /// kernels makes iterations longer.
    #[schemars(extend("unit" = "iterations"))]
    host_iterations: u64,
    /// How long their threads waited for requests.
    idle: Quantiles,
    /// How long the GPU was busy in those iterations that `gpu_from` names; `null`: not measured.
    gpu: Option<Quantiles>,
    /// What the GPU's time was measured by, and in which iterations.
    gpu_from: GpuFrom,
    /// Of how many iterations `gpu` and `gpu_share` are.
    #[schemars(extend("unit" = "iterations"))]
    gpu_iterations: u64,
    /// How much of the time of those iterations the GPU was busy; `null`: not measured.
    #[schemars(extend("unit" = "part of 1"))]
    gpu_share: Option<f64>,
    /// How long those took in which kernels were recorded, which makes them longer; `null`: there are none.
    with_kernels: Option<Quantiles>,
    /// How long those took in which kernels were not recorded; `null`: there are none.
    without_kernels: Option<Quantiles>,
    /// How long the iteration's thread waited for the GPU in CUDA calls.
    wait: Quantiles,
    /// How much of the time of these iterations that is.
    #[schemars(extend("unit" = "part of 1"))]
    wait_share: f64,
    /// How much of the time of all iterations, without waiting for requests, their threads waited for the GIL.
    #[schemars(extend("unit" = "part of 1"))]
    gil_wait_share: f64,
    /// How much of the same time Python's garbage collections took, on all threads.
    #[schemars(extend("unit" = "part of 1"))]
    gc_share: f64,
    /// Launches of kernels and graphs, on all threads.
    #[schemars(extend("unit" = "launches per iteration"))]
    launches: f64,
    /// CUDA calls, on all threads.
    #[schemars(extend("unit" = "calls per iteration"))]
    calls: f64,
}

/// Iterations outside windows: a histogram, exact to 1.6 %.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Outside")]
pub struct JsonOutside {
    /// How many there are.
    #[schemars(extend("unit" = "iterations"))]
    iterations: u64,
    /// The median; `null`: there are none.
    p50_ns: Option<u64>,
    /// The 90th percentile; `null`: there are none.
    p90_ns: Option<u64>,
    /// The 99th percentile; `null`: there are none.
    p99_ns: Option<u64>,
    /// The longest; `null`: there are none.
    max_ns: Option<u64>,
}

impl<'a> JsonWindow<'a> {
    pub fn of(window: &'a Window, ledger: &'a Ledger, each: bool) -> Self {
        Self {
            first: window.first,
            last: window.last,
            missing: window.gaps(),
            closed: window.closed,
            cut: window.cut,
            past: window.past,
            ledger,
            iterations: Iterations(if each { &window.iterations } else { &[] }),
        }
    }
}

impl JsonIteration {
    fn of(iteration: &Iteration) -> Self {
        Self {
            n: iteration.n,
            start_ns: iteration.start,
            dur_ns: iteration.duration,
            gpu_ns: iteration.gpu,
            thread: iteration.thread,
            launches: iteration.launches,
            calls: iteration.calls,
            wait_ns: iteration.wait,
            idle_ns: iteration.idle,
            gil_wait_ns: iteration.gil_wait,
            gc_ns: iteration.gc,
            processor_ns: iteration.used.map(|used| used.ran),
            delayed_ns: iteration.used.map(|used| used.delayed),
            page_faults: iteration.used.map(|used| used.faults),
            kernels: iteration.kernels,
            gpu_busy_ns: iteration.gpu_busy,
            batch: JsonBatch::of(iteration.batch),
            qualifies: iteration.qualifies(),
            cut: iteration.cut,
        }
    }
}

impl JsonSum {
    pub fn of(sum: &Sum, ledger: &Ledger) -> Self {
        Self {
            iterations: sum.iterations,
            per_second: sum.rate(),
            wall_ns: sum.wall,
            time: sum.time,
            host_iterations: sum.host_iterations,
            idle: sum.idle,
            gpu: sum.gpu,
            gpu_from: sum.gpu_from,
            gpu_iterations: sum.gpu_iterations,
            gpu_share: sum.gpu_share,
            with_kernels: sum.with_kernels,
            without_kernels: sum.without_kernels,
            wait: sum.wait,
            wait_share: ledger.host_share(LedgerKind::Wait),
            gil_wait_share: sum.share(sum.gil_wait_total),
            gc_share: sum.share(sum.gc_total),
            launches: sum.launches,
            calls: sum.calls,
        }
    }
}

impl JsonOutside {
    pub fn of(outside: &Outside) -> Self {
        Self {
            iterations: outside.iterations,
            p50_ns: outside.p50,
            p90_ns: outside.p90,
            p99_ns: outside.p99,
            max_ns: outside.max,
        }
    }
}
