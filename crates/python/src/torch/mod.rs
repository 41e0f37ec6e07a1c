//! Support for PyTorch: its profiler in windows, ranges for its modules, and scopes in compiled
//! code.

pub(crate) mod compiled;
mod fused;
mod gone;
pub(crate) mod known;
pub(crate) mod modules;
pub(crate) mod profiler;
