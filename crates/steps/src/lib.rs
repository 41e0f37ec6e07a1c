//! Decides which calls begin an iteration, which iterations a window contains, and which NVTX ranges mark a step.
//!
//! [`step`] turns the calls of many threads into one sequence of iterations. [`window`] decides which of the
//! iterations are captured, and [`turn`] decides which thread opens and closes windows. [`ranges`] tracks the
//! program's NVTX ranges. This crate works only on its arguments: it calls no CUDA function and reads no file.

#![forbid(unsafe_code)]

pub mod length;
pub mod ranges;
pub mod sampling;
pub mod steady;
pub mod step;
pub mod trigger;
pub mod turn;
pub mod window;
