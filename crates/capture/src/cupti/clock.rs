//! CUPTI's clock and the record's.
//!
//! CUPTI gives times of `CLOCK_REALTIME` in nanoseconds. The record's ticks pass evenly beside it
//! between two readings of both.

use tllmprof_platform::system::{Clock, nanoseconds};
use tllmprof_recorder as recorder;

/// The same moment on both clocks.
#[derive(Clone, Copy, Default)]
pub struct Reading {
    pub ns: u64,
    pub ticks: u64,
}

impl Reading {
    /// Reads both: of several tries the one that took least. `read` gives CUPTI's time.
    pub fn new(mut read: impl FnMut() -> u64) -> Self {
        const TRIES: usize = 8;
        let mut once = || {
            let before = recorder::ticks();
            let ns = read();
            let took = recorder::ticks().wrapping_sub(before);
            let ticks = before.wrapping_add(took / 2);
            (took, Self { ns, ticks })
        };
        let mut best = once();
        for _ in 1..TRIES {
            let next = once();
            if next.0 < best.0 {
                best = next;
            }
        }
        best.1
    }

    /// Now, by the clock that CUPTI reads.
    pub fn now() -> Self {
        Self::new(|| nanoseconds(Clock::Realtime))
    }

    /// The ticks at `ns`, by this reading and a later one.
    pub fn ticks_at(&self, later: &Self, ns: u64) -> u64 {
        let passed = later.ns.saturating_sub(self.ns);
        let ticks = later.ticks.saturating_sub(self.ticks);
        if passed == 0 {
            return later.ticks;
        }
        let since = i128::from(ns) - i128::from(self.ns);
        let moved = since * i128::from(ticks) / i128::from(passed);
        u64::try_from(i128::from(self.ticks) + moved).unwrap_or(0)
    }

    /// The nanoseconds at `ticks`, by this reading and a later one.
    fn ns_at(&self, later: &Self, ticks: u64) -> u64 {
        let swapped = |reading: &Self| Self {
            ns: reading.ticks,
            ticks: reading.ns,
        };
        swapped(self).ticks_at(&swapped(later), ticks)
    }
}

/// What the clock that `read` gives is ahead of `CLOCK_REALTIME`, in nanoseconds: 0 where they are one. This
/// thread may have to wait for a processor between two readings: what passes then counts for nothing.
pub fn ahead(read: impl FnMut() -> u64) -> i64 {
    const SAME: u64 = 100_000;
    let before = Reading::now();
    let theirs = Reading::new(read);
    let after = Reading::now();
    let ours = before.ns_at(&after, theirs.ticks);
    let ahead = theirs.ns.wrapping_sub(ours).cast_signed();
    if theirs.ns == 0 || ahead.unsigned_abs() < SAME {
        0
    } else {
        ahead
    }
}
