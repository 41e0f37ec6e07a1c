//! Assigns GPU time to scopes (`TLLMPROF_LAYERS`): the open *scopes* of each thread as a path, and the scope
//! in which each node of a CUDA graph was captured.
//!
//! [`paths`] numbers the paths. [`stack`] keeps the open scopes of each thread, among them calls of native
//! functions ([`native`]). [`capture`] finds the nodes that a call makes while a stream is captured, and
//! [`added`] those that the program adds itself. [`graphs`] follows graphs from there to their launches, and
//! [`judge`] compares the kernels of a replay with those of the capture and writes what is known. Nothing is
//! done at a replay, and nothing at all without the variable.

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

/// Stores what the settings ask for. Called by the constructor.
pub fn start(settings: &Settings) {
    look_for(Looks::Scopes, are_asked_for(settings));
}

/// Returns true if the settings ask for scopes: that requires a record to write them to.
pub fn are_asked_for(settings: &Settings) -> bool {
    settings.layers && tllmprof_recorder::is_asked_for(settings)
}

/// Returns true if scopes are followed.
#[inline]
pub fn are_on() -> bool {
    looks_for(Looks::Scopes)
}

/// Returns true if the nodes that calls make are noted now: some stream is captured.
#[inline]
pub fn are_noting() -> bool {
    are_on() && session::is_any_capturing()
}
