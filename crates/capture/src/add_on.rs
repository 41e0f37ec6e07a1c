//! What is switched with a window beside the profiler.

use tllmprof_config::Window;
use tllmprof_session::Place;

/// What else is switched with a window: the PyTorch profiler, the routers.
///
/// Called on the thread that switches, with nothing of this crate's locked.
pub trait AddOn: Sync {
    /// A window is about to open: nothing has been switched on.
    fn window_opens(&self, _: &Place<'_>) {}
    /// The window that was asked for has been opened.
    fn window_is_open(&self, _: Window, _: &Place<'_>) {}
    /// An iteration begins on the calling thread, inside a window or outside. Waits for nothing.
    fn iteration_begins(&self) {}
    /// The window closes: the device has been waited for, unless a stream capture is under way, and
    /// nothing has been switched off.
    fn window_closes(&self, _: &Place<'_>) {}
    /// The window has closed.
    fn window_is_closed(&self, _: &Place<'_>) {}
    /// The process ends: nothing more is recorded. Neither waits nor allocates.
    fn process_ends(&self) {}
    /// Whether windows are for this, too: it records them, or does something else with them.
    fn takes_windows(&self) -> bool {
        false
    }
    /// The process ends with a window open: what is lost by that.
    fn loses(&self) -> Option<&'static str> {
        None
    }
}

/// What else is switched, in the order in which it is: one list.
#[linkme::distributed_slice]
pub static ADD_ONS: [&'static [&'static dyn AddOn]];

pub(crate) fn add_ons() -> impl Iterator<Item = &'static dyn AddOn> {
    ADD_ONS.iter().copied().flatten().copied()
}
