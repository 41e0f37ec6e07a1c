//! The control protocol: one JSON object a line, in both directions ([`Request`], [`Event`]), and where the socket
//! lies ([`place`]). The library and the command both use it; `docs/live.md` describes it for others.
//!
//! Lines come from anybody who can connect: parsing is bounded in length and depth, and never panics.

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

/// Bytes that a line may have, its end not counted.
pub const LONGEST: usize = 16 << 10;

/// Steps of a capture where nobody says how many or for how long.
pub const STEPS: u64 = 50;
