//! Panics are bugs of this library, and must not reach the host.
//!
//! A panic must not leave a function that the host or the assembler calls: it would end the process. So each
//! such function runs in [`contained`]. [`crate::internal_error`] logs the panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `act`, and returns `otherwise` if it panics. Locks and marks of the thread are released on the way
/// here. Not for code of the host, which may throw.
#[inline(always)]
pub fn contained<R>(otherwise: R, act: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(result) => result,
        Err(payload) => {
            // The payload is not dropped, so that no more of the failed code runs.
            core::mem::forget(payload);
            otherwise
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;

    use super::*;

    #[test]
    fn a_panic_becomes_a_result() {
        // This skips the panic hook, whose lines another test counts.
        assert_eq!(contained(-1, || resume_unwind(Box::new("on purpose"))), -1);
        assert_eq!(contained(-1, || 5), 5);
    }
}
