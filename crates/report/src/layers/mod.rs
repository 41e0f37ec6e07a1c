//! GPU time by layer: the recorded kernels, by the scope in which they were launched.
//!
//! A kernel of a graph has the scope in which its node was captured. A kernel outside graphs has the scope of the call
//! that launched it, if that is known. If a scope is not known, the reason is reported.

pub mod compare;
mod gaps;
mod names;
mod raw;
mod scopes;
mod tally;
pub mod text;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use tllmprof_record::GraphState;

pub use names::Pattern;
use names::parent;
pub use names::starred;
pub use raw::RawLayers;
pub use scopes::Scopes;
pub use tally::LayerTally;

/// Maximum number of rows of the tree of whole names; the longest are kept.
const MAX_TREE_ROWS: usize = 4096;

/// The layers of a process.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Layers {
    /// The same kernels by layer, if scopes were followed (`--layers`); those with the longest total time first.
    #[serde(rename = "layers")]
    pub rows: Vec<Layer>,
    /// Those layers with all that is within them, by name with `*` for numbers: a tree, parents before children, the
    /// longest first.
    #[serde(rename = "layer_patterns")]
    pub patterns: Vec<Pattern>,
    /// The same by whole names, with one row for each layer: the 4096 longest.
    #[serde(rename = "layer_tree")]
    pub tree: Vec<Pattern>,
    /// Kernels whose layer is not known, by reason.
    #[serde(rename = "layers_unknown")]
    pub unknown: Vec<Unknown>,
    /// Sums of all of them.
    #[serde(skip)]
    pub all: LayerTotals,
    /// Look-up of the scope of each kernel.
    #[serde(skip)]
    pub scopes: Scopes,
}

/// All kernels of a process, in any layer.
#[derive(Clone, Copy, Debug, Default)]
pub struct LayerTotals {
    pub kernels: u64,
    pub ns: u64,
    /// Number of iterations in which they were recorded; at least 1.
    pub steps: u64,
    /// True if the idle time between kernels is known.
    pub has_gaps: bool,
}

/// The kernels that were launched in one scope: while the same torch modules, NVTX ranges and marked functions were
/// open.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "GpuLayer")]
pub struct Layer {
    /// The name, such as `model.layers.3.self_attn/attention`; empty if no scope was open.
    pub name: String,
    /// The number of kernels that ran. Each is counted in one layer.
    #[schemars(extend("unit" = "kernels"))]
    pub kernels: u64,
    /// The total time that they took.
    #[serde(rename = "gpu_ns")]
    pub ns: u64,
    /// Their share of the time of all kernels.
    #[schemars(extend("unit" = "part of 1"))]
    pub share: f64,
    /// Their time in each iteration, by its index among those in which kernels were recorded; `None` if there were too
    /// many to keep.
    #[serde(skip)]
    pub(crate) by_step: Option<Vec<(u32, u64)>>,
}

/// Kernels whose layer is not known.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "UnknownGpuLayer")]
pub struct Unknown {
    /// The reason, in words.
    #[serde(serialize_with = "write_text")]
    #[schemars(with = "String")]
    pub why: UnknownScope,
    /// The number of these kernels.
    #[schemars(extend("unit" = "kernels"))]
    pub kernels: u64,
    /// The total time that they took.
    #[serde(rename = "gpu_ns")]
    pub ns: u64,
    /// Their share of the time of all kernels.
    #[schemars(extend("unit" = "part of 1"))]
    pub share: f64,
}

fn write_text<S: Serializer>(why: &UnknownScope, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(why.text())
}

/// Writes layers, or empty lists if scopes were not followed.
///
/// # Errors
/// Returns an error if writing fails.
pub fn write_any<S: Serializer>(layers: &Option<Layers>, serializer: S) -> Result<S::Ok, S::Error> {
    match layers {
        Some(layers) => layers.serialize(serializer),
        None => Layers::default().serialize(serializer),
    }
}

/// The reason why a scope is not known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum UnknownScope {
    /// The state of the graph; `None` if it is one that only a later version knows.
    Graph(Option<GraphCode>),
    /// The graph is not described: the process ended first, or CUPTI does not name it.
    NoGraph,
    /// The node was created by a call that was not followed.
    Node,
    /// The call that launched the kernel is not known.
    Call,
    /// There was no room for the scope.
    Room,
}

/// A [`GraphState`] as a number, so that reasons can be sorted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GraphCode(u8);

impl UnknownScope {
    /// Returns the reason in words.
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
    /// Returns a time as a share of the time of all kernels, as a part of 1.
    #[must_use]
    pub fn share(&self, ns: u64) -> f64 {
        match self.ns {
            0 => 0.0,
            all => ns as f64 / all as f64,
        }
    }

    /// Fills in the figures of rows that are relative to the whole.
    fn fill_in(&self, rows: &mut [Pattern]) {
        for row in rows {
            row.share = self.share(row.ns);
            row.kernels_a_step = row.kernels as f64 / self.steps as f64;
            row.step = row.ns / self.steps;
            row.each = row.ns / (self.steps * row.layers.max(1));
            row.gap = self.has_gaps.then(|| row.gaps / self.steps);
        }
    }
}
