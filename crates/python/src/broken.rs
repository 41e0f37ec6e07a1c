//! Panics on purpose in what CPython calls, for tests.

use core::sync::atomic::{AtomicU32, Ordering};

use tllmprof_platform::lifecycle;

lifecycle::global! {
    /// How often what CPython calls of ours is to panic.
    #[fork(keep = "tests that fork ask for none")]
    #[restart(keep)]
    static PANICS: AtomicU32 = AtomicU32::new(0);
}

/// Has what CPython calls of ours panic so many times, where it looks for its thread.
pub fn panic_next(times: u32) {
    PANICS.store(times, Ordering::Relaxed);
}

/// How many of these panics are still to come.
pub fn panics_left() -> u32 {
    PANICS.load(Ordering::Relaxed)
}

/// For what CPython calls.
pub fn panic_if_asked() {
    let less = |left: u32| left.checked_sub(1);
    let asked = PANICS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    assert!(asked.is_err(), "asked for");
}
