//! How unbalanced the learned routers of experts are, as JSON.

use serde::Serialize;

use crate::facts::Facts;
use crate::routing::LayerLoad;

/// Numbers of GPUs that a layer's experts may be on.
const GPUS: [usize; 6] = [2, 4, 8, 16, 32, 64];

#[derive(Serialize)]
pub struct JsonRouting<'a> {
    /// Of the layers' `max_of_mean`.
    mean: f64,
    layers: Vec<JsonLayer<'a>>,
}

#[derive(Serialize)]
struct JsonLayer<'a> {
    layer: u16,
    name: Option<&'a str>,
    /// What was sent to experts: a token counts once for each expert that it went to.
    tokens: u64,
    /// What the busiest expert has, as a multiple of the mean.
    max_of_mean: f64,
    /// Experts that were sent nothing.
    idle: usize,
    /// The same as `max_of_mean` where the experts are on so many GPUs, as many on each, in the order
    /// of their numbers.
    gpus: Vec<JsonGpus>,
    experts: &'a [u64],
}

#[derive(Serialize)]
struct JsonGpus {
    gpus: usize,
    max_of_mean: f64,
}

impl<'a> JsonRouting<'a> {
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
                Some(JsonLayer {
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
                            Some(JsonGpus {
                                gpus: *gpus,
                                max_of_mean: load.over_gpus(*gpus)?,
                            })
                        })
                        .collect(),
                    experts: &load.tokens,
                })
            })
            .collect();
        let sum: f64 = layers.iter().map(|layer| layer.max_of_mean).sum();
        (!layers.is_empty()).then(|| Self {
            mean: sum / layers.len() as f64,
            layers,
        })
    }
}
