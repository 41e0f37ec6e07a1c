//! Sampled stacks as JSON.

use schemars::JsonSchema;
use serde::Serialize;

use crate::events::samples::{ENOUGH, SampleCounts};
use crate::stacks::{FunctionSamples, Stacks, TreeNode};

/// Samples of the stacks of the threads that make iterations. Those count that were taken in iterations which `host` of
/// the ledger is of, but for those taken while the thread waited for requests.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Stacks")]
pub struct JsonStacks<'a> {
    /// How often samples were to be taken; `null`: not known.
    #[schemars(extend("unit" = "Hz"))]
    rate: Option<u64>,
    /// The mean time between samples in iterations; `null`: there are none.
    interval_ns: Option<u64>,
    /// How many there are.
    counts: SampleCounts,
    /// How much of the samples was rejected.
    #[schemars(extend("unit" = "part of 1"))]
    rejected_share: f64,
    /// From how many samples on functions are distinguished.
    #[schemars(extend("unit" = "samples"))]
    enough: u64,
    /// Whether the ledger distinguishes functions by them.
    told_apart: bool,
    /// For each of `windows`: how many there are.
    windows: &'a [SampleCounts],
    /// Functions by how often they were the innermost one, the greatest first: up to 32.
    functions: &'a [FunctionSamples],
    /// Who called whom. Callers come before what they call; what is under 0.1 % of the samples is left out.
    tree: &'a [TreeNode],
    /// The same of native stacks.
    native_tree: &'a [TreeNode],
}

impl<'a> JsonStacks<'a> {
    /// `None` where nothing was sampled.
    pub fn of(stacks: &'a Stacks) -> Option<Self> {
        stacks.is_there().then(|| Self {
            rate: stacks.rate,
            interval_ns: stacks.interval,
            counts: stacks.counts,
            rejected_share: stacks.counts.rejected_share(),
            enough: ENOUGH,
            told_apart: stacks.counts.enough(),
            windows: &stacks.windows,
            functions: &stacks.functions,
            tree: &stacks.python,
            native_tree: &stacks.native,
        })
    }
}
