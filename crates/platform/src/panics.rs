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
    use super::*;
    use crate::log::tests::{Stderr, file};

    #[test]
    fn a_panic_becomes_a_result() {
        // Another test counts the lines of panics.
        let _one = Stderr::is(&file());
        assert_eq!(contained(-1, || panic!("on purpose")), -1);
        assert_eq!(contained(-1, || 5), 5);
    }
}
