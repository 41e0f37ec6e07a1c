//! Chooses the iterations whose GPU times are measured: all of them if the measurement takes at most 1/400 of a step's
//! time, otherwise only some. A span is the work of one stream in one iteration.
//!
//! Iterations are measured in blocks of [`BLOCK`] consecutive iterations. One block in every N is measured, starting
//! with the window's first. Single iterations would not be representative: work of one iteration may run in the next,
//! and steps of two kinds may alternate.
//!
//! Iterations that the condition of `TLLMPROF_WHERE` excludes belong to no block, so that the remaining iterations
//! are measured as often as without a condition. Excluded iterations are measured only if all iterations are.

use tllmprof_config::GpuTimes;

use crate::clock;

/// The number of consecutive iterations in a block.
pub(crate) const BLOCK: u64 = 8;
/// The assumed cost of one pair of CUDA events: the number of nanoseconds by which a step gets longer. Measured on an
/// H100 with a program that is limited by its host thread.
const PAIR_NS: u64 = 3_500;
/// The assumed cost of a span that is timed with the host's clock: the number of nanoseconds by which a step gets
/// longer.
const CLOCK_NS: u64 = 300;
/// The maximum cost of measuring is the time of a step divided by this number.
const PART: u64 = 400;
/// The rarest sampling: at least one block in this number is measured.
const MAX_EVERY: u64 = 16;

/// The number of spans that have begun so far: those timed with pairs of CUDA events, and those timed with the host's
/// clock.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct SpanCount {
    pub pairs: u64,
    pub by_clock: u64,
}

/// Decides which iterations are measured: one block in `every`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampling {
    /// The mode of measuring GPU times that the settings ask for.
    pub mode: GpuTimes,
    every: u64,
    /// The number of iterations that have begun in the open window, not counting those that the condition of
    /// `TLLMPROF_WHERE` excludes.
    place: u64,
    /// The tick when the latest iteration began; `None` if the GPU times of this iteration are not
    /// measured.
    since: Option<u64>,
    /// The durations in ticks of the iterations measured since the last decision about `every`. Only the first
    /// `known` entries are valid.
    took: [u64; BLOCK as usize],
    known: usize,
    /// The number of spans that had begun when the first of the iterations in `took` began.
    spans: SpanCount,
}

impl Sampling {
    pub(crate) const fn new() -> Self {
        Self {
            mode: GpuTimes::Auto,
            every: 1,
            place: 0,
            since: None,
            took: [0; BLOCK as usize],
            known: 0,
            spans: SpanCount {
                pairs: 0,
                by_clock: 0,
            },
        }
    }

    /// Resets the counts for a window that opens. `every` keeps its value, which was decided in earlier windows.
    pub(crate) const fn window_opens(&mut self) {
        self.place = 0;
        self.since = None;
        self.known = 0;
    }

    /// Called when an iteration begins at tick `now`. Returns true if its GPU times are to be measured.
    pub(crate) fn begins(&mut self, now: u64, spans: SpanCount, excluded: bool) -> bool {
        if let Some(since) = self.since.take() {
            self.took[self.known] = now.saturating_sub(since);
            self.known += 1;
            if self.known == self.took.len() {
                self.decide(spans);
            }
        }
        if self.known == 0 {
            self.spans = spans;
        }
        let is_taken = match self.mode {
            GpuTimes::Off => false,
            GpuTimes::All => true,
            GpuTimes::Auto => {
                self.every == 1 || !excluded && (self.place / BLOCK).is_multiple_of(self.every)
            }
        };
        self.place += u64::from(!excluded);
        self.since = is_taken.then_some(now);
        is_taken
    }

    fn decide(&mut self, spans: SpanCount) {
        let pairs = spans.pairs.saturating_sub(self.spans.pairs);
        let by_clock = spans.by_clock.saturating_sub(self.spans.by_clock);
        let cost = (pairs * PAIR_NS + by_clock * CLOCK_NS) / BLOCK;
        self.took.sort_unstable();
        let median = clock::ns(self.took[self.took.len() / 2]);
        self.every = (cost * PART).div_ceil(median.max(1)).clamp(1, MAX_EVERY);
        self.known = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a window of `iterations` iterations, and returns those that are measured. Each iteration takes `ns`
    /// nanoseconds, and has `of` spans if it is measured.
    fn taken(
        sampling: &mut Sampling,
        mode: GpuTimes,
        iterations: u64,
        ns: u64,
        of: SpanCount,
    ) -> Vec<u64> {
        sampling.mode = mode;
        sampling.window_opens();
        let mut spans = sampling.spans;
        let begins = |n: &u64| {
            let is_taken = sampling.begins(ticks(n * ns), spans, false);
            if is_taken {
                spans.pairs += of.pairs;
                spans.by_clock += of.by_clock;
            }
            is_taken
        };
        (0..iterations).filter(begins).collect()
    }

    fn ticks(ns: u64) -> u64 {
        (ns as f64 * clock::recent_ticks_per_ns()) as u64
    }

    #[test]
    fn what_a_condition_excludes_takes_no_place_in_a_block() {
        // In this test, one iteration in fifty satisfies the condition, like a prefill among many
        // decodes.
        let is_in = |n: u64| n % 50 == 49;
        let of = |ns: u64| {
            let mut sampling = Sampling::new();
            let (mut now, mut pairs) = (0, 0);
            let begins = |n: &u64| {
                let by_clock = 0;
                let spans = SpanCount { pairs, by_clock };
                let is_taken = sampling.begins(ticks(now), spans, !is_in(*n));
                pairs += u64::from(is_taken);
                now += ns;
                is_taken
            };
            (0..1000).filter(begins).collect::<Vec<_>>()
        };
        // At 400 µs per iteration, only one block in four may be measured: eight iterations that satisfy the condition,
        // then a pause. During the pause, excluded iterations are not measured either. Of the excluded iterations, only
        // the first eight are measured, because the cost is known only after them.
        let taken = of(400_000);
        let wanted: Vec<_> = taken.iter().filter(|n| is_in(**n)).collect();
        assert_eq!(wanted, [49, 99, 149, 199, 249, 299, 349, 399].each_ref());
        assert_eq!(taken.len(), wanted.len() + BLOCK as usize);
        // At 1.5 ms per iteration, measuring costs so little that all iterations are measured.
        assert_eq!(of(1_500_000).len(), 1000);
    }

    const ONE: SpanCount = SpanCount {
        pairs: 1,
        by_clock: 0,
    };

    #[test]
    fn all_are_taken_where_that_is_cheap() {
        let mut sampling = Sampling::new();
        assert_eq!(
            taken(&mut sampling, GpuTimes::Auto, 60, 1_400_000, ONE).len(),
            60
        );
        let many = SpanCount {
            pairs: 3,
            by_clock: 20,
        };
        assert_eq!(
            taken(&mut sampling, GpuTimes::Auto, 60, 6_600_000, many).len(),
            60
        );
    }

    #[test]
    fn one_block_in_so_many_as_they_cost() {
        let mut sampling = Sampling::new();
        // Measuring all of these iterations would cost 0.44 % of their time, so only every second
        // block is measured, starting with the first.
        let first = taken(&mut sampling, GpuTimes::Auto, 48, 800_000, ONE);
        assert_eq!(
            first,
            [0..8, 16..24, 32..40]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
        );
        // The next window begins with the rate (one block in `every`) that the first window ended with.
        let next = taken(&mut sampling, GpuTimes::Auto, 20, 800_000, ONE);
        assert_eq!(
            next,
            [0..8, 16..20].into_iter().flatten().collect::<Vec<_>>()
        );
    }

    #[test]
    fn what_was_decided_changes_with_the_steps() {
        let mut sampling = Sampling::new();
        let short = taken(&mut sampling, GpuTimes::Auto, 8 * 33, 1_000, ONE);
        let blocks: Vec<_> = short.iter().step_by(8).map(|n| n / 8).collect();
        assert_eq!(blocks, [0, 16, 32]);
        // The first block shows that iterations take longer than before, so that measuring all of them costs little.
        let long = taken(&mut sampling, GpuTimes::Auto, 40, 10_000_000, ONE);
        assert_eq!(long.len(), 40);
    }

    #[test]
    fn one_long_step_changes_nothing() {
        let mut sampling = Sampling::new();
        let mut now = 0;
        for n in 0..=BLOCK {
            sampling.begins(
                ticks(now),
                SpanCount {
                    pairs: n,
                    by_clock: 0,
                },
                false,
            );
            now += if n == 3 { 1_000_000_000 } else { 400_000 };
        }
        assert_eq!(sampling.every, 4);
    }

    #[test]
    fn all_or_none_where_that_is_asked_for() {
        let mut sampling = Sampling::new();
        assert_eq!(
            taken(&mut sampling, GpuTimes::All, 100, 1_000, ONE).len(),
            100
        );
        assert!(taken(&mut sampling, GpuTimes::Off, 100, 1_000, ONE).is_empty());
    }
}
