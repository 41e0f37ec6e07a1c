//! Whose time the GPU's is, as JSON.

use schemars::JsonSchema;
use serde::Serialize;

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
