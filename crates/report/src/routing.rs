//! How the router of a mixture of experts shared its tokens out.

use std::collections::BTreeMap;

/// How many experts, over all layers, are told apart.
const LIMIT: usize = 1 << 16;

/// The experts of a layer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LayerLoad {
    pub layer: u16,
    /// What each expert was sent, in the order of their numbers.
    pub tokens: Vec<u64>,
}

/// What was said of loads. Each says all that an expert was sent so far: the latest counts.
#[derive(Debug, Default)]
pub struct Loads {
    tokens: BTreeMap<(u16, u16), u64>,
    pub left_out: u64,
}

impl Loads {
    pub fn add(&mut self, layer: u16, expert: u16, tokens: u64) {
        let key = (layer, expert);
        if self.tokens.len() < LIMIT || self.tokens.contains_key(&key) {
            // What it was sent so far: the latest is the largest.
            let most = self.tokens.entry(key).or_default();
            *most = tokens.max(*most);
        } else {
            self.left_out += 1;
        }
    }

    /// The layers, each with as many experts as the last one that has an event.
    pub fn finish(self) -> Vec<LayerLoad> {
        let mut layers: Vec<LayerLoad> = Vec::new();
        let mut room = LIMIT;
        for ((layer, expert), tokens) in self.tokens {
            if layers.last().is_none_or(|last| last.layer != layer) {
                layers.push(LayerLoad {
                    layer,
                    tokens: Vec::new(),
                });
            }
            let Some(last) = layers.last_mut() else { break };
            let more = usize::from(expert) + 1 - last.tokens.len();
            let Some(left) = room.checked_sub(more) else {
                continue; // of a damaged record
            };
            room = left;
            last.tokens.resize(usize::from(expert), 0);
            last.tokens.push(tokens);
        }
        layers
    }
}

impl LayerLoad {
    pub fn sum(&self) -> u64 {
        self.tokens
            .iter()
            .fold(0, |sum, tokens| sum.saturating_add(*tokens))
    }

    /// What the busiest expert has, as a multiple of the mean; `None` where there were no tokens.
    pub fn of_mean(&self) -> Option<f64> {
        of_mean(self.tokens.iter().copied())
    }

    /// As [`of_mean`](Self::of_mean), of GPUs that hold as many experts each, in the order of their
    /// numbers; `None` also where they cannot.
    pub fn over_gpus(&self, gpus: usize) -> Option<f64> {
        let each = self.tokens.len().checked_div(gpus)?;
        if each == 0 || each * gpus != self.tokens.len() {
            return None;
        }
        of_mean(
            self.tokens
                .chunks(each)
                .map(|chunk| chunk.iter().fold(0_u64, |sum, t| sum.saturating_add(*t))),
        )
    }

    /// Experts that were sent nothing.
    pub fn idle(&self) -> usize {
        self.tokens.iter().filter(|tokens| **tokens == 0).count()
    }
}

fn of_mean(tokens: impl Iterator<Item = u64> + Clone) -> Option<f64> {
    let most = tokens.clone().max().filter(|most| *most > 0)?;
    let count = tokens.clone().count() as f64;
    let sum: f64 = tokens.map(|tokens| tokens as f64).sum();
    Some(most as f64 * count / sum)
}

/// The loads of several ranks together: where each has tokens of its own, all of them; where they have
/// the same, as many times as there are ranks, which leaves all ratios as they are.
pub fn together<'a>(ranks: impl Iterator<Item = &'a [LayerLoad]>) -> Vec<LayerLoad> {
    let mut layers: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
    for load in ranks.flatten() {
        let sums = layers.entry(load.layer).or_default();
        if sums.len() < load.tokens.len() {
            sums.resize(load.tokens.len(), 0);
        }
        for (sum, tokens) in sums.iter_mut().zip(&load.tokens) {
            *sum = sum.saturating_add(*tokens);
        }
    }
    layers
        .into_iter()
        .map(|(layer, tokens)| LayerLoad { layer, tokens })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(layer: u16, tokens: &[u64]) -> LayerLoad {
        LayerLoad {
            layer,
            tokens: tokens.to_vec(),
        }
    }

    #[test]
    fn the_latest_load_counts_and_experts_without_one_are_there() {
        let mut loads = Loads::default();
        for (layer, expert, tokens) in [(3, 1, 5), (3, 1, 7), (1, 2, 1), (3, 0, 0)] {
            loads.add(layer, expert, tokens);
        }
        assert_eq!(loads.finish(), [layer(1, &[0, 0, 1]), layer(3, &[0, 7])]);
    }

    #[test]
    fn a_damaged_record_takes_no_unbounded_memory() {
        let mut loads = Loads::default();
        for layer in 0..u16::MAX {
            loads.add(layer, u16::MAX - 1, 1);
        }
        let layers = loads.finish();
        let experts: usize = layers.iter().map(|layer| layer.tokens.len()).sum();
        assert!(experts <= LIMIT, "{experts}");
    }

    #[test]
    fn balanced_experts_are_not_balanced_gpus() {
        let load = layer(0, &[4, 4, 0, 0, 4, 0, 2, 2]);
        assert_eq!(load.sum(), 16);
        assert_eq!(load.of_mean(), Some(2.0));
        assert_eq!(load.over_gpus(2), Some(1.0));
        assert_eq!(load.over_gpus(4), Some(2.0));
        assert_eq!(load.over_gpus(3), None, "8 experts on 3 GPUs");
        assert_eq!(load.over_gpus(16), None);
        assert_eq!(load.over_gpus(0), None);
        assert_eq!(load.idle(), 3);
        assert_eq!(layer(0, &[0, 0]).of_mean(), None);
    }

    #[test]
    fn ranks_add_up_by_layer() {
        let (one, other) = ([layer(0, &[1, 2])], [layer(0, &[1, 0, 5]), layer(2, &[1])]);
        let both = together([&one[..], &other[..]].into_iter());
        assert_eq!(both, [layer(0, &[2, 2, 5]), layer(2, &[1])]);
    }
}
