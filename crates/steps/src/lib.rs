//! Decides what an iteration is, which iterations a window holds, and what ranges mean.
//!
//! [`step`] turns the calls of many threads into one sequence of iterations. [`window`] decides which of them
//! are captured, [`turn`] which thread switches, and [`ranges`] follows the program's NVTX ranges. All of it
//! works on its arguments only; nothing here knows CUDA's functions, processes or files.

#![forbid(unsafe_code)]

pub mod length;
pub mod ranges;
pub mod sampling;
pub mod steady;
pub mod step;
pub mod trigger;
pub mod turn;
pub mod window;
