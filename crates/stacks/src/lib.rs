//! Samples the stacks of threads that make steps, or launch GPU work for steps, while a window (a recorded interval) is
//! open (`TLLMPROF_STACKS`). If the library itself decides when the first window opens, it also samples before that
//! window. So the latest iterations of a program that ends earlier have samples, too.
//!
//! ```text
//! iteration begins ──▶ followed ◀── sampler ──▶ frames ──▶ the record
//!                                      ├──▶ scheduled: does the thread run?
//!                                      ├──▶ asleep, unwind: what does it sleep in?
//!                                      ├──▶ loops: which threads run an event loop?
//!                                      ├──▶ others: what do other threads and child processes do meanwhile?
//!                                      ├──▶ native: stacks that the kernel records
//!                                      └──▶ modules: which function is at an address?
//! ```
//!
//! A thread of the library ([`sampler`]) reads the stacks of other threads at random intervals. It takes no lock of the
//! program, sends no signal and stops no thread. The threads that make steps or launch work add themselves to the table
//! of followed threads ([`followed`]). Threads that run an event loop (asyncio, uvloop) are sampled as well
//! ([`loops`]).

mod asleep;
#[cfg(test)]
#[path = "exclusive/tests.rs"]
mod exclusive;
mod files;
mod followed;
mod frames;
mod loops;
mod modules;
mod native;
mod others;
mod sampler;
mod scheduled;
#[cfg(test)]
#[path = "../../../tests/common/skipped.rs"]
mod skipped;
mod sockets;
#[cfg(test)]
mod tests;
mod time_limit;
mod unwind;

use tllmprof_capture::AddOn;
use tllmprof_config::IterationRange;
use tllmprof_session::Place;

/// Runs the sampler in each window (a recorded interval): sampling starts when the window opens and ends when it
/// closes. If the record keeps the latest iterations until the first planned window opens, sampling starts with the
/// record.
pub struct StackSampler;

impl AddOn for StackSampler {
    fn window_is_open(&self, _: IterationRange, _: &Place<'_>) {
        sampler::window_opens();
    }

    fn iteration_begins(&self) {
        sampler::iteration_begins();
    }

    fn latest_are_kept(&self) {
        sampler::window_opens();
    }

    fn no_window_is_planned(&self) {
        sampler::process_ends();
    }

    fn span_has_begun(&self) {
        sampler::iteration_begins();
    }

    fn window_closes(&self, _: &Place<'_>) {
        sampler::window_closes();
    }

    fn process_ends(&self) {
        sampler::process_ends();
    }
}
