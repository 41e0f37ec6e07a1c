//! Experts that the router sends too much to.

use super::Judged;
use super::evidence::Evidence;
use crate::numbers::units::Rate;
use crate::routing::LayerLoad;

/// How far the busiest expert has to be beyond what chance makes of a balanced router.
const IMBALANCE: f64 = 1.5;

/// Loads are counted outside windows, where no step is taken apart and counting them costs time; inside windows experts are
/// balanced. So the two do not differ by the imbalance alone.
const UNKNOWN_LOSS: &str = "what it costs is not known: inside windows experts are balanced, outside steps are not recorded";

pub fn imbalance_when() -> String {
    format!(
        "the busiest expert of a layer is sent over {IMBALANCE} times what an even router could send it by chance"
    )
}

pub fn imbalance(one: &Evidence<'_>) -> Judged {
    let layers = one.process.experts.iter();
    let found: Vec<_> = layers
        .filter_map(|layer| Some((layer, Load::of(layer)?)))
        .collect();
    if found.is_empty() {
        return Judged::Unknown("expert loads were not recorded".to_owned());
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
    if beyond > IMBALANCE {
        Judged::Yes {
            evidence: format!("{evidence}; {UNKNOWN_LOSS}"),
            loss: None,
        }
    } else {
        Judged::No(evidence)
    }
}

/// The busiest expert of a layer.
struct Load {
    /// What it has of the mean, and of what it could have by chance.
    of_mean: f64,
    beyond: f64,
}

impl Load {
    fn of(layer: &LayerLoad) -> Option<Self> {
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
        // The most of that many counts with this mean, roughly.
        let chance = mean + (2.0 * mean * experts.ln()).sqrt();
        Some(Self {
            of_mean: layer.of_mean()?,
            beyond: most / chance,
        })
    }
}
