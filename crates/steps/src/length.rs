//! Determines the length of a window that lasts until its figures are precise enough.
//!
//! The window has two parts without a gap between them. In the first part no kernels are recorded, so that the
//! program runs at its normal speed. This part lasts for at least 50 iterations and at least 2 s, but for at most
//! 4000 iterations. If an iteration takes over 0.3 s, 3 to 8 iterations are enough. The second part, in which kernels
//! are recorded, has a given number of iterations or a given duration.
//!
//! Some iterations are in the window but do not count towards its length: iterations in which the program waited for
//! requests or captured a stream, and iterations that a condition excludes. A pause ([`Known::is_pause`]) counts as an
//! iteration, but only with the usual duration of an iteration or 0.1 s ([`SHORTEST_PAUSE`]), whichever is longer.

use core::time::Duration;
use std::time::Instant;

use crate::steady::{Known, SHORTEST_PAUSE};

/// The minimum length of the window's first part (without kernels): a number of iterations, and a duration. Both have
/// to be reached.
const ITERATIONS: u64 = 50;
const TIME: Duration = Duration::from_secs(2);
/// The largest number of iterations in the window's first part (without kernels), even if it has
/// not lasted for the duration `TIME`.
const MOST_ITERATIONS: u64 = 4000;
/// The average duration of an iteration above which iterations count as slow.
const SLOW: Duration = Duration::from_millis(300);
/// The smallest and the largest number of iterations in the window's first part (without kernels),
/// if iterations are slow.
const SLOW_ITERATIONS: (u64, u64) = (3, 8);
/// The number of iterations that the second part (with kernels) has before [`KernelPart::within`] may end it.
const LEAST_WITH_KERNELS: u64 = 2;
/// The duration after which the window's first part (without kernels) ends in any case, once it has at least 3
/// iterations. The part lasts that long only if it consists mostly of pauses, which hardly count towards its length.
const LONGEST: Duration = Duration::from_secs(60);

/// The part of a window in which kernels are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelPart {
    /// The largest number of iterations in the part with kernels.
    pub iterations: u64,
    /// The duration after which the part with kernels ends even if it has fewer than `iterations`. It does not end
    /// before its second iteration has ended. `None` if only `iterations` limits the part.
    pub within: Option<Duration>,
}

/// The effect that a new iteration has on the open window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The iteration belongs to the same part of the window as the previous iteration.
    Continues,
    /// The iteration is the first one in the part with kernels.
    Kernels,
    /// The window closes before the iteration begins.
    Closes,
}

#[derive(Clone, Copy, Debug)]
enum LengthPart {
    First,
    Kernels {
        /// The number of iterations with recorded kernels that have ended.
        over: u64,
        /// The time when the second iteration with kernels began. The first one is not measured, because it
        /// includes attaching CUPTI.
        since: Option<Instant>,
    },
}

/// The measurement of the open window's length.
#[derive(Clone, Copy, Debug)]
pub struct Measuring {
    part: LengthPart,
    kernels: Option<KernelPart>,
    /// The usual duration of an iteration before the window opened, if it is known.
    usual: Option<Duration>,
    opened: Instant,
    /// The time when the current iteration began; `None` if the iteration does not count towards the window's length.
    running: Option<Instant>,
    /// The number of iterations in the window that have ended.
    over: u64,
    /// The number of ended iterations that count towards the window's length. `time` is the sum of their durations.
    /// A pause is shortened in this sum (see the documentation of this module).
    counted: u64,
    time: Duration,
}

impl Measuring {
    /// Returns the measurement for a window that opens at `now`. `usual` is the usual duration of an iteration, if
    /// it is known.
    pub const fn new(kernels: Option<KernelPart>, usual: Option<Duration>, now: Instant) -> Self {
        Self {
            part: LengthPart::First,
            kernels,
            usual,
            opened: now,
            running: Some(now),
            over: 0,
            counted: 0,
            time: Duration::ZERO,
        }
    }

    /// Returns true if the part with kernels has begun.
    pub const fn takes_kernels(&self) -> bool {
        matches!(self.part, LengthPart::Kernels { .. })
    }

    /// Excludes the current iteration from the window's length, because a stream was captured in it.
    pub const fn interrupt(&mut self) {
        self.running = None;
    }

    /// Called when an iteration begins, which ends the previous one. `known` states if the new iteration counts, and
    /// how long the program waited in the previous one. Returns the effect on the window.
    pub fn begins(&mut self, now: Instant, known: Known) -> Next {
        let took = self
            .running
            .map(|since| now.saturating_duration_since(since));
        self.running = known.counts.then_some(now);
        self.over += 1;
        if let LengthPart::Kernels { over, since } = &mut self.part {
            *over += 1;
            let since = *since.get_or_insert(now);
            let is_over = self.kernels.is_none_or(|kernels| {
                let lasts = now.saturating_duration_since(since);
                *over >= kernels.iterations
                    || *over >= LEAST_WITH_KERNELS
                        && kernels.within.is_some_and(|within| lasts >= within)
            });
            return if is_over {
                Next::Closes
            } else {
                Next::Continues
            };
        }
        if let Some(took) = took.filter(|took| !known.has_waited(*took)) {
            self.counted += 1;
            self.time += match self.usual {
                Some(usual) if known.is_pause(took, usual) => usual.max(SHORTEST_PAUSE),
                _ => took,
            };
        }
        if !self.has_enough(now) {
            return Next::Continues;
        }
        match self.kernels {
            None => Next::Closes,
            Some(_) => {
                self.part = LengthPart::Kernels {
                    over: 0,
                    since: None,
                };
                Next::Kernels
            }
        }
    }

    /// Returns true if the window's first part (without kernels) is long enough.
    fn has_enough(&self, now: Instant) -> bool {
        let (fewest, most) = SLOW_ITERATIONS;
        let count = u32::try_from(self.counted).unwrap_or(u32::MAX);
        let is_slow = count > 0 && self.time / count > SLOW;
        let lasted = self.time >= TIME;
        let enough = match is_slow {
            true => self.counted >= most || self.counted >= fewest && lasted,
            false => self.counted >= ITERATIONS && lasted,
        };
        let is_long = now.saturating_duration_since(self.opened) >= LONGEST;
        enough || self.over >= MOST_ITERATIONS || self.over >= fewest && is_long
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNELS: KernelPart = KernelPart {
        iterations: 20,
        within: Some(Duration::from_millis(300)),
    };

    /// An iteration that no condition excludes, and in which the program waited neither for requests nor for the GPU.
    const OWN: Known = Known {
        counts: true,
        idle: Duration::ZERO,
        gpu_wait: Duration::ZERO,
    };

    /// Simulates a window with iterations that take `micros` microseconds each. Returns the number of
    /// iterations without kernels and the number with kernels.
    fn parts(
        kernels: Option<KernelPart>,
        usual: Option<u64>,
        micros: impl Fn(u64) -> u64,
    ) -> (u64, u64) {
        let mut now = Instant::now();
        let usual = usual.map(Duration::from_micros);
        let mut measuring = Measuring::new(kernels, usual, now);
        let mut first = None;
        for n in 0.. {
            now += Duration::from_micros(micros(n));
            match measuring.begins(now, OWN) {
                Next::Continues => {}
                Next::Kernels => first = Some(n + 1),
                Next::Closes => return (first.unwrap_or(n + 1), n + 1 - first.unwrap_or(n + 1)),
            }
        }
        unreachable!()
    }

    #[test]
    fn the_first_part_has_50_iterations_and_2_s() {
        assert_eq!(parts(None, None, |_| 10_000), (200, 0));
        assert_eq!(parts(None, None, |_| 40_000), (50, 0));
        assert_eq!(parts(None, None, |_| 100_000), (50, 0));
        // The window's first part also lasts 2 s if iterations take only 1 ms. With very short iterations, it reaches
        // the largest number of iterations before 2 s have passed.
        assert_eq!(parts(None, None, |_| 1000), (2000, 0));
        assert_eq!(parts(None, None, |_| 5), (4000, 0));
    }

    #[test]
    fn a_few_slow_iterations_are_enough() {
        assert_eq!(parts(None, None, |_| 310_000), (7, 0));
        assert_eq!(parts(None, None, |_| 700_000), (3, 0));
        assert_eq!(parts(None, None, |_| 20_000_000), (3, 0));
        assert_eq!(parts(Some(KERNELS), None, |_| 700_000), (3, 2));
    }

    #[test]
    fn the_second_part_has_20_iterations_or_300_ms() {
        assert_eq!(parts(Some(KERNELS), None, |_| 1000), (2000, 20));
        assert_eq!(parts(Some(KERNELS), None, |_| 40_000), (50, 9));
        assert_eq!(parts(Some(KERNELS), None, |_| 299_000), (50, 3));
        let all = KernelPart {
            iterations: 30,
            within: None,
        };
        assert_eq!(parts(Some(all), None, |_| 40_000), (50, 30));
        let one = KernelPart {
            iterations: 1,
            within: None,
        };
        assert_eq!(parts(Some(one), None, |_| 40_000), (50, 1));
    }

    #[test]
    fn of_pauses_little_counts() {
        // Every tenth iteration is a pause of one second. Only 0.1 s of each pause ([`SHORTEST_PAUSE`]) counts
        // towards the window's length.
        let micros = |n| if n % 10 == 9 { 1_000_000 } else { 10_000 };
        assert_eq!(parts(None, Some(10_000), micros), (110, 0));
        // The window's first part ends after 60 s ([`LONGEST`]) even if it consists mostly of pauses.
        let (first, _) = parts(None, Some(40_000), |_| 5_000_000);
        assert_eq!(first, 12);
    }

    #[test]
    fn what_is_captured_or_left_out_does_not_count() {
        let mut now = Instant::now();
        let mut measuring = Measuring::new(None, None, now);
        let mut closes = None;
        for n in 1..200 {
            now += Duration::from_millis(50);
            let counts = n % 2 == 0;
            let next = measuring.begins(now, Known { counts, ..OWN });
            if n == 4 {
                measuring.interrupt();
            }
            if next == Next::Closes {
                closes = closes.or(Some(n));
            }
        }
        assert_eq!(closes, Some(2 * 50 + 1));
    }
}
