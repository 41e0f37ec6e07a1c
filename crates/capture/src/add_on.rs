//! Interface of the components, other than the profiler, that are switched on and off with a window.

use tllmprof_config::Window;
use tllmprof_session::Place;

/// A component that is switched with each window, such as the PyTorch profiler or the routers.
///
/// Its methods run on the thread that switches, without a lock of this crate.
pub trait AddOn: Sync {
    /// Called before a window opens: nothing has been switched on.
    fn window_opens(&self, _: &Place<'_>) {}
    /// Called after the requested window has been opened.
    fn window_is_open(&self, _: Window, _: &Place<'_>) {}
    /// Called when an iteration begins on the calling thread, inside a window or outside. Must not wait.
    fn iteration_begins(&self) {}
    /// Called when the stretch of time has begun on the calling thread that stands for an iteration while no step is
    /// known.
    fn span_has_begun(&self) {}
    /// Called when that stretch is dropped. Must neither wait nor allocate.
    fn span_is_replaced(&self) {}
    /// Called when the window closes. The device is idle, unless a stream capture is under way, and nothing has been
    /// switched off yet.
    fn window_closes(&self, _: &Place<'_>) {}
    /// Called after the window has closed.
    fn window_is_closed(&self, _: &Place<'_>) {}
    /// Called when the process ends: nothing more is recorded. Must neither wait nor allocate.
    fn process_ends(&self) {}
    /// Returns true if the component uses windows, for example to record them.
    fn takes_windows(&self) -> bool {
        false
    }
    /// Returns what is lost if the process ends with a window open.
    fn loses(&self) -> Option<&'static str> {
        None
    }
}

/// All components, in the order in which they are switched: one list.
#[linkme::distributed_slice]
pub static ADD_ONS: [&'static [&'static dyn AddOn]];

pub(crate) fn add_ons() -> impl Iterator<Item = &'static dyn AddOn> {
    ADD_ONS.iter().copied().flatten().copied()
}
