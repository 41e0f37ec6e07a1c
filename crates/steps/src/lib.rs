//! What an iteration is, which of them a window holds, and what ranges mean.
//!
//! [`step`] makes one sequence of iterations from the calls of many threads, [`window`] says which of
//! them are captured, [`turn`] which thread switches to there, [`ranges`] follows the program's NVTX
//! ranges. All of it decides by what it is handed; nothing here knows CUDA's functions, processes or
//! files.

#![forbid(unsafe_code)]

pub mod ranges;
pub mod sampling;
pub mod steady;
pub mod step;
pub mod trigger;
pub mod turn;
pub mod window;
