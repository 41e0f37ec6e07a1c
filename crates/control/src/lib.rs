//! The control protocol: one JSON object per line, in both directions ([`Request`], [`Event`]), and the location
//! of the socket ([`place`]). The library and the command both use it; `docs/live.md` describes it for other
//! programs.
//!
//! Lines come from any process that can connect: parsing is bounded in length and depth, and never panics.

#![forbid(unsafe_code)]

mod answer;
mod event;
pub mod json;
pub mod jumps;
pub mod place;
mod request;

pub use answer::Answer;
pub use event::{Closed, Event, Phase, Status, Taken, Times};
pub use request::{Capture, Request};

/// The version of the protocol. A side that gets a line of a later version refuses it.
pub const VERSION: u64 = 1;

/// Limit for the bytes of a line, without its newline.
pub const LONGEST: usize = 16 << 10;

/// Number of steps of a capture for which neither steps nor a duration are given.
pub const STEPS: u64 = 50;
