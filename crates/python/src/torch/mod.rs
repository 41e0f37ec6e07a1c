//! PyTorch: its profiler in the windows, ranges for its modules, and scopes in the code that it compiles.

pub mod compiled;
mod fused;
mod gone;
pub mod known;
pub mod modules;
pub mod profiler;
