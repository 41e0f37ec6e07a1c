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

/// The loads as they come.
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

    /// The layers. All have as many experts as the one that has most: one that was sent nothing may
    /// have no event.
    pub fn finish(self) -> Vec<LayerLoad> {
        let experts = self
            .tokens
            .keys()
            .map(|(_, expert)| usize::from(*expert) + 1);
        let experts = experts.max().unwrap_or(0);
        let mut layers: Vec<LayerLoad> = Vec::new();
        for ((layer, expert), tokens) in self.tokens {
            if layers.last().is_none_or(|last| last.layer != layer)
                && layers.len() * experts < LIMIT
            {
                layers.push(LayerLoad {
                    layer,
                    tokens: vec![0; experts],
                });
            }
            if let Some(last) = layers.last_mut().filter(|last| last.layer == layer) {
                last.tokens[usize::from(expert)] = tokens;
            }
        }
        layers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_load_counts_and_experts_without_one_are_there() {
        let mut loads = Loads::default();
        for (layer, expert, tokens) in [(3, 1, 5), (3, 1, 7), (1, 2, 1)] {
            loads.add(layer, expert, tokens);
        }
        let layer = |layer, tokens: &[u64]| LayerLoad {
            layer,
            tokens: tokens.to_vec(),
        };
        assert_eq!(loads.finish(), [layer(1, &[0, 0, 1]), layer(3, &[0, 7, 0])]);
    }

    #[test]
    fn a_damaged_record_takes_no_unbounded_memory() {
        let mut loads = Loads::default();
        for layer in 0..u16::MAX {
            loads.add(layer, u16::MAX - 1, 1);
        }
        assert_eq!(loads.finish().len(), 2);
    }
}
