//! The door for ranges that the program opens and closes through NVTX.
//!
//! Each module that uses NVTX has a table of functions that a tool may fill. This library comes first (see
//! [`tllmprof_platform::injection`]). It lets the tool that was there before, or that is [`linked`] into the program,
//! fill its functions, and then replaces the few that it needs by its own ([`chain`]). These check whether the rule
//! names the range ([`ranges`]), have it recorded ([`kept`]), and call the tool's function. Without a tool they return
//! what NVTX returns without one.

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
