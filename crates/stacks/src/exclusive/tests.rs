//! A lock for tests that use the sampler's table of open `/proc` files. The process has only one such table.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits until no other test uses the table of open files. Other tests then wait until the result is dropped.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
