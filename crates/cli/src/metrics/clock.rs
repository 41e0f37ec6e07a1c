//! The clocks that records are held against.

use rustix::time::{ClockId, clock_gettime};
use tllmprof_record::Anchor;

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub fn monotonic() -> u64 {
    read(ClockId::Monotonic)
}

/// Now, in a record whose ticks are those nanoseconds.
pub fn anchor() -> Anchor {
    let monotonic_ns = monotonic();
    Anchor {
        ticks: monotonic_ns,
        monotonic_ns,
        unix_ns: read(ClockId::Realtime),
    }
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}
