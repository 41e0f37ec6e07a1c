//! Iterations and batches in the form in which they are read from a record.

use std::collections::HashMap;

use tllmprof_record::Batch;

use super::iteration::Used;
use super::spans::Span;

/// An iteration as read from the record, with its times in ticks of the record's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawIteration {
    pub start: u64,
    pub duration: u64,
    pub n: u64,
    pub thread: u32,
    pub cut: bool,
    /// Time for which the iteration's thread waited for requests.
    pub idle: u64,
    /// The part of `idle` that the thread spent in calls that wait for the GPU.
    pub idle_calls: u64,
    /// True if the iteration does not satisfy the user's condition (`TLLMPROF_WHERE`).
    pub excluded: bool,
    /// Processor time and page faults of the iteration's thread; `None` if they were not recorded.
    pub used: Option<Used>,
}

impl RawIteration {
    /// Returns the iteration's duration without waits for requests, in ticks.
    pub(crate) const fn busy(&self) -> u64 {
        self.duration.saturating_sub(self.idle)
    }

    pub(crate) const fn span(&self) -> Span {
        Span {
            start: self.start,
            end: self.start.saturating_add(self.duration),
        }
    }
}

/// The contents of a batch as read from the record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawBatch {
    /// Time of the batch's event in the record, in ticks.
    pub start: u64,
    /// Number of the iteration that worked on the batch, modulo 2^16.
    pub iteration: u16,
    pub batch: Batch,
}

/// Returns the batch of each iteration, or `None` if it is not known. `iterations` must be in the
/// order of their starts.
pub(crate) fn batches(iterations: &[RawIteration], batches: &[RawBatch]) -> Vec<Option<Batch>> {
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
            used: None,
            excluded: false,
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
        // In this test another thread began iteration 3 before the batch of iteration 2 was
        // written. Iterations 5 and 5 + 2^16 have the same number modulo 2^16.
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
}
