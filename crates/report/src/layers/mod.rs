//! GPU time by layer. The layer of a recorded kernel is the scope in which it was launched: the
//! torch modules, NVTX ranges and marked functions that were open at that time.
//!
//! A kernel of a CUDA graph belongs to the scope in which its node was captured. A kernel outside
//! graphs belongs to the scope of the call that launched it. If a scope is unknown, the reason is
//! reported.

pub(crate) mod compare;
mod gaps;
mod graphs;
mod names;
mod raw;
mod scopes;
mod tally;
pub(crate) mod text;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_record::GraphState;

pub(crate) use graphs::GraphRun;
pub use names::GpuLayerPattern;
use names::parent;
pub(crate) use names::starred;
pub(crate) use raw::RawLayers;
pub use scopes::Scopes;
pub(crate) use tally::LayerTally;

/// Maximum number of rows in [`Layers::tree`], which has one row for each layer. If there are more layers, the rows
/// with the longest times are kept.
const MAX_TREE_ROWS: usize = 4096;

/// GPU time by layer. A kernel's layer is the scope that was open when the kernel was launched: torch modules, NVTX
/// ranges and marked functions.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Layers {
    /// The recorded kernels, summed by the layer that launched them; empty unless layers were recorded (`--layers`).
    /// The layer with the longest total time comes first.
    #[serde(rename = "layers")]
    pub rows: Vec<Layer>,
    /// The layers as a tree. Layers whose names differ only in numbers are one row, with `*` for each number. A row
    /// includes the layers within it. A parent comes before its children, and the child with the longest time is the
    /// first child.
    #[serde(rename = "layer_patterns")]
    pub patterns: Vec<GpuLayerPattern>,
    /// The layers as a tree, with one row for each layer under its whole name. A row includes the layers within it. At
    /// most the 4096 rows with the longest time are listed.
    #[serde(rename = "layer_tree")]
    pub tree: Vec<GpuLayerPattern>,
    /// The kernels whose layer is not known, by reason.
    #[serde(rename = "layers_unknown")]
    pub unknown: Vec<Unknown>,
    /// Totals of all kernels.
    #[serde(skip)]
    pub all: LayerTotals,
    /// The launches of CUDA graphs whose call and graph are known, in the order of their calls. Empty if another
    /// profiler recorded the process.
    #[serde(skip)]
    pub(crate) graph_runs: Vec<GraphRun>,
    /// Tables to look up the scope of each kernel.
    #[serde(skip)]
    pub scopes: Scopes,
}

/// Totals of the recorded kernels of a process, including kernels whose layer is not known. Kernels in iterations that
/// the report's figures leave out do not count.
#[derive(Clone, Copy, Debug, Default)]
pub struct LayerTotals {
    pub kernels: u64,
    pub ns: u64,
    /// Number of iterations with recorded kernels; at least 1.
    pub steps: u64,
    /// True if the idle times of the GPU between kernels are known.
    pub has_gaps: bool,
}

/// The kernels that were launched in one layer: while the same torch modules, NVTX ranges and marked functions were
/// open.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "GpuLayer")]
pub struct Layer {
    /// The name of the layer, such as `model.layers.3.self_attn/attention`; empty for kernels that were launched in no
    /// layer.
    pub name: String,
    /// The number of kernels that the layer launched. Each kernel counts in one layer only.
    #[schemars(extend("unit" = "kernels"))]
    pub kernels: u64,
    /// The total time of the kernels that the layer launched.
    #[serde(rename = "gpu_ns")]
    pub ns: u64,
    /// The share of the layer's kernels in the total time of all recorded kernels.
    #[schemars(extend("unit" = "part of 1"))]
    pub share: f64,
    /// Time in each iteration, by the iteration's index among the iterations with recorded kernels; `None` if there
    /// were too many entries to store.
    #[serde(skip)]
    pub(crate) by_step: Option<Vec<(u32, u64)>>,
}

/// Kernels whose layer is not known for one reason.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "UnknownGpuLayer")]
pub struct Unknown {
    /// The reason why the layer is not known, in words.
    #[serde(serialize_with = "write_text")]
    #[schemars(with = "String")]
    pub why: UnknownScope,
    /// The number of kernels whose layer is not known for this reason.
    #[schemars(extend("unit" = "kernels"))]
    pub kernels: u64,
    /// The total time of the kernels whose layer is not known for this reason.
    #[serde(rename = "gpu_ns")]
    pub ns: u64,
    /// The share of the kernels whose layer is not known for this reason, in the total time of all recorded kernels.
    #[schemars(extend("unit" = "part of 1"))]
    pub share: f64,
}

fn write_text<S: Serializer>(why: &UnknownScope, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(why.text())
}

/// Writes the layers as JSON; the lists are empty if scopes were not recorded.
///
/// # Errors
/// Returns an error if writing fails.
pub(crate) fn write_any<S: Serializer>(
    layers: &Option<Layers>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match layers {
        Some(layers) => layers.serialize(serializer),
        None => Layers::default().serialize(serializer),
    }
}

/// The reason why a kernel's scope (layer) is unknown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum UnknownScope {
    /// The kernel's CUDA graph is in a state in which the scopes of its nodes are unknown. The
    /// field is `None` for a state that a newer version of the library wrote.
    Graph(Option<GraphCode>),
    /// The record does not describe the kernel's CUDA graph, because the process ended first or
    /// because CUPTI reported no number for the graph.
    NoGraph,
    /// The library did not see the call that created the kernel's graph node.
    Node,
    /// The call that launched the kernel is not in the record.
    Call,
    /// The recorder could not store a scope that was open, because it had no room for it.
    Room,
}

/// The numeric value of a [`GraphState`]; unlike the state, it can be sorted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GraphCode(u8);

impl UnknownScope {
    /// Returns the reason as text, as the report shows it.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Graph(Some(GraphCode(code))) => match code {
                _ if code == GraphState::Differs as u8 => {
                    "a kernel at replay was not the one that was captured"
                }
                _ if code == GraphState::NotCaptured as u8 => {
                    "the graph was not captured while layers were followed"
                }
                _ if code == GraphState::Nested as u8 => {
                    "the graph has a node with graphs in it that are not known"
                }
                _ if code == GraphState::Unnamed as u8 => {
                    "the graph was made before layers were followed, or destroyed while kernels were taken"
                }
                _ if code == GraphState::TooMany as u8 => "too many graphs or nodes",
                _ => "the graph was changed after its capture",
            },
            Self::Graph(None) | Self::NoGraph => "nothing is known of the graph",
            Self::Node => "a node of the graph whose call was not followed",
            Self::Call => "the call that launched it is not known",
            Self::Room => "too many scopes",
        }
    }
}

impl LayerTotals {
    /// Returns a time in nanoseconds as a fraction of the total time of all kernels.
    #[must_use]
    pub fn share(&self, ns: u64) -> f64 {
        match self.ns {
            0 => 0.0,
            all => ns as f64 / all as f64,
        }
    }

    /// Sets the fields of rows that are shares of the total time, or means per iteration.
    fn fill_in(&self, rows: &mut [GpuLayerPattern]) {
        for row in rows {
            row.share = self.share(row.ns);
            row.kernels_a_step = row.kernels as f64 / self.steps as f64;
            row.step = row.ns / self.steps;
            row.each = row.ns / (self.steps * row.layers.max(1));
            row.gap = self.has_gaps.then(|| row.gaps / self.steps);
        }
    }
}
