//! Receives the ranges that the program opens and closes through NVTX.
//!
//! Each module that uses NVTX has a table of functions that a tool (a profiler) may fill. This library is the tool
//! that NVTX finds (see [`tllmprof_platform::injection`]). It first lets another tool fill the table, if the user has
//! configured one or if one is [`linked`] into the program. Then it replaces the few functions that it needs by
//! wrappers ([`chain`]). A wrapper checks whether the step rule names the range ([`ranges`]), has the range recorded
//! ([`kept`]), and calls the other tool's function. If there is no other tool, the wrapper returns the value that
//! NVTX returns without a tool.

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
