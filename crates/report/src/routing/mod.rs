//! Distribution of tokens over experts by the routers of a mixture-of-experts (MoE) model.

mod balance;
pub(crate) mod text;

use std::collections::BTreeMap;

pub(crate) use balance::Routing;
use tllmprof_record::{Event, What};

/// Maximum number of experts whose load is stored, in all layers together. The loads of further experts are dropped.
const MAX_EXPERTS: usize = 1 << 16;

/// The loads of a layer's experts. The load of an expert is the number of tokens that it received.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LayerLoad {
    pub layer: u16,
    /// The tokens that each expert received, in the order of the experts' numbers.
    pub tokens: Vec<u64>,
}

/// Loads of experts, collected from the events of a record. An event contains the total number of
/// tokens that an expert has received so far, so only the expert's latest event counts.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    tokens: BTreeMap<(u16, u16), u64>,
    pub left_out: u64,
}

impl Loads {
    /// Adds an event, if it contains the load of an expert.
    #[inline]
    pub(crate) fn add(&mut self, event: &Event) {
        if let What::ExpertLoad {
            layer,
            expert,
            tokens,
        } = event.what
        {
            self.load(layer, expert, tokens);
        }
    }

    fn load(&mut self, layer: u16, expert: u16, tokens: u64) {
        let key = (layer, expert);
        if self.tokens.len() < MAX_EXPERTS || self.tokens.contains_key(&key) {
            // The number in an event is a running total, so the largest number is the latest.
            let most = self.tokens.entry(key).or_default();
            *most = tokens.max(*most);
        } else {
            self.left_out += 1;
        }
    }

    /// Returns the loads by layer. A layer's list has an entry for each expert up to the highest
    /// number that occurs in an event.
    pub(crate) fn finish(self) -> Vec<LayerLoad> {
        let mut layers: Vec<LayerLoad> = Vec::new();
        let mut room = MAX_EXPERTS;
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
                continue; // No model has this many experts: the record is damaged.
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

    /// Returns the busiest expert's load divided by the mean load, or `None` if there were no
    /// tokens.
    pub fn of_mean(&self) -> Option<f64> {
        of_mean(self.tokens.iter().copied())
    }

    /// Returns each expert's load divided by the mean load, rounded to a thousandth; `None` if
    /// there were no tokens.
    #[must_use]
    pub fn each_of_mean(&self) -> Option<Vec<f64>> {
        let sum: f64 = self.tokens.iter().map(|tokens| *tokens as f64).sum();
        let mean = sum / self.tokens.len() as f64;
        let rounded = |tokens: &u64| (*tokens as f64 / mean * 1e3).round() / 1e3;
        (sum > 0.0).then(|| self.tokens.iter().map(rounded).collect())
    }

    /// Returns the busiest GPU's load divided by the mean load of a GPU, if each GPU holds the same
    /// number of consecutive experts. Returns `None` if there were no tokens or if the experts
    /// cannot be divided equally.
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

    /// Returns the number of experts that received no tokens.
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

/// Returns the busiest expert's load divided by the mean load, as a mean over the layers that received tokens; `None`
/// if no layer did.
pub(crate) fn mean(loads: &[LayerLoad]) -> Option<f64> {
    mean_of(loads.iter().filter_map(LayerLoad::of_mean))
}

/// Returns the busiest GPU's load divided by the mean load of a GPU, as a mean over the layers that received tokens.
/// Returns `None` if no layer did, or if the experts cannot be divided equally.
pub(crate) fn mean_over_gpus(loads: &[LayerLoad], gpus: usize) -> Option<f64> {
    mean_of(loads.iter().filter_map(|load| load.over_gpus(gpus)))
}

fn mean_of(of: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = of.fold((0_u32, 0.0), |(count, sum), one| (count + 1, sum + one));
    (count > 0).then(|| sum / f64::from(count))
}

/// Returns the number of GPUs among which the experts are divided: the number that options in the command line give, or
/// else the number of ranks. A number below 2 is ignored. Returns `None` if no number is left.
#[must_use]
pub fn expert_gpus(command: &str, ranks: usize) -> Option<usize> {
    const EXPERT_OPTIONS: [&str; 5] = [
        "--ep",
        "--ep-size",
        "--moe-ep-size",
        "--expert-parallel-size",
        "--moe-expert-parallel-size",
    ];
    let option = |names: &[&str]| option(command, names).filter(|size| *size > 1);
    let is_on = |word: &str| ["--enable-expert-parallel", "-ep"].contains(&word);
    // vLLM divides the experts among the GPUs of all its replicas together.
    let vllm = || {
        let tensor = option(&["-tp", "--tensor-parallel-size"]).unwrap_or(1);
        let data = option(&["-dp", "--data-parallel-size"]).unwrap_or(1);
        let all = command.split_whitespace().any(is_on);
        all.then(|| tensor.saturating_mul(data))
            .filter(|gpus| *gpus > 1)
    };
    option(&EXPERT_OPTIONS)
        .or_else(vllm)
        .or(Some(ranks))
        .filter(|gpus| *gpus > 1)
}

/// Returns the number that follows one of the options `names` in a command line; `None` if none of them has a number.
fn option(command: &str, names: &[&str]) -> Option<usize> {
    let mut words = command.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, words.peek().copied()),
        };
        let is_one = names.contains(&name.replace('_', "-").as_str());
        if let Some(number) = value.filter(|_| is_one).and_then(|text| text.parse().ok()) {
            return Some(number);
        }
    }
    None
}

/// Returns the sums of the loads of several ranks. If each rank counts different tokens, the sums
/// are the total loads. If all ranks count the same tokens, all sums are too large by the same
/// factor, but ratios between experts are correct.
pub(crate) fn together<'a>(ranks: impl Iterator<Item = &'a [LayerLoad]>) -> Vec<LayerLoad> {
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
            loads.load(layer, expert, tokens);
        }
        assert_eq!(loads.finish(), [layer(1, &[0, 0, 1]), layer(3, &[0, 7])]);
    }

    #[test]
    fn a_damaged_record_takes_no_unbounded_memory() {
        let mut loads = Loads::default();
        for layer in 0..u16::MAX {
            loads.load(layer, u16::MAX - 1, 1);
        }
        let layers = loads.finish();
        let experts: usize = layers.iter().map(|layer| layer.tokens.len()).sum();
        assert!(experts <= MAX_EXPERTS, "{experts}");
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
    fn the_command_line_says_on_how_many_gpus_experts_are() {
        for (command, ranks, gpus) in [
            ("serve --ep 4", 1, Some(4)),
            ("serve --moe_ep-size=16 --ep-size 2", 1, Some(16)),
            ("serve --ep 1", 1, None),
            ("serve --ep 1", 8, Some(8)),
            (
                "vllm serve m -tp 4 -dp=2 --enable-expert-parallel",
                1,
                Some(8),
            ),
            ("vllm serve m -tp 4 -dp=2", 1, None),
            ("vllm serve m -ep", 2, Some(2)),
            ("serve --ep many", 1, None),
            ("", 0, None),
        ] {
            assert_eq!(expert_gpus(command, ranks), gpus, "{command}");
        }
    }

    #[test]
    fn ranks_add_up_by_layer() {
        let (one, other) = ([layer(0, &[1, 2])], [layer(0, &[1, 0, 5]), layer(2, &[1])]);
        let both = together([&one[..], &other[..]].into_iter());
        assert_eq!(both, [layer(0, &[2, 2, 5]), layer(2, &[1])]);
    }
}
