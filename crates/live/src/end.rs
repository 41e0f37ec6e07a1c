//! The flag that asks the listening thread to end when the process ends.

use core::sync::atomic::{AtomicBool, Ordering};

use tllmprof_platform::lifecycle;

lifecycle::global! {
    stage: Sinks;

    /// True if the listening thread was asked to end.
    #[fork(reset)]
    static IS_ASKED: AtomicBool = AtomicBool::new(false);
}

/// Asks the listening thread to end. The store is sequentially consistent with the accesses to the variable that holds
/// the listening socket's descriptor. So either the thread sees the flag, or the caller sees the socket and shuts it
/// down, which wakes the thread.
pub(crate) fn ask() {
    IS_ASKED.store(true, Ordering::SeqCst);
}

/// Returns true if the listening thread was asked to end.
pub(crate) fn is_asked() -> bool {
    IS_ASKED.load(Ordering::SeqCst)
}
