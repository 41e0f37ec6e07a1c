//! Stops panics inside the library: they are bugs of this library, and must not reach the host program.
//!
//! A function that the program or the library's assembly code calls must not let a panic escape, because the panic
//! would end the process. So each of these functions runs its code in [`contained`]. [`crate::internal_error`] logs
//! the panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `act`, and returns `otherwise` if `act` panics. Unwinding drops the guards that `act` has created, such as
/// those of locks. Not to be used around code of the program, which may throw exceptions.
#[inline(always)]
pub fn contained<R>(otherwise: R, act: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(result) => result,
        Err(payload) => {
            // The panic's payload is not dropped, because that would run more of the code that has
            // failed.
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
        // `resume_unwind` does not call the panic hook. Another test counts the lines that the hook
        // logs, and this panic must not add one.
        assert_eq!(contained(-1, || resume_unwind(Box::new("on purpose"))), -1);
        assert_eq!(contained(-1, || 5), 5);
    }
}
