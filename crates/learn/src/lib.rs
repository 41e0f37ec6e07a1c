//! Learns, online, which host wait of a CUDA process recurs once an iteration.
//!
//! What goes in is the calls that a preloaded library sees: launches, graph launches, copies and
//! the returns of host waits, each with the thread that made it. What comes out is the calls at
//! which an iteration opens, and a sentence that says why.
//!
//! # How
//! - A *site* is a wait or a device-to-host copy known by what led to it: the calls its thread made
//!   just before. Sizes and graph handles are left out, as batch sizes change both. A thread that
//!   launches nothing itself (a copy thread, an output thread) is known by its calls alone.
//! - A site at which nothing was launched since it last occurred is no iteration: idle polling and
//!   second reads of the same results fall away by themselves.
//! - Everything is measured in the *work* of an engine: of the threads that launch for one and the
//!   same loop. A thread that launches and never waits (PyTorch's backward pass) is the hand of
//!   those that do; threads that take turns at the same places (a pool, one for each request) are
//!   one engine, and threads whose waits find each other in the midst of work are several
//!   ([`engine`]). The engine that launches most is followed.
//! - Among sites the learner begins with the most frequent and goes outward for as long as a rarer
//!   one explains why the work between occurrences varies ([`choose`]): so the loop over draft
//!   steps gives way to the loop over passes of the target model, while the loop over requests,
//!   which adds next to nothing of its own, does not replace the loop over tokens. Where the work
//!   hardly varies there is nothing to explain.
//! - Where the work does not vary and a step waits for each of several equal parts, the host's time distinguishes
//!   the parts: the longest of as many pauses always comes before the same part ([`choose`]).
//! - Layers that loop over experts are recognized by their many waits and by coming equally often in each
//!   pass, once in which there are a model's first and last kernels as well. What may be such a
//!   layer is not relied on.
//! - Once settled, a launch costs a few stores; only waits are looked at. A watch over the work
//!   between occurrences starts the learning again when the pattern is gone or has changed.
//!
//! # Constraints
//! No allocation, no panic, no floating point; everything lies in fixed tables of [`Learner`] and
//! [`Trails`], together below 256 KiB. Both can be statics: their initial value is all zeros.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod asked;
mod call;
mod choose;
mod engine;
mod history;
mod learner;
mod pause;
mod rule;
mod site;
mod trail;

pub use asked::Asked;
pub use call::Call;
pub use learner::{Boundary, Learner, State};
pub use pause::Clock;
pub use rule::Rule;
pub use trail::{THREADS, Trail, Trails};

const _: () = assert!(
    size_of::<Learner>() + size_of::<Trails>() <= 256 << 10,
    "the learner's memory is bounded"
);
