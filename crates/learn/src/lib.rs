//! Learns, online, which host wait of a CUDA process recurs once per iteration.
//!
//! The input is the calls that a preloaded library sees: launches, graph launches, copies and the returns of host
//! waits, each with the thread that made it. The output is the calls at which an iteration opens, and a sentence that
//! says why.
//!
//! # Method
//! - A *site* (call site) is a wait or a device-to-host copy, identified by its context: the calls that its thread made
//!   just before. Sizes and graph handles are left out, because they change with the batch size. For a thread that
//!   launches nothing itself (a copy thread, an output thread), a context of no calls is preferred, so that all threads
//!   of a pool have the same sites.
//! - An occurrence of a site ends no iteration if nothing was launched since the previous occurrence. This rule
//!   excludes idle polling and second reads of the same results.
//! - An *engine* is a group of threads that launch for the same loop. All intervals are measured in the *work* of an
//!   engine: the number of its launches. A thread that launches and never waits (PyTorch's backward pass) is a *hand*:
//!   it works for the threads that do wait. Threads that take turns at the same sites (a pool, or one thread for each
//!   request) are one engine. If threads wait while other threads have unfinished work, the two groups are separate
//!   engines ([`engine`]). The learner follows the engine that launches most work.
//! - The learner begins with the most frequent site. It moves outward to a rarer site if that site explains why the
//!   work between occurrences varies ([`choose`]). So in speculative decoding the loop over passes of the target model
//!   replaces the loop over draft steps. The loop over requests, which adds almost no work of its own, does not replace
//!   the loop over tokens. If the work hardly varies, no outer loop is needed to explain it.
//! - If the work does not vary and a step waits for each of its equal parts, the host's time distinguishes the parts:
//!   the longest pause of a step always comes before the same part ([`choose`]).
//! - Layers that loop over experts have many waits. They are recognized by two signs: each pass over the layers has
//!   the same number of layers, and one interval of each pass has more work than the others, because it includes the
//!   model's first and last kernels. The learner does not rely on a site that may be such a layer.
//! - Once the learner has settled, a launch costs a few stores, and only waits and copies to the host are examined. The
//!   work between occurrences is still watched: learning starts again when the loop ends or changes.
//!
//! # Constraints
//! No allocation, no panic, no floating point; all data is in fixed tables of [`Learner`] and [`Trails`], together at
//! most 256 KiB. Both can be statics: their initial value is all zeros.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod asked;
mod call;
mod choose;
mod engine;
mod history;
mod learner;
mod pause;
mod periods;
mod rule;
mod site;
mod trail;

pub use asked::EndingCalls;
pub use call::Call;
pub use learner::{Boundary, Inner, Learner, LearnerState};
pub use pause::Clock;
pub use periods::Launches;
pub use rule::LearnedRule;
pub use trail::{THREADS, Trail, Trails};

const _: () = assert!(
    size_of::<Learner>() + size_of::<Trails>() <= 256 << 10,
    "the learner's memory is bounded"
);
