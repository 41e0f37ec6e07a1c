//! The door for ranges: what the program opens and closes through NVTX.
//!
//! Each module that uses NVTX has a table of functions that a tool may fill. This library comes
//! first (see [`tllmprof_platform::injection`]), lets the tool that was there before, or is [`linked`] into the
//! program, fill what it wants, and
//! puts its own functions in front of the few it needs ([`chain`]). They ask whether the range is
//! one that the rule names ([`ranges`]), have it recorded ([`kept`]), and go on to the tool's
//! function; without a tool they return what NVTX returns without one.

mod abi;
mod chain;
mod chains;
mod kept;
mod linked;
mod name;
mod ranges;
mod text;
mod wrappers;

pub use abi::GetExportTable;
pub use chain::{initialize, initialize_extension};
pub use ranges::Unseen;
