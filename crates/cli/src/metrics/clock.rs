//! The clocks of GPU metrics records.

use rustix::time::{ClockId, clock_gettime};
use tllmprof_record::Anchor;

/// The time of `CLOCK_MONOTONIC`, in nanoseconds.
pub fn monotonic() -> u64 {
    read(ClockId::Monotonic)
}

/// An anchor for the current time, in a record whose ticks are nanoseconds of `CLOCK_MONOTONIC`.
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
