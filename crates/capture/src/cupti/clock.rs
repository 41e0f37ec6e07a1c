//! Conversion between CUPTI's clock and the clock of the record, whose unit is the tick.
//!
//! CUPTI's clock counts nanoseconds. It is `CLOCK_REALTIME`, or a clock that differs from it by a constant
//! ([`ahead`]). The conversion uses two moments at which both clocks were read, and assumes that ticks pass at a
//! constant rate between these moments.

use tllmprof_platform::system::{SystemClock, nanoseconds};
use tllmprof_recorder as recorder;

/// One moment as both clocks show it: in nanoseconds of CUPTI's clock, and in ticks of the record's clock.
#[derive(Clone, Copy, Default)]
pub(crate) struct ClockReading {
    pub ns: u64,
    pub ticks: u64,
}

impl ClockReading {
    /// Reads both clocks several times, and returns the pair of readings that were taken within the shortest time.
    /// `read` returns the time of CUPTI's clock in nanoseconds.
    pub(crate) fn new(mut read: impl FnMut() -> u64) -> Self {
        const MAX_TRIES: usize = 8;
        let mut once = || {
            let before = recorder::ticks();
            let ns = read();
            let took = recorder::ticks().wrapping_sub(before);
            let ticks = before.wrapping_add(took / 2);
            (took, Self { ns, ticks })
        };
        let mut best = once();
        for _ in 1..MAX_TRIES {
            let next = once();
            if next.0 < best.0 {
                best = next;
            }
        }
        best.1
    }

    /// Returns a reading of both clocks at the current moment. CUPTI's time is read from `CLOCK_REALTIME`.
    pub(crate) fn now() -> Self {
        Self::new(|| nanoseconds(SystemClock::Realtime))
    }

    /// Returns the ticks that correspond to the time `ns`, by linear interpolation between this reading and a later
    /// one.
    pub(crate) fn ticks_at(&self, later: &Self, ns: u64) -> u64 {
        let passed = later.ns.saturating_sub(self.ns);
        let ticks = later.ticks.saturating_sub(self.ticks);
        if passed == 0 {
            return later.ticks;
        }
        let since = i128::from(ns) - i128::from(self.ns);
        let moved = since * i128::from(ticks) / i128::from(passed);
        u64::try_from(i128::from(self.ticks) + moved).unwrap_or(0)
    }

    /// Returns the nanoseconds that correspond to `ticks`, by linear interpolation between this reading and a later
    /// one.
    fn ns_at(&self, later: &Self, ticks: u64) -> u64 {
        let swapped = |reading: &Self| Self {
            ns: reading.ticks,
            ticks: reading.ns,
        };
        swapped(self).ticks_at(&swapped(later), ticks)
    }
}

/// Returns the number of nanoseconds by which the clock that `read` reads is ahead of `CLOCK_REALTIME`. Returns 0 if
/// the difference is so small that both must be the same clock, or if `read` returns 0 because it cannot read its
/// clock. The result is right even if this thread is descheduled between readings.
pub(crate) fn ahead(read: impl FnMut() -> u64) -> i64 {
    const MAX_SKEW_NS: u64 = 100_000;
    let before = ClockReading::now();
    let theirs = ClockReading::new(read);
    let after = ClockReading::now();
    let ours = before.ns_at(&after, theirs.ticks);
    let ahead = theirs.ns.wrapping_sub(ours).cast_signed();
    if theirs.ns == 0 || ahead.unsigned_abs() < MAX_SKEW_NS {
        0
    } else {
        ahead
    }
}
