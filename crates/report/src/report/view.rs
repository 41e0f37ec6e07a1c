//! The JSON form of a process in the report.

use std::slice;

use schemars::JsonSchema;
use serde::Serialize;

use crate::events::iteration::Iteration;
use crate::events::window::Window;
use crate::iterations::sum::Sum;
use crate::ledger::Ledger;
use crate::process::Process;
use crate::ranks::arrivals::CollectiveSum;
use crate::routing::Routing;

/// A process, as its record describes it. Values that are not known are empty or `null`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Process")]
pub(crate) struct ProcessDescription<'a> {
    #[serde(flatten)]
    process: &'a Process,
    /// The share of the time inside windows that tllmprof's recorder itself took on the program's threads; `null` if
    /// there are no windows. Pauses between iterations in which the recording of kernels is switched on or off are not
    /// part of these times.
    #[schemars(extend("unit" = "part of 1"))]
    recorder_share: Option<f64>,
    /// The windows that opened, in the order of their iterations.
    windows: Vec<WindowView<'a>>,
    /// The collectives of the process, found by their recorded kernels and summed by operation and library.
    collectives: Vec<CollectiveSum>,
    /// Load balance of the routers of MoE layers; `null` if it was not recorded.
    routing: Option<Routing<'a>>,
}

/// A window: a range of iterations that were recorded one by one.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Window")]
struct WindowView<'a> {
    #[serde(flatten)]
    window: &'a Window,
    /// The number of iterations between the first and the last that are missing in the record.
    #[schemars(extend("unit" = "iterations"))]
    missing: u64,
    /// The time from the start of the first iteration to the end of the last, without iterations that are missing or do
    /// not qualify; `null` if no iteration qualifies.
    wall_ns: Option<u64>,
    /// The number of qualifying iterations per second of `wall_ns`; `null` if `wall_ns` is 0 or `null`.
    #[schemars(extend("unit" = "1/s"))]
    per_second: Option<f64>,
    /// The time of the window's iterations, divided by cause.
    ledger: &'a Ledger,
    /// The window's iterations, in the order of their starts.
    iterations: &'a [Iteration],
}

impl<'a> ProcessDescription<'a> {
    /// Creates the JSON view of a process. The view includes the single iterations only if `each` is true, because
    /// there may be a million. `ranks` is the number of processes in the report.
    pub(crate) fn new(
        process: &'a Process,
        collectives: Vec<CollectiveSum>,
        each: bool,
        ranks: usize,
    ) -> Self {
        let windows = process.windows.iter().zip(&process.ledger.details.windows);
        let view = |(window, ledger): (&'a Window, &'a Ledger)| {
            let sum = Sum::new(slice::from_ref(window));
            WindowView {
                window,
                missing: window.gaps(),
                wall_ns: sum.as_ref().map(|sum| sum.wall),
                per_second: sum.and_then(|sum| sum.per_second),
                ledger,
                iterations: if each { &window.iterations } else { &[] },
            }
        };
        Self {
            process,
            recorder_share: process.own_share(),
            windows: windows.map(view).collect(),
            collectives,
            routing: Routing::from_loads(&process.experts, &process.facts, ranks),
        }
    }
}
