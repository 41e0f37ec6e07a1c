//! Load balance of learned expert routers, computed for several numbers of GPUs among which the
//! experts could be divided.

use schemars::JsonSchema;
use serde::Serialize;

use super::{LayerLoad, mean};
use crate::events::facts::Facts;

/// Numbers of GPUs for which the load balance is computed.
const GPU_COUNTS: [usize; 6] = [2, 4, 8, 16, 32, 64];

/// Load balance of the routers of mixture-of-experts (MoE) layers, outside windows. A router sends each token to some
/// of a layer's experts.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Routing")]
pub(crate) struct Routing<'a> {
    /// The mean of `max_of_mean` over the layers.
    #[schemars(extend("unit" = "multiple of the mean"))]
    mean: f64,
    /// The mixture-of-experts (MoE) layers, in the order of their numbers.
    layers: Vec<RoutedLayer<'a>>,
}

/// Load balance of one MoE layer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Layer")]
struct RoutedLayer<'a> {
    /// The number of the layer, counted from 0. Layers are numbered in the order in which tllmprof found them.
    layer: u16,
    /// The name of the layer; `null` if it is not known.
    name: Option<&'a str>,
    /// The number of tokens that the layer's router sent to experts. A token counts once for each expert that received
    /// it.
    #[schemars(extend("unit" = "tokens"))]
    tokens: u64,
    /// The number of tokens of the busiest expert, as a multiple of the mean over all experts.
    #[schemars(extend("unit" = "multiple of the mean"))]
    max_of_mean: f64,
    /// The number of experts that received no tokens.
    #[schemars(extend("unit" = "experts"))]
    idle: usize,
    /// The load balance between GPUs, if the experts were divided over 2, 4, 8, 16, 32 or 64 GPUs, or over as many GPUs
    /// as there are processes. Each GPU has the same number of consecutive experts, and numbers of GPUs that do not
    /// divide the experts equally are left out.
    gpus: Vec<OnGpus>,
    /// The number of tokens that each expert received, in the order of the experts' numbers.
    #[schemars(extend("unit" = "tokens"))]
    experts: &'a [u64],
}

/// Load balance of an MoE layer whose experts are divided over a number of GPUs.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LayerOnGpus")]
struct OnGpus {
    /// The number of GPUs.
    #[schemars(extend("unit" = "GPUs"))]
    gpus: usize,
    /// The number of tokens of the busiest GPU, as a multiple of the mean over all GPUs.
    #[schemars(extend("unit" = "multiple of the mean"))]
    max_of_mean: f64,
}

impl<'a> Routing<'a> {
    /// Returns the load balance, or `None` if no tokens were counted. `ranks` is the number of
    /// processes in the report.
    pub(crate) fn from_loads(
        loads: &'a [LayerLoad],
        facts: &'a Facts,
        ranks: usize,
    ) -> Option<Self> {
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
