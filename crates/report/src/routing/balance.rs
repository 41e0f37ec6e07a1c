//! How unbalanced the learned routers of experts are, by the number of GPUs that experts are on.

use schemars::JsonSchema;
use serde::Serialize;

use super::{LayerLoad, mean};
use crate::events::facts::Facts;

/// Numbers of GPUs that a layer's experts may be on.
const GPUS: [usize; 6] = [2, 4, 8, 16, 32, 64];

/// How unevenly the learned routers of MoE layers chose experts, outside windows.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Routing")]
pub struct Routing<'a> {
    /// The mean of the layers' `max_of_mean`.
    #[schemars(extend("unit" = "multiple of the mean"))]
    mean: f64,
    /// The layers, in the order of their numbers.
    layers: Vec<RoutedLayer<'a>>,
}

/// An MoE layer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Layer")]
struct RoutedLayer<'a> {
    /// Its number.
    layer: u16,
    /// Its name; `null`: not known.
    name: Option<&'a str>,
    /// What was sent to experts: a token counts once for each expert that it went to.
    #[schemars(extend("unit" = "tokens"))]
    tokens: u64,
    /// What the busiest expert was sent, as a multiple of the mean expert's.
    #[schemars(extend("unit" = "multiple of the mean"))]
    max_of_mean: f64,
    /// Experts that were sent nothing.
    #[schemars(extend("unit" = "experts"))]
    idle: usize,
    /// `max_of_mean` of GPUs instead of experts, where each GPU can hold equally many experts, in the order of their
    /// numbers: for 2, 4, 8, 16, 32 and 64 GPUs, and for as many as there are processes.
    gpus: Vec<OnGpus>,
    /// What each expert was sent, in the order of their numbers.
    #[schemars(extend("unit" = "tokens"))]
    experts: &'a [u64],
}

/// A layer's experts on so many GPUs.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LayerOnGpus")]
struct OnGpus {
    /// How many GPUs.
    #[schemars(extend("unit" = "GPUs"))]
    gpus: usize,
    /// What the busiest GPU was sent, as a multiple of the mean GPU's.
    #[schemars(extend("unit" = "multiple of the mean"))]
    max_of_mean: f64,
}

impl<'a> Routing<'a> {
    /// `None` where nothing was counted. `ranks`: how many processes there are.
    pub fn of(loads: &'a [LayerLoad], facts: &'a Facts, ranks: usize) -> Option<Self> {
        let mut sizes = GPUS.to_vec();
        if ranks > 1 && !sizes.contains(&ranks) {
            sizes.push(ranks);
            sizes.sort_unstable();
        }
        let layers: Vec<_> = loads
            .iter()
            .filter_map(|load| {
                Some(RoutedLayer {
                    layer: load.layer,
                    name: facts
                        .routers
                        .get(&u32::from(load.layer))
                        .map(String::as_str),
                    tokens: load.sum(),
                    max_of_mean: load.of_mean()?,
                    idle: load.idle(),
                    gpus: sizes
                        .iter()
                        .filter_map(|gpus| {
                            Some(OnGpus {
                                gpus: *gpus,
                                max_of_mean: load.over_gpus(*gpus)?,
                            })
                        })
                        .collect(),
                    experts: &load.tokens,
                })
            })
            .collect();
        Some(Self {
            mean: mean(loads)?,
            layers,
        })
    }
}
