//! The control protocol, through which the command makes requests to the library in a running process. Each
//! line is one JSON object, in both directions ([`Request`], [`ControlEvent`]). [`place`] defines the path of the
//! socket. Both the library and the command use this crate; `docs/live.md` describes the protocol for other
//! programs.
//!
//! Lines may come from any process that can connect. So the parser accepts only lines of limited length and nesting
//! depth, and never panics.

#![forbid(unsafe_code)]

mod answer;
mod event;
pub mod json;
pub mod jumps;
pub mod place;
mod request;

pub use answer::Answer;
pub use event::{Closed, ControlEvent, Phase, Status, StepHistograms, Taken};
pub use request::{Capture, Request};

/// The version of the protocol. The library refuses requests of a later version.
pub const VERSION: u64 = 1;

/// The largest length of a line of the protocol in bytes, without its newline.
pub const LONGEST: usize = 16 << 10;

/// The number of steps of a window if its request gives no number of steps and no duration.
pub const STEPS: u64 = 50;
