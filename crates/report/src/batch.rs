//! What was in the batches of iterations.

use std::collections::HashMap;

use tllmprof_record::{Batch, Phase};

use crate::first::{RawBatch, RawIteration};
use crate::iteration::Iteration;
use crate::quantiles::Quantiles;
use crate::window::Window;

/// The batch of each of some iterations, which are in the order of their starts.
pub fn batches(iterations: &[RawIteration], batches: &[RawBatch]) -> Vec<Option<Batch>> {
    let mut places: HashMap<u16, Vec<usize>> = HashMap::new();
    for (place, iteration) in iterations.iter().enumerate() {
        places.entry(iteration.n as u16).or_default().push(place);
    }
    let mut found = vec![None; iterations.len()];
    for batch in batches {
        let Some(places) = places.get(&batch.iteration) else {
            continue;
        };
        let begun = places.partition_point(|place| iterations[*place].start <= batch.start);
        if let Some(place) = begun.checked_sub(1) {
            found[places[place]] = Some(batch.batch);
        }
    }
    found
}

/// The iterations whose batches were in one phase.
#[derive(Clone, Copy, Debug)]
pub struct PhaseSum {
    pub phase: Phase,
    pub iterations: u64,
    pub time: Quantiles,
    /// The sum of their durations, in nanoseconds.
    pub total: u64,
    pub requests: u64,
    pub tokens: u64,
    pub prefill_tokens: u64,
}

/// The phases of the iterations of windows, where batches are known.
pub fn phases(windows: &[Window]) -> Vec<PhaseSum> {
    let all = || windows.iter().flat_map(|window| &window.iterations);
    let sum = |phase: Phase| {
        let of = || all().filter_map(move |i| Some((i, i.batch.filter(|b| b.phase() == phase)?)));
        let total = |of_one: fn(&(&Iteration, Batch)) -> u64| {
            of().fold(0_u64, |sum, one| sum.saturating_add(of_one(&one)))
        };
        Some(PhaseSum {
            phase,
            iterations: of().count() as u64,
            time: Quantiles::of(of().map(|(iteration, _)| iteration.busy()))?,
            total: total(|(iteration, _)| iteration.busy()),
            requests: total(|(_, batch)| u64::from(batch.requests)),
            tokens: total(|(_, batch)| u64::from(batch.tokens)),
            prefill_tokens: total(|(_, batch)| u64::from(batch.prefill_tokens)),
        })
    };
    Phase::ALL.into_iter().filter_map(sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iteration(n: u64, start: u64) -> RawIteration {
        RawIteration {
            start,
            duration: 10,
            n,
            thread: 1,
            cut: false,
            idle: 0,
            idle_calls: 0,
        }
    }

    fn batch(iteration: u16, start: u64, requests: i64) -> RawBatch {
        RawBatch {
            start,
            iteration,
            batch: Batch::new(requests, requests, 0).unwrap(),
        }
    }

    #[test]
    fn a_batch_is_of_the_latest_iteration_of_its_number() {
        // 3 was begun by another thread before the batch of 2 was written; 5 + 2^16 is a second 5.
        let iterations = [
            iteration(2, 100),
            iteration(3, 110),
            iteration(5, 200),
            iteration(5 + (1 << 16), 900),
        ];
        let written = [
            batch(3, 111, 3),
            batch(2, 112, 2),
            batch(5, 205, 5),
            batch(5, 901, 6),
            batch(4, 150, 9),
            batch(2, 99, 9),
        ];
        let requests: Vec<_> = batches(&iterations, &written)
            .iter()
            .map(|batch| batch.map(|batch| batch.requests))
            .collect();
        assert_eq!(requests, [Some(2), Some(3), Some(5), Some(6)]);
        assert_eq!(batches(&iterations, &[]), [None; 4]);
    }

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
        assert_eq!((prefill.phase, prefill.iterations), (Phase::Prefill, 1));
        assert_eq!((prefill.tokens, prefill.prefill_tokens), (100, 100));
        assert_eq!((decode.phase, decode.iterations), (Phase::Decode, 2));
        assert_eq!((decode.requests, decode.tokens, decode.total), (4, 4, 22));
        assert_eq!((decode.time.p50, decode.time.max), (10, 12));
    }
}
