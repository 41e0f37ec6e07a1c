//! Panics: flaws of this library, which must not become the host's.
//!
//! A panic must not leave a function that the host or the assembler calls: it would end the process. So each
//! such function runs in [`contained`]. What is logged of it, [`crate::internal_error`] says.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `act`; the result is `otherwise` where it panics. Locks and marks of the thread are given back on
/// the way here. Not for code of the host's, which may throw.
#[inline(always)]
pub fn contained<R>(otherwise: R, act: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(result) => result,
        Err(payload) => {
            // Nothing more is run of what has failed.
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
        // Without the hook, whose lines another test counts.
        assert_eq!(contained(-1, || resume_unwind(Box::new("on purpose"))), -1);
        assert_eq!(contained(-1, || 5), 5);
    }
}
