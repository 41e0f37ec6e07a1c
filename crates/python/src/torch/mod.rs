//! PyTorch: its profiler in the windows, and ranges for its modules.

pub mod modules;
pub mod profiler;
