//! Findings on imbalanced routing of tokens to experts (mixture of experts).

use super::Judgement;
use super::evidence::Evidence;
use crate::numbers::units::Rate;
use crate::routing::LayerLoad;

/// Minimum ratio of the busiest expert's load (its number of tokens) to the largest load that chance could cause
/// if the router sent each token to a random expert. The ratio is a mean over the layers.
const MIN_IMBALANCE: f64 = 1.5;

/// Reason for an unknown loss. With `--perfect-router=window`, experts are balanced only inside windows. But comparing
/// steps inside and outside windows does not give the loss, because these steps differ in more than the balance:
/// outside windows the loads are counted, and inside windows the steps are recorded. Both cost time.
const UNKNOWN_LOSS: &str = "what it costs is not known: inside windows experts are balanced, outside steps are not recorded";

pub(crate) fn imbalance_when() -> String {
    format!(
        "the busiest expert of a layer is sent over {MIN_IMBALANCE} times what an even router could send it by chance"
    )
}

pub(crate) fn imbalance(one: &Evidence<'_>) -> Judgement {
    let layers = one.process.experts.iter();
    let found: Vec<_> = layers
        .filter_map(|layer| Some((layer, Load::new(layer)?)))
        .collect();
    if found.is_empty() {
        return Judgement::Unknown("expert loads were not recorded".to_owned());
    }
    let beyond = found.iter().map(|(_, load)| load.beyond).sum::<f64>() / found.len() as f64;
    let worst = found
        .iter()
        .max_by(|(_, a), (_, b)| a.of_mean.total_cmp(&b.of_mean));
    let evidence = worst.map_or_else(String::new, |(layer, load)| {
        let name = one.process.facts.routers.get(&u32::from(layer.layer));
        let name = name.map_or_else(|| format!("layer {}", layer.layer), Clone::clone);
        format!(
            "in {name} the busiest expert has {} times the mean, of {} layers",
            Rate(load.of_mean),
            found.len()
        )
    });
    if beyond > MIN_IMBALANCE {
        Judgement::Yes {
            evidence: format!("{evidence}; {UNKNOWN_LOSS}"),
            loss: None,
        }
    } else {
        Judgement::No(evidence)
    }
}

/// The load (number of tokens) of a layer's busiest expert.
struct Load {
    /// Load of the busiest expert, divided by the layer's mean load per expert.
    of_mean: f64,
    /// Load of the busiest expert, divided by the largest load that chance could cause (see [`MIN_IMBALANCE`]).
    beyond: f64,
}

impl Load {
    fn new(layer: &LayerLoad) -> Option<Self> {
        let most = layer
            .tokens
            .iter()
            .copied()
            .max()
            .filter(|most| *most > 0)? as f64;
        let experts = layer.tokens.len() as f64;
        let mean = layer
            .tokens
            .iter()
            .map(|tokens| *tokens as f64)
            .sum::<f64>()
            / experts;
        // Approximate maximum that chance produces: the expected largest of `experts` random counts
        // with the mean `mean`.
        let chance = mean + (2.0 * mean * experts.ln()).sqrt();
        Some(Self {
            of_mean: layer.of_mean()?,
            beyond: most / chance,
        })
    }
}
