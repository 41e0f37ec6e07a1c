//! Whose time the GPU's is: the kernels that were taken, by the scope that they were launched in.
//!
//! A kernel of a graph has the scope of its node, which was captured; one by itself has the scope of its call, where that is
//! known. What is not known has a reason.

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
use names::{parent, starred};
pub use raw::RawLayers;
pub use scopes::Scopes;
pub use tally::LayerTally;

/// How many parts a tree without `*` has at most, the longest of them.
const TREE: usize = 4096;

/// The layers of a process.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Layers {
    /// The same kernels by layer, where that was followed (`--layers`); the longest in all first.
    #[serde(rename = "layers")]
    pub rows: Vec<Layer>,
    /// Those layers with all that is within them, by name with `*` for numbers: a tree in its order, the longest first.
    #[serde(rename = "layer_patterns")]
    pub patterns: Vec<Pattern>,
    /// The same by whole names, each layer by itself: the 4096 longest.
    #[serde(rename = "layer_tree")]
    pub tree: Vec<Pattern>,
    /// Kernels whose layer is not known, by reason.
    #[serde(rename = "layers_unknown")]
    pub unknown: Vec<Unknown>,
    /// All of them together.
    #[serde(skip)]
    pub all: Whole,
    /// By which the scope of each kernel is found.
    #[serde(skip)]
    pub scopes: Scopes,
}

/// All kernels of a process, of whatever layer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Whole {
    pub kernels: u64,
    pub ns: u64,
    /// In how many iterations they were recorded; at least 1.
    pub steps: u64,
    /// Whether it is known what lay between kernels.
    pub has_gaps: bool,
}

/// The kernels that were launched in one scope: what torch modules, NVTX ranges and marked functions were open.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "GpuLayer")]
pub struct Layer {
    /// Such as `model.layers.3.self_attn/attention`; empty: nothing was open.
    pub name: String,
    /// How many ran, each in one layer.
    #[schemars(extend("unit" = "kernels"))]
    pub kernels: u64,
    /// How long they took in all.
    #[serde(rename = "gpu_ns")]
    pub ns: u64,
    /// What part of the time of all kernels that is.
    #[schemars(extend("unit" = "part of 1"))]
    pub share: f64,
    /// What they took in each iteration, by its place among those in which kernels were taken; `None`: that was too much
    /// to keep.
    #[serde(skip)]
    pub(crate) by_step: Option<Vec<(u32, u64)>>,
}

/// Kernels whose layer is not known.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
#[schemars(rename = "UnknownGpuLayer")]
pub struct Unknown {
    /// Why, in words.
    #[serde(serialize_with = "write_text")]
    #[schemars(with = "String")]
    pub why: Why,
    /// How many there are.
    #[schemars(extend("unit" = "kernels"))]
    pub kernels: u64,
    /// How long they took in all.
    #[serde(rename = "gpu_ns")]
    pub ns: u64,
    /// What part of the time of all kernels that is.
    #[schemars(extend("unit" = "part of 1"))]
    pub share: f64,
}

fn write_text<S: Serializer>(why: &Why, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(why.text())
}

/// Writes layers, or empty lists where scopes were not followed.
///
/// # Errors
/// Where they cannot be written.
pub fn write_any<S: Serializer>(layers: &Option<Layers>, serializer: S) -> Result<S::Ok, S::Error> {
    match layers {
        Some(layers) => layers.serialize(serializer),
        None => Layers::default().serialize(serializer),
    }
}

/// Why a scope is not known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Why {
    /// The graph's, or of a state that a later version writes.
    Graph(Option<GraphCode>),
    /// Nobody said what the graph was: the process ended, or CUPTI does not name it.
    NoGraph,
    /// The node was made by a call that was not followed.
    Node,
    /// Which call launched it.
    Call,
    /// There was no room for the scope.
    Room,
}

/// A [`GraphState`] in its order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GraphCode(u8);

impl Why {
    /// In words.
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

impl Whole {
    /// What part of the time of all kernels so much is.
    #[must_use]
    pub fn share(&self, ns: u64) -> f64 {
        match self.ns {
            0 => 0.0,
            all => ns as f64 / all as f64,
        }
    }

    /// Fills in the figures of rows that are parts of the whole.
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
