//! The clocks for records of GPU metrics.

use rustix::time::{ClockId, clock_gettime};
use tllmprof_record::Anchor;

/// Returns the time of `CLOCK_MONOTONIC`, in nanoseconds.
pub(crate) fn monotonic() -> u64 {
    read(ClockId::Monotonic)
}

/// Returns the time of day in microseconds since 1970, which is NVML's clock.
pub(crate) fn unix_us() -> u64 {
    read(ClockId::Realtime) / 1000
}

/// Returns an anchor for the current time. It relates the record's clock, nanoseconds of
/// `CLOCK_MONOTONIC`, to the time of day.
pub(crate) fn anchor() -> Anchor {
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
