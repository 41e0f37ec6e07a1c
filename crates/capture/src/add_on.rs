//! The interface of add-ons: components, other than the CUDA profiler (`cuProfilerStart`), that are switched on and off
//! with each window (range of profiled iterations).

use tllmprof_config::IterationRange;
use tllmprof_session::Place;

/// A component that is switched on and off with each window (range of profiled iterations), such as the PyTorch
/// profiler.
///
/// The methods are called by the thread that opens or closes the window. This crate holds no lock during these calls.
pub trait AddOn: Sync {
    /// Called before a window opens, before the CUDA profiler or any add-on is switched on for this window.
    fn window_opens(&self, _: &Place<'_>) {}
    /// Called after a window has opened. The `IterationRange` argument is the range that the user requested.
    fn window_is_open(&self, _: IterationRange, _: &Place<'_>) {}
    /// Called when an iteration begins on the calling thread, inside or outside of a window. Must not wait.
    fn iteration_begins(&self) {}
    /// Called when a span has begun on the calling thread. A span is a period of time that stands for an iteration as
    /// long as the library has not found out where iterations begin.
    fn span_has_begun(&self) {}
    /// Called when the record has begun, if it keeps the latest iterations or the current span until the first planned
    /// window opens.
    fn latest_are_kept(&self) {}
    /// Called when it is known that this process opens no planned window, because the settings select other ranks. Must
    /// neither wait nor allocate memory.
    fn no_window_is_planned(&self) {}
    /// Called when the window is about to close, before the CUDA profiler or any add-on is switched off. The library
    /// has waited until the device was idle, at most 5 s. It does not wait during a stream capture or with
    /// `--no-drain`.
    fn window_closes(&self, _: &Place<'_>) {}
    /// Called after the window has closed, when the CUDA profiler and all add-ons are switched off.
    fn window_is_closed(&self, _: &Place<'_>) {}
    /// Returns true if the component had to leave out work when a window closed, for example because of a stream
    /// capture. Then [`AddOn::catches_up`] is called when the next iteration begins, unless a window opens there. Must
    /// neither wait nor allocate memory.
    fn is_behind(&self) -> bool {
        false
    }
    /// Does the work that was left out, if that is possible now. While [`AddOn::is_behind`] returns true, called at the
    /// beginning of each iteration at which no window opens or closes.
    fn catches_up(&self, _: &Place<'_>) {}
    /// Called when the process ends. Nothing is recorded after this call. Must neither wait nor allocate memory.
    fn process_ends(&self) {}
    /// Returns true if the component itself makes use of windows. If no component does so, and no recorder or profiler
    /// is active, a warning reports that nothing recorded the window.
    fn takes_windows(&self) -> bool {
        false
    }
    /// Returns a warning about the data that the component would lose if the process ended now, while a window is open.
    /// `None` if it would lose nothing.
    fn loses(&self) -> Option<&'static str> {
        None
    }
}

/// All add-ons, in the order in which their methods are called. The library registers one list of add-ons here.
#[linkme::distributed_slice]
pub static ADD_ONS: [&'static [&'static dyn AddOn]];

pub(crate) fn add_ons() -> impl Iterator<Item = &'static dyn AddOn> {
    ADD_ONS.iter().copied().flatten().copied()
}
