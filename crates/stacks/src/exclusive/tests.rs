//! A lock for tests that use the open files of the sampling thread.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks out the other tests that use the open files.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
