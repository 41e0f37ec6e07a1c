//! Look-up of the iteration that contains a moment.

use tllmprof_report::{Process, Span, Spans};

/// The iterations of a process with their numbers, as spans in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug)]
pub struct Iterations {
    spans: Spans,
    numbers: Vec<u64>,
}

impl Iterations {
    #[must_use]
    pub fn from_process(process: &Process) -> Self {
        let mut all: Vec<_> = process
            .windows
            .iter()
            .flat_map(|window| &window.iterations)
            .map(|iteration| (iteration.start, iteration.end(), iteration.n))
            .collect();
        all.sort_unstable();
        let span = |(start, end, _): &(u64, u64, u64)| Span {
            start: *start,
            end: *end,
        };
        Self {
            spans: Spans::new(all.iter().map(span).collect()),
            numbers: all.iter().map(|(.., n)| *n).collect(),
        }
    }

    /// Returns the number of the iteration that contains `moment` (in nanoseconds of `CLOCK_MONOTONIC`), or `None` if
    /// no iteration contains this moment.
    pub fn at(&mut self, moment: u64) -> Option<u64> {
        let index = self.spans.at(moment)?;
        self.numbers.get(index).copied()
    }
}
