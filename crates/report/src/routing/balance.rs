//! Load balance of learned expert routers, for several numbers of GPUs.

use schemars::JsonSchema;
use serde::Serialize;

use super::{LayerLoad, mean};
use crate::events::facts::Facts;

/// Numbers of GPUs for which the load balance is computed.
const GPU_COUNTS: [usize; 6] = [2, 4, 8, 16, 32, 64];

/// Load balance of the learned routers of MoE layers, outside windows.
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
    /// The layer's number.
    layer: u16,
    /// The layer's name; `null` if it is not known.
    name: Option<&'a str>,
    /// The tokens that were sent to experts. A token counts once for each expert that received it.
    #[schemars(extend("unit" = "tokens"))]
    tokens: u64,
    /// The tokens of the busiest expert, as a multiple of the mean expert's.
    #[schemars(extend("unit" = "multiple of the mean"))]
    max_of_mean: f64,
    /// The number of experts that received no tokens.
    #[schemars(extend("unit" = "experts"))]
    idle: usize,
    /// `max_of_mean` of GPUs instead of experts, for 2, 4, 8, 16, 32 and 64 GPUs and for the number of processes, where
    /// that number divides the experts equally. Each GPU then holds consecutive experts.
    gpus: Vec<OnGpus>,
    /// The tokens that each expert received, in the order of the experts' numbers.
    #[schemars(extend("unit" = "tokens"))]
    experts: &'a [u64],
}

/// A layer's experts divided over a number of GPUs.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LayerOnGpus")]
struct OnGpus {
    /// The number of GPUs.
    #[schemars(extend("unit" = "GPUs"))]
    gpus: usize,
    /// The tokens of the busiest GPU, as a multiple of the mean GPU's.
    #[schemars(extend("unit" = "multiple of the mean"))]
    max_of_mean: f64,
}

impl<'a> Routing<'a> {
    /// Returns the balance, or `None` if no tokens were counted. `ranks` is the number of processes in the report.
    pub fn from_loads(loads: &'a [LayerLoad], facts: &'a Facts, ranks: usize) -> Option<Self> {
        let mut sizes = GPU_COUNTS.to_vec();
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
