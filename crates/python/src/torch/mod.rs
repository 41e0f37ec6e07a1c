//! Support for PyTorch: its profiler in windows, ranges for its modules, and scopes in compiled
//! code.

pub mod compiled;
mod fused;
mod gone;
pub mod known;
pub mod modules;
pub mod profiler;
