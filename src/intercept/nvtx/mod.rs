//! The door for ranges: what the program opens and closes through NVTX.
//!
//! Each module that uses NVTX has a table of functions that a tool may fill. This library comes
//! first (see [`crate::injection`]), lets the tool that was there before fill what it wants, and
//! puts its own functions in front of the few it needs ([`chain`]). They ask whether the range is
//! one that the rule names ([`ranges`]), have it recorded ([`recorded`]), and go on to the tool's
//! function; without a tool they return what NVTX returns without one.

mod abi;
mod chain;
mod ranges;
mod recorded;
mod wrappers;

pub use ranges::Unseen;

/// Makes the locks free, whoever held them, and follows no range any more.
///
/// # Safety
/// The process has one thread.
pub unsafe fn in_child() {
    // SAFETY: the caller's promise.
    unsafe {
        chain::in_child();
        ranges::in_child();
    }
}
