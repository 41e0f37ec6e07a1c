//! The request that the thread ends, at the end of the process.

use core::sync::atomic::{AtomicBool, Ordering};

use tllmprof_platform::lifecycle;

lifecycle::global! {
    stage: Sinks;

    /// True if the thread must end.
    #[fork(reset)]
    static IS_ASKED: AtomicBool = AtomicBool::new(false);
}

/// Requests that the thread ends. The order relative to the listening socket's number is sequentially consistent.
pub fn ask() {
    IS_ASKED.store(true, Ordering::SeqCst);
}

/// Returns true if the thread must end.
pub fn is_asked() -> bool {
    IS_ASKED.load(Ordering::SeqCst)
}
