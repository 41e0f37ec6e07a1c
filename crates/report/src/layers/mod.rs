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

use tllmprof_record::GraphState;

pub use names::Pattern;
use names::{parent, starred};
pub use raw::RawLayers;
pub use scopes::Scopes;
pub use tally::LayerTally;

/// How many parts a tree without `*` has at most, the longest of them.
const TREE: usize = 4096;

/// The layers of a process.
#[derive(Debug, Default)]
pub struct Layers {
    /// By scope, each kernel in one of them, the longest first.
    pub rows: Vec<Layer>,
    /// The same, with those within, by name with `*` for numbers: as a tree.
    pub patterns: Vec<Pattern>,
    /// The same by whole names, as far as there is room.
    pub tree: Vec<Pattern>,
    /// What has no scope, by reason, the longest first.
    pub unknown: Vec<Unknown>,
    /// All of them together.
    pub kernels: u64,
    pub ns: u64,
    /// In how many iterations they were taken; at least 1.
    pub steps: u64,
    /// Whether it is known what lay between kernels.
    pub has_gaps: bool,
    /// By which the scope of each kernel is found.
    pub scopes: Scopes,
}

/// The kernels that were launched in a scope.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layer {
    /// Empty: in none.
    pub name: String,
    pub kernels: u64,
    pub ns: u64,
    /// What they took in each iteration, by its place among those in which kernels were taken; `None`: that was too much
    /// to keep.
    pub(crate) by_step: Option<Vec<(u32, u64)>>,
}

/// Kernels whose scope is not known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unknown {
    pub why: Why,
    pub kernels: u64,
    pub ns: u64,
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

impl Layers {
    /// What part of the time of all kernels so much is.
    #[must_use]
    pub fn share(&self, ns: u64) -> f64 {
        match self.ns {
            0 => 0.0,
            all => ns as f64 / all as f64,
        }
    }

    /// So much in each iteration, in nanoseconds.
    #[must_use]
    pub fn a_step(&self, ns: u64) -> u64 {
        ns / self.steps.max(1)
    }

    /// How many kernels run in each iteration.
    #[must_use]
    pub fn kernels_a_step(&self, kernels: u64) -> f64 {
        kernels as f64 / self.steps.max(1) as f64
    }

    /// What one of the layers that a row is of takes in an iteration, in nanoseconds.
    #[must_use]
    pub fn each(&self, row: &Pattern) -> u64 {
        row.ns / (self.steps.max(1) * row.layers.max(1))
    }

    /// Of a row the idle time between its kernels in all; `None`: not known.
    #[must_use]
    pub fn gaps(&self, row: &Pattern) -> Option<u64> {
        self.has_gaps.then_some(row.gaps)
    }
}
