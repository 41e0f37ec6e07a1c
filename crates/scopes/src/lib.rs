//! Finds the scopes to which GPU time belongs (`TLLMPROF_LAYERS`). A *scope* is a range, module or
//! function. The open scopes of a thread form a path. For CUDA graphs, the scope in which each node
//! was captured is stored.
//!
//! [`paths`] assigns numbers to the paths. [`stack`] stores the open scopes of each thread, which
//! include calls of native functions ([`native`]). [`capture`] finds the nodes that a call creates
//! while a stream is captured, and [`added`] stores the nodes that the program adds with explicit
//! calls. [`graphs`] follows graphs from the creation of their nodes to their launches. [`judge`]
//! compares the kernels of a replay with the kernels of the capture, and writes the result. A replay
//! itself costs nothing extra. If `TLLMPROF_LAYERS` is not set, no scopes are stored.

mod added;
mod capture;
mod driver;
mod entry;
mod graphs;
mod judge;
pub mod native;
mod nodes;
mod paths;
mod stack;
#[cfg(test)]
mod tests;

use tllmprof_config::Settings;
use tllmprof_recorder::{Looks, look_for, looks_for};
use tllmprof_session as session;

pub use added::{child_is_added, node_is_added};
pub use capture::{node_begins, node_ends};
pub use entry::Within;
pub use graphs::{
    capture_ends, cloned, exec_is_destroyed, forget_names, graph_is_destroyed, instantiated,
    is_changed, resolve, updated,
};
pub use judge::{Replayed, judge, node};
pub use nodes::{LaunchNode, Made, name_hash};
pub use stack::{OWN, innermost, launches, pop, push, push_within};

/// Enables scopes if the settings request them. Called when this library is loaded.
pub fn start(settings: &Settings) {
    look_for(Looks::Scopes, are_asked_for(settings));
}

/// Returns true if the settings request scopes and a record to which they are written.
pub fn are_asked_for(settings: &Settings) -> bool {
    settings.layers && tllmprof_recorder::is_asked_for(settings)
}

/// Returns true if the library stores the open scopes of threads in this process.
#[inline]
pub fn are_on() -> bool {
    looks_for(Looks::Scopes)
}

/// Returns true if the nodes that calls create have to be found now, because a stream is captured.
#[inline]
pub fn are_noting() -> bool {
    are_on() && session::is_any_capturing()
}
