//! A process as JSON.

use schemars::JsonSchema;
use serde::Serialize;

use crate::events::iteration::Iteration;
use crate::events::window::Window;
use crate::ledger::Ledger;
use crate::process::Process;
use crate::ranks::arrivals::CollectiveSum;
use crate::routing::Routing;

/// A process: what its record says. What is not known is empty or `null`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Process")]
pub struct ProcessView<'a> {
    #[serde(flatten)]
    process: &'a Process,
    /// The windows that opened, in the order of their iterations.
    windows: Vec<WindowView<'a>>,
    /// What it does together with other ranks, by the kernels that were recorded.
    collectives: Vec<CollectiveSum>,
    /// How unevenly the learned routers of MoE layers chose experts; `null`: that was not recorded.
    routing: Option<Routing<'a>>,
}

/// A window: the iterations that were recorded one by one.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Window")]
struct WindowView<'a> {
    #[serde(flatten)]
    window: &'a Window,
    /// How many iterations between those are missing.
    #[schemars(extend("unit" = "iterations"))]
    missing: u64,
    /// Where the time of its iterations goes, by cause.
    ledger: &'a Ledger,
    /// Its iterations, in the order of their starts.
    iterations: &'a [Iteration],
}

impl<'a> ProcessView<'a> {
    /// With its iterations if `each` says so: there may be a million. `ranks`: how many processes there are.
    pub fn of(
        process: &'a Process,
        collectives: Vec<CollectiveSum>,
        each: bool,
        ranks: usize,
    ) -> Self {
        let windows = process.windows.iter().zip(&process.details.windows);
        let view = |(window, ledger): (&'a Window, &'a Ledger)| WindowView {
            window,
            missing: window.gaps(),
            ledger,
            iterations: if each { &window.iterations } else { &[] },
        };
        Self {
            process,
            windows: windows.map(view).collect(),
            collectives,
            routing: Routing::of(&process.experts, &process.facts, ranks),
        }
    }
}
