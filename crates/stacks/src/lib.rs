//! Samples the stacks of the threads that make steps, while a window is open (`TLLMPROF_STACKS`).
//!
//! ```text
//! iteration begins ──▶ followed ◀── sampler ──▶ frames ──▶ the record
//!                                      ├──▶ scheduled: does the thread run?
//!                                      └──▶ native, modules: what the kernel takes
//! ```
//!
//! A thread of the library's own ([`sampler`]) reads what the others are in, at random intervals. It takes none of the
//! host's locks, sends no signal and stops nobody. Which threads make steps they say themselves ([`followed`]).

mod followed;
mod frames;
mod modules;
mod native;
mod sampler;
mod scheduled;
#[cfg(test)]
#[path = "../../../tests/common/skipped.rs"]
mod skipped;

use tllmprof_capture::AddOn;
use tllmprof_config::Window;
use tllmprof_session::Place;

/// The sampler, switched with the windows.
pub struct StackSampler;

impl AddOn for StackSampler {
    fn window_is_open(&self, _: Window, _: &Place<'_>) {
        sampler::window_opens();
    }

    fn iteration_begins(&self) {
        sampler::iteration_begins();
    }

    fn window_closes(&self, _: &Place<'_>) {
        sampler::window_closes();
    }

    fn process_ends(&self) {
        sampler::process_ends();
    }
}
