//! Histograms of the durations of iterations outside windows, one for each phase (prefill, decode and so on) of the
//! iterations' batches. They can be queried while the process runs. The counts never decrease. A window is a period in
//! which events are recorded.
//!
//! A thread writes to the histograms at the end of each iteration. It holds the lock on the session's state (the state
//! of steps and windows), or it is opening or closing a window. So there is only one writer at a time. Iterations must
//! not wait for a reader, so there is no lock for readers: a reader retries if a write intervenes.

use core::array;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use tllmprof_platform::lifecycle::{self, OnlyThread};
use tllmprof_record::Phase;

use super::clock;

/// The upper bounds of the histogram's buckets, in nanoseconds.
pub const BOUNDS_NS: [u64; 22] = [
    500_000,
    1_000_000,
    2_000_000,
    3_000_000,
    5_000_000,
    7_500_000,
    10_000_000,
    15_000_000,
    20_000_000,
    30_000_000,
    50_000_000,
    75_000_000,
    100_000_000,
    150_000_000,
    200_000_000,
    300_000_000,
    500_000_000,
    750_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
];
/// The number of buckets. The last bucket has no upper bound.
const BUCKETS: usize = BOUNDS_NS.len() + 1;
/// The number of phases, plus one for iterations whose batches were not read.
const PHASES: usize = Phase::ALL.len() + 1;
/// The maximum number of attempts to read [`TIMES`] in a consistent state. An attempt fails if another thread writes
/// to the histograms at the same time, which takes some nanoseconds.
const READ_ATTEMPTS: usize = 100;

lifecycle::global! {
    stage: Sinks;

    #[fork(in_child)]
    static TIMES: IterationTimes = IterationTimes::new();
    /// The latest iteration whose batch was read, and the phase of that batch, in one number: the iteration's number
    /// times [`PHASES`], plus 1, plus the index of the phase.
    #[fork(reset)]
    static READ: AtomicU64 = AtomicU64::new(0);
}

struct IterationTimes {
    /// A sequence counter, which is odd while a time is being written.
    writes: AtomicU64,
    phases: [OfPhase; PHASES],
}

struct OfPhase {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

/// The durations of the iterations whose batches had the same phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TakenTimes {
    /// The phase; `None` for iterations whose batches were not read.
    pub phase: Option<Phase>,
    /// The number of iterations in each bucket: those longer than the previous bound of [`BOUNDS_NS`] and at
    /// most as long as the bucket's own bound. The last bucket counts the iterations longer than all bounds.
    pub counts: [u64; BUCKETS],
    pub sum_ns: u64,
}

/// Called when the batch of `iteration` was read. Stores the iteration and the phase of its batch.
pub fn batch_is(iteration: u64, phase: Phase) {
    let latest = iteration
        .saturating_mul(PHASES as u64)
        .saturating_add(1 + phase as u64);
    READ.store(latest, Ordering::Relaxed);
}

fn place_of(iteration: u64) -> usize {
    let of_phase = READ
        .load(Ordering::Relaxed)
        .checked_sub(iteration.saturating_mul(PHASES as u64));
    match of_phase {
        Some(place @ 1..) if place < PHASES as u64 => place as usize - 1,
        _ => PHASES - 1,
    }
}

/// Adds the duration of `iteration`, which has ended outside windows and took `took` ticks.
pub fn add(iteration: u64, took: u64) {
    TIMES.add(place_of(iteration), clock::ns(took));
}

/// Returns the durations by phase, leaving out phases in which no iteration has ended. The result is empty if there is
/// no record, or if the histograms changed during each attempt to read them.
pub fn by_phase() -> Vec<TakenTimes> {
    let all = TIMES.read().into_iter().flatten();
    let was_any = |taken: &TakenTimes| taken.counts.iter().any(|count| *count > 0);
    all.filter(was_any).collect()
}

impl IterationTimes {
    const fn new() -> Self {
        Self {
            writes: AtomicU64::new(0),
            phases: [const {
                OfPhase {
                    counts: [const { AtomicU64::new(0) }; BUCKETS],
                    sum_ns: AtomicU64::new(0),
                }
            }; PHASES],
        }
    }

    fn add(&self, place: usize, ns: u64) {
        let Some(of) = self.phases.get(place) else {
            return;
        };
        let bucket = BOUNDS_NS.partition_point(|bound| *bound < ns);
        let add = |to: &AtomicU64, more: u64| {
            let value = to.load(Ordering::Relaxed).wrapping_add(more);
            to.store(value, Ordering::Relaxed);
        };
        let writes = self.writes.load(Ordering::Relaxed);
        self.writes.store(writes + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        add(&of.counts[bucket], 1);
        add(&of.sum_ns, ns);
        self.writes.store(writes + 2, Ordering::Release);
    }

    /// Reads all histograms as of one moment. Returns `None` if they kept changing during all attempts.
    fn read(&self) -> Option<[TakenTimes; PHASES]> {
        (0..READ_ATTEMPTS).find_map(|_| {
            let writes = self.writes.load(Ordering::Acquire);
            let all = array::from_fn(|place| {
                let of = &self.phases[place];
                TakenTimes {
                    phase: Phase::ALL.get(place).copied(),
                    counts: of
                        .counts
                        .each_ref()
                        .map(|count| count.load(Ordering::Relaxed)),
                    sum_ns: of.sum_ns.load(Ordering::Relaxed),
                }
            });
            fence(Ordering::Acquire);
            let is_whole = writes & 1 == 0 && self.writes.load(Ordering::Relaxed) == writes;
            is_whole.then_some(all)
        })
    }

    /// Resets the histograms in the child of a fork. The sequence counter may be odd there, because another
    /// thread of the parent may have been writing.
    fn in_child(&self, _: &OnlyThread) {
        self.writes.store(0, Ordering::Relaxed);
        for of in &self.phases {
            of.sum_ns.store(0, Ordering::Relaxed);
            of.counts
                .iter()
                .for_each(|count| count.store(0, Ordering::Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_time_counts_for_the_first_bound_that_it_does_not_exceed() {
        assert!(BOUNDS_NS.is_sorted());
        let times = IterationTimes::new();
        let decode = Phase::Decode as usize;
        for ns in [0, MS, MS + 1, 2 * MS, 10_000 * MS, 10_000 * MS + 1] {
            times.add(decode, ns);
        }
        times.add(PHASES - 1, 3 * MS);
        let read = times.read().unwrap();
        let mut counts = [0; BUCKETS];
        (counts[0], counts[1], counts[2]) = (1, 1, 2);
        (counts[BUCKETS - 2], counts[BUCKETS - 1]) = (1, 1);
        assert_eq!(read[decode].phase, Some(Phase::Decode));
        assert_eq!(read[decode].counts, counts);
        assert_eq!(read[decode].sum_ns, 20_004 * MS + 2);
        let unknown = &read[PHASES - 1];
        assert_eq!((unknown.phase, unknown.sum_ns), (None, 3 * MS));
        assert_eq!(read[Phase::Prefill as usize].sum_ns, 0);
    }

    #[test]
    fn an_iteration_has_the_phase_of_its_own_batch_alone() {
        for phase in Phase::ALL {
            batch_is(7, phase);
            assert_eq!(place_of(7), phase as usize);
            assert_eq!([0, 6, 8].map(place_of), [PHASES - 1; 3]);
        }
        batch_is(0, Phase::Prefill);
        assert_eq!(place_of(0), Phase::Prefill as usize);
        assert_eq!(place_of(7), PHASES - 1);
    }

    #[test]
    fn sums_and_counts_are_of_the_same_moment_while_iterations_end() {
        const COUNT: u64 = 200_000;
        let times = IterationTimes::new();
        thread::scope(|scope| {
            scope.spawn(|| (0..COUNT).for_each(|n| times.add(n as usize % PHASES, 5 * MS)));
            let mut last = 0;
            while last < COUNT {
                let Some(all) = times.read() else { continue };
                let count: u64 = all.iter().flat_map(|taken| taken.counts).sum();
                let sum: u64 = all.iter().map(|taken| taken.sum_ns).sum();
                assert_eq!(sum, count * 5 * MS);
                assert!(count >= last);
                last = count;
            }
        });
    }
}
