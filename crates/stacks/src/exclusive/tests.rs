//! A lock for tests that use the sampler's table of open `/proc` files, or the ids of frames. The process has only one
//! such table, and one counter of frame ids.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits until no other test uses the table of open files or the ids of frames. Other tests then wait until the result
/// is dropped.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
