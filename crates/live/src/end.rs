//! The thread's end, with the process.

use core::sync::atomic::{AtomicBool, Ordering};

use tllmprof_platform::lifecycle;

lifecycle::global! {
    stage: Sinks;

    /// It is to end.
    #[fork(reset)]
    static IS_ASKED: AtomicBool = AtomicBool::new(false);
}

/// The thread is to end. In one order with the number of the listening socket.
pub fn ask() {
    IS_ASKED.store(true, Ordering::SeqCst);
}

/// Whether the thread is to end.
pub fn is_asked() -> bool {
    IS_ASKED.load(Ordering::SeqCst)
}
