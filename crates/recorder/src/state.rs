//! Whether there is a record and a window, and the counters of its header.

use core::sync::atomic::{AtomicBool, Ordering};

use tllmprof_platform::lifecycle;
use tllmprof_record::Counter;

use super::{reuse, space};

lifecycle::global! {
    stage: Sinks;

    /// A window is open: events are kept.
    #[fork(reset)]
    #[together(calls)]
    pub static IS_RECORDING: AtomicBool = AtomicBool::new(false);
    /// There is a record.
    #[fork(reset)]
    #[together(iterations)]
    pub static IS_ON: AtomicBool = AtomicBool::new(false);
    /// A record was asked for.
    #[fork(keep = "the settings are the same")]
    pub static IS_WANTED: AtomicBool = AtomicBool::new(false);
}

/// Whether events are kept now. If they are, the calling thread finds the record's id and clock: where loads may be
/// reordered, as on AArch64, only an acquire load guarantees that.
#[inline]
pub fn is_recording() -> bool {
    IS_RECORDING.load(Ordering::Acquire)
}

/// Whether events are kept that are cheap: while a window is open, and outside where the latest iterations are kept.
#[inline]
pub fn is_keeping() -> bool {
    is_recording() || reuse::is_on()
}

/// Whether there is a record. Where there is, the calling thread finds its id and clock, as above.
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Acquire)
}

/// Whether one was asked for.
pub fn is_wanted() -> bool {
    IS_WANTED.load(Ordering::Relaxed)
}

/// Adds to a counter of the record, if there is one.
pub fn add(counter: Counter, more: u64) {
    if is_on()
        && let Some(header) = space::header()
    {
        header.add(counter, more);
    }
}

/// Sets a counter of the record that is kept elsewhere, if there is one.
pub fn set(counter: Counter, value: u64) {
    if is_on()
        && let Some(header) = space::header()
    {
        header.set(counter, value);
    }
}
