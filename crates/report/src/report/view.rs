//! A process as JSON.

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

/// A process, as described by its record. Values that are not known are empty or `null`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Process")]
pub struct ProcessView<'a> {
    #[serde(flatten)]
    process: &'a Process,
    /// The share of the recorder's own work, on the program's threads, in the time of windows; `null` if there are no
    /// windows.
    #[schemars(extend("unit" = "part of 1"))]
    recorder_share: Option<f64>,
    /// The windows that opened, in the order of their iterations.
    windows: Vec<WindowView<'a>>,
    /// The collectives of the process, by the kernels that were recorded.
    collectives: Vec<CollectiveSum>,
    /// Load balance of the learned routers of MoE layers; `null` if it was not recorded.
    routing: Option<Routing<'a>>,
}

/// A window: the iterations that were recorded one by one.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Window")]
struct WindowView<'a> {
    #[serde(flatten)]
    window: &'a Window,
    /// The number of missing iterations between the first and the last.
    #[schemars(extend("unit" = "iterations"))]
    missing: u64,
    /// The time from the start of its first iteration to the end of the last, without iterations that are missing or do
    /// not qualify; `null` if there are none.
    wall_ns: Option<u64>,
    /// Iterations per second; `null` if they took no time.
    #[schemars(extend("unit" = "1/s"))]
    per_second: Option<f64>,
    /// The time of its iterations, divided by cause.
    ledger: &'a Ledger,
    /// Its iterations, in the order of their starts.
    iterations: &'a [Iteration],
}

impl<'a> ProcessView<'a> {
    /// Creates the JSON view of a process. It includes the single iterations only if `each` is true, because there may
    /// be a million. `ranks` is the number of processes in the report.
    pub fn new(
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
