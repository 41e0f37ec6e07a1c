//! Checks the library with real nsys, without a GPU. With `-c nvtx -p capture@tllmprof`, nsys records only while the
//! library's range `capture` is open. Its reports must then have exactly the window's iterations.
//!
//! The driver is a stand-in. A test prints `skipped: …` if nsys is not available.

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
