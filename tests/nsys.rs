//! Real nsys, without a GPU: with `-c nvtx -p capture@tllmprof` its reports hold exactly the window's iterations.
//!
//! The driver is the stand-in, the profiler is not. Says `skipped: …` where nsys cannot be had.

mod common;
#[path = "nsys/counted_ranges.rs"]
mod counted_ranges;
#[path = "nsys/engine.rs"]
mod engine;
#[path = "nsys/exports.rs"]
mod exports;
#[path = "nsys/own_ranges.rs"]
mod own_ranges;
#[path = "nsys/profile.rs"]
mod profile;
