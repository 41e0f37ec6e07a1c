//! Converts ticks of a record's clock to nanoseconds. An anchor is one moment, read on several clocks.

use crate::header::{Anchor, ClockKind};

/// A time in nanoseconds of `CLOCK_MONOTONIC`.
pub type MonotonicNs = u64;

/// The clock of a record, which is defined by anchors: pairs of a tick and a time. Between two anchors, ticks
/// are assumed to pass evenly. Before the first and after the last anchor, the mean rate between these two anchors
/// is used.
#[derive(Clone, Debug)]
pub struct Clock {
    /// The anchors, sorted by ticks. Their times increase as well. The list is never empty.
    anchors: Vec<Anchor>,
    /// The mean number of nanoseconds per tick between the first and the last anchor.
    rate: f64,
}

impl Clock {
    /// Returns the clock of a record with these anchors. An anchor is left out if its tick or its time is not later
    /// than that of the anchor before it. With fewer than two anchors, one tick counts as one nanosecond.
    #[must_use]
    pub fn new(kind: ClockKind, anchors: &[Anchor]) -> Self {
        let mut sorted = anchors.to_vec();
        sorted.sort_by_key(|anchor| anchor.ticks);
        let mut kept: Vec<Anchor> = Vec::with_capacity(sorted.len().max(1));
        for anchor in sorted {
            if kept.last().is_none_or(|last| {
                anchor.ticks > last.ticks && anchor.monotonic_ns > last.monotonic_ns
            }) {
                kept.push(anchor);
            }
        }
        if kind == ClockKind::Monotonic {
            // Ticks are nanoseconds already. The anchors are needed only for the time of day.
            for anchor in &mut kept {
                anchor.monotonic_ns = anchor.ticks;
            }
        }
        let rate = match (kept.first(), kept.last()) {
            (Some(first), Some(last)) if first.ticks < last.ticks => {
                (last.monotonic_ns - first.monotonic_ns) as f64 / (last.ticks - first.ticks) as f64
            }
            _ => 1.0,
        };
        if kept.is_empty() {
            let zero = Anchor {
                ticks: 0,
                monotonic_ns: 0,
                unix_ns: 0,
            };
            kept.push(zero);
        }
        Self {
            anchors: kept,
            rate,
        }
    }

    /// Returns the mean number of nanoseconds per tick between the first and the last anchor.
    #[must_use]
    pub const fn ns_per_tick(&self) -> f64 {
        self.rate
    }

    /// Returns the time between the first and the last anchor, in nanoseconds. If it is shorter than a few
    /// milliseconds, the measured rate of the processor's counter is imprecise.
    #[must_use]
    pub fn tied_ns(&self) -> u64 {
        match (self.anchors.first(), self.anchors.last()) {
            (Some(first), Some(last)) => last.monotonic_ns - first.monotonic_ns,
            _ => 0,
        }
    }

    /// Converts `ticks` to a time of `CLOCK_MONOTONIC`, in nanoseconds.
    #[must_use]
    pub fn ns(&self, ticks: u64) -> MonotonicNs {
        let after = self.anchors.partition_point(|anchor| anchor.ticks <= ticks);
        let base = self.anchors[after.saturating_sub(1)];
        let rate = match (after.checked_sub(1), self.anchors.get(after)) {
            (Some(_), Some(next)) => {
                (next.monotonic_ns - base.monotonic_ns) as f64 / (next.ticks - base.ticks) as f64
            }
            _ => self.rate,
        };
        if ticks >= base.ticks {
            base.monotonic_ns
                .saturating_add(scaled(ticks - base.ticks, rate))
        } else {
            base.monotonic_ns
                .saturating_sub(scaled(base.ticks - ticks, rate))
        }
    }

    /// Converts a duration in ticks, which begins at tick `start`, to nanoseconds.
    #[must_use]
    pub fn duration_ns(&self, start: u64, duration: u64) -> u64 {
        self.ns(start.saturating_add(duration))
            .saturating_sub(self.ns(start))
    }

    /// Returns the number to add to a time of `CLOCK_MONOTONIC` to get nanoseconds since 1970. Uses the
    /// anchor that is nearest to `at`.
    #[must_use]
    pub fn unix_minus_monotonic(&self, at: MonotonicNs) -> i64 {
        let nearest = self
            .anchors
            .iter()
            .min_by_key(|a| a.monotonic_ns.abs_diff(at));
        nearest.map_or(0, |anchor| {
            anchor.unix_ns.wrapping_sub(anchor.monotonic_ns) as i64
        })
    }
}

/// Converts ticks to nanoseconds at `rate` nanoseconds per tick. Exact if the rate is 1.
fn scaled(ticks: u64, rate: f64) -> u64 {
    if rate == 1.0 {
        ticks
    } else {
        (ticks as f64 * rate) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchor(ticks: u64, monotonic_ns: u64) -> Anchor {
        Anchor {
            ticks,
            monotonic_ns,
            unix_ns: monotonic_ns + 1_000_000,
        }
    }

    #[test]
    fn time_between_anchors_is_even() {
        let anchors = [anchor(1000, 500), anchor(2000, 1000), anchor(3000, 2000)];
        let clock = Clock::new(ClockKind::Counter, &anchors);
        assert_eq!(clock.ns(1000), 500);
        assert_eq!(clock.ns(1500), 750);
        assert_eq!(clock.ns(2500), 1500);
        assert_eq!(clock.duration_ns(1500, 1000), 750);
        // In this test, the mean rate between the first and the last anchor is 0.75. It is used before the first
        // anchor and after the last one.
        assert_eq!(clock.ns(3100), 2075);
        assert_eq!(clock.ns(900), 425);
        assert_eq!(clock.ns(0), 0);
        assert_eq!(clock.unix_minus_monotonic(750), 1_000_000);
        assert_eq!(clock.tied_ns(), 1500);
    }

    #[test]
    fn a_monotonic_clock_needs_no_anchors() {
        let clock = Clock::new(ClockKind::Monotonic, &[]);
        assert_eq!(clock.ns(123), 123);
        assert_eq!(clock.ns(u64::MAX / 4), u64::MAX / 4);
        let clock = Clock::new(ClockKind::Monotonic, &[anchor(1000, 5), anchor(2000, 7)]);
        assert_eq!(clock.ns(1700), 1700);
    }

    #[test]
    fn anchors_that_go_back_are_left_out() {
        let anchors = [anchor(1000, 1000), anchor(2000, 10), anchor(u64::MAX, 3000)];
        let clock = Clock::new(ClockKind::Counter, &anchors);
        assert!(clock.ns(1 << 40) >= 1000);
        assert!(clock.ns(u64::MAX) >= clock.ns(1 << 40));
    }
}
