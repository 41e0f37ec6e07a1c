//! Iterations grouped by the batches that they worked on: by phase (prefill, decode, …) and by number of tokens.

pub(crate) mod text;

use schemars::JsonSchema;
use serde::Serialize;
use tllmprof_record::{Batch, Phase};

use crate::events::batch::{PhaseName, write_phase};

use crate::events::iteration::Iteration;
use crate::events::window::Window;
use crate::numbers::quantiles::Quantiles;

/// Upper limit of each size class, in tokens of a batch. One more class, without an upper limit,
/// holds larger batches.
const CLASS_LIMITS: [u32; 8] = [0, 1, 4, 16, 64, 256, 1024, 4096];

/// Sums of a group of iterations whose batches are known, such as all iterations of one phase.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct BatchSum {
    /// The number of iterations in this group.
    #[schemars(extend("unit" = "iterations"))]
    pub iterations: u64,
    /// The distribution of the durations of the group's iterations.
    pub time: Quantiles,
    /// The total duration of the group's iterations.
    #[serde(rename = "total_ns")]
    pub total: u64,
    /// The total number of requests in the batches of the group's iterations.
    #[schemars(extend("unit" = "requests"))]
    pub requests: u64,
    /// The total number of tokens in the batches of the group's iterations.
    #[schemars(extend("unit" = "tokens"))]
    pub tokens: u64,
    /// The total number of prompt tokens (prefill) in the batches of the group's iterations.
    #[schemars(extend("unit" = "tokens"))]
    pub prefill_tokens: u64,
}

/// Sums of the iterations of one phase, such as prefill or decode.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PhaseSum {
    /// The phase of the batches of the iterations.
    #[serde(serialize_with = "write_phase")]
    #[schemars(with = "PhaseName")]
    pub phase: Phase,
    #[serde(flatten)]
    pub all: BatchSum,
    /// Sums by batch size. The size classes are 0, 1, 2 to 4, 5 to 16, 17 to 64, 65 to 256, 257 to 1024, 1025 to 4096,
    /// and more than 4096 tokens. Classes without iterations are left out.
    pub sizes: Vec<SizeSum>,
}

/// Sums of the iterations of one phase whose number of tokens lies in one size class.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct SizeSum {
    /// The smallest number of tokens in a batch of this size class.
    #[serde(rename = "min_tokens")]
    #[schemars(extend("unit" = "tokens"))]
    pub least: u32,
    /// The largest number of tokens in a batch of this size class; `null` for the last class, which has no upper limit.
    #[serde(rename = "max_tokens")]
    #[schemars(extend("unit" = "tokens"))]
    pub most: Option<u32>,
    #[serde(flatten)]
    pub all: BatchSum,
}

impl SizeSum {
    /// Returns the class's range of tokens as text, such as `17-64` or `4097+`.
    pub fn name(&self) -> String {
        match self.most {
            Some(most) if most == self.least => most.to_string(),
            Some(most) => format!("{}-{most}", self.least),
            None => format!("{}+", self.least),
        }
    }
}

/// Returns the sums for each phase (prefill, decode, …). Only qualifying iterations, which are those that the
/// report's figures include, are counted. Iterations whose batch is unknown are left out.
pub(crate) fn phases(windows: &[Window]) -> Vec<PhaseSum> {
    let known = windows.iter().flat_map(Window::qualified);
    let known: Vec<_> = known.filter_map(|i| Some((i, i.batch?))).collect();
    let phase = |phase: Phase| {
        let is_one = |(_, batch): &&(&Iteration, Batch)| batch.phase() == phase;
        let of: Vec<_> = known.iter().filter(is_one).copied().collect();
        Some(PhaseSum {
            phase,
            all: BatchSum::new(&of)?,
            sizes: sizes(&of),
        })
    };
    Phase::ALL.into_iter().filter_map(phase).collect()
}

/// Returns the index of the size class for batches with this number of tokens.
pub(crate) fn size_class(tokens: u32) -> usize {
    CLASS_LIMITS.partition_point(|most| *most < tokens)
}

fn sizes(known: &[(&Iteration, Batch)]) -> Vec<SizeSum> {
    let sum = |place: usize| {
        let is_one = |(_, batch): &&(&Iteration, Batch)| size_class(batch.tokens) == place;
        let of: Vec<_> = known.iter().filter(is_one).copied().collect();
        let before = place
            .checked_sub(1)
            .map_or(0, |before| CLASS_LIMITS[before] + 1);
        Some(SizeSum {
            least: before,
            most: CLASS_LIMITS.get(place).copied(),
            all: BatchSum::new(&of)?,
        })
    };
    (0..=CLASS_LIMITS.len()).filter_map(sum).collect()
}

impl BatchSum {
    /// Returns the sums over the iterations in `known`, or `None` if there are none.
    fn new(known: &[(&Iteration, Batch)]) -> Option<Self> {
        let total = |of_one: fn(&(&Iteration, Batch)) -> u64| {
            known.iter().map(of_one).fold(0, u64::saturating_add)
        };
        Some(Self {
            iterations: known.len() as u64,
            time: Quantiles::from_values(known.iter().map(|(iteration, _)| iteration.busy()))?,
            total: total(|(iteration, _)| iteration.busy()),
            requests: total(|(_, batch)| u64::from(batch.requests)),
            tokens: total(|(_, batch)| u64::from(batch.tokens)),
            prefill_tokens: total(|(_, batch)| u64::from(batch.prefill_tokens)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_summed_apart() {
        let iteration = |n, duration, batch| Iteration {
            n,
            duration,
            batch,
            ..Iteration::default()
        };
        let window = Window {
            first: 0,
            last: 3,
            closed: true,
            cut: false,
            past: false,
            iterations: vec![
                iteration(0, 50, Batch::new(1, 100, 100)),
                iteration(1, 10, Batch::new(2, 2, 0)),
                iteration(2, 12, Batch::new(2, 2, 0)),
                iteration(3, 99, None),
            ],
        };
        let phases = phases(&[window]);
        let [prefill, decode] = &phases[..] else {
            panic!("{phases:?}");
        };
        let all = prefill.all;
        assert_eq!((prefill.phase, all.iterations), (Phase::Prefill, 1));
        assert_eq!((all.tokens, all.prefill_tokens), (100, 100));
        let all = decode.all;
        assert_eq!((decode.phase, all.iterations), (Phase::Decode, 2));
        assert_eq!((all.requests, all.tokens, all.total), (4, 4, 22));
        assert_eq!((all.time.p50, all.time.max), (10, 12));
    }

    #[test]
    fn sizes_are_summed_apart() {
        let sizes = |tokens: &[i64]| {
            let iterations = (0..).zip(tokens).map(|(n, tokens)| Iteration {
                n,
                duration: 10 * n,
                batch: Batch::new(1, *tokens, 0),
                ..Iteration::default()
            });
            let window = Window {
                first: 0,
                last: 0,
                closed: true,
                cut: false,
                past: false,
                iterations: iterations.collect(),
            };
            let sizes = phases(&[window])[0].sizes.clone();
            let found = sizes
                .iter()
                .map(|size| (size.name(), size.all.iterations, size.all.time.max));
            found.collect::<Vec<_>>()
        };
        let name = |name: &str| name.to_owned();
        let edges = sizes(&[4, 1, 5, 16, 4096, 17, 2, 4097, 100_000]);
        let expected = [
            (name("1"), 1, 10),
            (name("2-4"), 2, 60),
            (name("5-16"), 2, 30),
            (name("17-64"), 1, 50),
            (name("1025-4096"), 1, 40),
            (name("4097+"), 2, 80),
        ];
        assert_eq!(edges, expected);
        assert_eq!(sizes(&[0, 0]), [(name("0"), 2, 10)]);
    }
}
