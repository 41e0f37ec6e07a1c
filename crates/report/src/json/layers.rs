//! Whose time the GPU's is, as JSON.

use schemars::JsonSchema;
use serde::Serialize;

use crate::blocks::{BlockKernel, Blocks, Outside};
use crate::layers::{Layer, Layers, Pattern, Unknown};

/// The kernels that were launched in one scope: what torch modules, NVTX ranges and marked functions were open.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "GpuLayer")]
pub struct JsonLayer<'a> {
    /// Such as `model.layers.3.self_attn/attention`; empty: nothing was open.
    name: &'a str,
    /// How many ran, each in one layer.
    #[schemars(extend("unit" = "kernels"))]
    kernels: u64,
    /// How long they took in all.
    gpu_ns: u64,
    /// What part of the time of all kernels that is.
    #[schemars(extend("unit" = "part of 1"))]
    share: f64,
}

/// Layers whose names differ in numbers alone, or a layer by its whole name, with all that is within.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "GpuLayerPattern")]
pub struct JsonPattern<'a> {
    /// The name, with `*` for each number where they are one row, such as `model.layers.*.self_attn`.
    name: &'a str,
    /// How many parts of the name are around it.
    #[schemars(extend("unit" = "parts"))]
    depth: usize,
    /// How many layers have this name.
    #[schemars(extend("unit" = "layers"))]
    layers: u64,
    /// How many kernels ran.
    #[schemars(extend("unit" = "kernels"))]
    kernels: u64,
    /// How long they took in all.
    gpu_ns: u64,
    /// What part of the time of all kernels that is.
    #[schemars(extend("unit" = "part of 1"))]
    share: f64,
    /// How many kernels run in an iteration.
    #[schemars(extend("unit" = "per iteration"))]
    kernels_a_step: f64,
    /// What they take in an iteration.
    step_ns: u64,
    /// What one of the layers takes in an iteration, all its calls together.
    each_ns: u64,
    /// For how long in an iteration the GPU was idle between two kernels of one of these layers; `null`: not known.
    gap_ns: Option<u64>,
}

/// Kernels whose layer is not known.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "UnknownGpuLayer")]
pub struct JsonUnknown {
    /// Why, in words.
    why: &'static str,
    /// How many there are.
    #[schemars(extend("unit" = "kernels"))]
    kernels: u64,
    /// How long they took in all.
    gpu_ns: u64,
    /// What part of the time of all kernels that is.
    #[schemars(extend("unit" = "part of 1"))]
    share: f64,
}

impl<'a> JsonLayer<'a> {
    pub fn all(layers: &'a Layers) -> Vec<Self> {
        let row = |row: &'a Layer| Self {
            name: &row.name,
            kernels: row.kernels,
            gpu_ns: row.ns,
            share: layers.share(row.ns),
        };
        layers.rows.iter().map(row).collect()
    }
}

impl<'a> JsonPattern<'a> {
    /// Of rows of these layers.
    pub fn all(layers: &'a Layers, rows: &'a [Pattern]) -> Vec<Self> {
        let row = |row: &'a Pattern| Self {
            name: &row.name,
            depth: row.depth,
            layers: row.layers,
            kernels: row.kernels,
            gpu_ns: row.ns,
            share: layers.share(row.ns),
            kernels_a_step: layers.kernels_a_step(row.kernels),
            step_ns: layers.a_step(row.ns),
            each_ns: layers.each(row),
            gap_ns: layers.gaps(row).map(|ns| layers.a_step(ns)),
        };
        rows.iter().map(row).collect()
    }
}

impl JsonUnknown {
    pub fn all(layers: &Layers) -> Vec<Self> {
        let row = |row: &Unknown| Self {
            why: row.why.text(),
            kernels: row.kernels,
            gpu_ns: row.ns,
            share: layers.share(row.ns),
        };
        layers.unknown.iter().map(row).collect()
    }
}

/// Equal blocks of kernels that follow one another in an iteration, by the kernels' names: as a rule the layers of a model. Of the
/// iterations whose kernels are called alike, one by one; of several such kinds, of the one that most iterations are.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "GpuBlocks")]
pub struct JsonBlocks<'a> {
    /// How long each block took in these iterations, in their order.
    block_ns: &'a [u64],
    /// How long one takes in one iteration, in the mean.
    mean_ns: u64,
    /// What part of the time of these iterations' kernels the blocks are.
    #[schemars(extend("unit" = "part of 1"))]
    share: f64,
    /// A block's kernels, in their order.
    kernels: Vec<JsonBlockKernel<'a>>,
    /// How many kernels of one more block are equal to these, if at least half of them; `null`: there is none.
    #[schemars(extend("unit" = "kernels"))]
    partly: Option<usize>,
    /// What comes before the blocks.
    before: JsonOutside,
    /// What comes behind them.
    behind: JsonOutside,
    /// The iterations that this is of.
    #[schemars(extend("unit" = "iterations"))]
    iterations: u64,
    /// The iterations in which kernels were recorded.
    #[schemars(extend("unit" = "iterations"))]
    of: u64,
}

/// A kernel of a block.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "GpuBlockKernel")]
pub struct JsonBlockKernel<'a> {
    /// Without what it takes.
    short_name: &'a str,
    /// How long it took in all blocks of these iterations.
    gpu_ns: u64,
}

/// Kernels of an iteration that are in no block.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "GpuOutsideBlocks")]
pub struct JsonOutside {
    /// How many there are in an iteration.
    #[schemars(extend("unit" = "kernels"))]
    kernels: usize,
    /// How long they took in these iterations.
    gpu_ns: u64,
}

impl JsonOutside {
    const fn of(outside: Outside) -> Self {
        Self {
            kernels: outside.kernels,
            gpu_ns: outside.ns,
        }
    }
}

impl<'a> JsonBlocks<'a> {
    pub fn of(blocks: &'a Blocks) -> Self {
        let kernel = |kernel: &'a BlockKernel| JsonBlockKernel {
            short_name: &kernel.name,
            gpu_ns: kernel.ns,
        };
        Self {
            block_ns: &blocks.blocks,
            mean_ns: blocks.mean(),
            share: blocks.share(blocks.ns()),
            kernels: blocks.kernels.iter().map(kernel).collect(),
            partly: blocks.partly,
            before: JsonOutside::of(blocks.before),
            behind: JsonOutside::of(blocks.behind),
            iterations: blocks.iterations,
            of: blocks.of,
        }
    }
}
