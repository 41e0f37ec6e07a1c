//! Makes callbacks (functions of this library that CPython calls) panic on purpose, for tests.

use core::sync::atomic::{AtomicU32, Ordering};

use tllmprof_platform::lifecycle;

lifecycle::global! {
    /// The number of callbacks that are still to panic.
    #[fork(keep = "tests that fork ask for none")]
    #[restart(keep)]
    static PANICS: AtomicU32 = AtomicU32::new(0);
}

/// Makes the library's next `times` callbacks from CPython panic when they look up their thread.
pub(crate) fn panic_next(times: u32) {
    PANICS.store(times, Ordering::Relaxed);
}

/// Returns the number of requested panics that have not happened yet.
pub(crate) fn panics_left() -> u32 {
    PANICS.load(Ordering::Relaxed)
}

/// Panics if a test has requested a panic. The library's callbacks for CPython call this function.
pub(crate) fn panic_if_asked() {
    let less = |left: u32| left.checked_sub(1);
    let asked = PANICS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    assert!(asked.is_err(), "asked for");
}
