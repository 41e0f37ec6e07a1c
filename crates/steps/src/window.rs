//! Decides which iterations are captured in windows.
//!
//! A window A-B contains the iterations A to B. It opens right before iteration A begins, and closes right before
//! iteration B + 1 begins. The thread whose step begins one of these two iterations waits until the window is open or
//! closed. Steps of other threads that began before A and are still running do not belong to the window. Steps of A to
//! B may still be running when the window closes.

mod schedule;
#[cfg(test)]
mod tests;

use tllmprof_config::range::IterationRange;

pub use schedule::{Conflict, Schedule};

/// A point in the sequence of iterations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Point {
    /// The point before the first iteration. Counting also restarts from this point.
    #[default]
    Start,
    /// The point at which the iteration with this number begins.
    In(u64),
    /// The time between the end of the iteration with this number and the beginning of the next
    /// iteration.
    After(u64),
}

impl Point {
    /// Returns the number of the iteration that begins next after this point.
    pub const fn next(self) -> u64 {
        match self {
            Self::Start => 0,
            Self::In(iteration) | Self::After(iteration) => iteration.saturating_add(1),
        }
    }

    /// Returns the number of iterations that have ended at this point.
    pub const fn over(self) -> u64 {
        match self {
            Self::Start => 0,
            Self::In(iteration) => iteration,
            Self::After(iteration) => iteration.saturating_add(1),
        }
    }
}

/// The windows that close and open at a point in the sequence of iterations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edge {
    /// The window that closes at the point, if any.
    pub close: Option<Taken>,
    /// The window that opens at the point, if any.
    pub open: Option<Taken>,
    /// True if the open window stays open and begins its part in which kernels are recorded.
    pub kernels: bool,
}

/// A window as it was requested, and the iterations that it really contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The iterations of the window as it was requested.
    pub asked: IterationRange,
    /// The iterations of the window. They are later than requested if the window opened late.
    pub window: IterationRange,
    /// True if the window was closed for a while and has now opened again.
    pub is_again: bool,
    /// True if the window closes only for a while and opens again later.
    pub goes_on: bool,
    /// True if the window was not planned from the start: a user, a trigger or the sampling of kernels requested it
    /// while the process ran.
    pub on_demand: bool,
    /// True if the window lasts until its figures are precise enough.
    pub is_measured: bool,
}

impl Taken {
    /// Returns a window that was requested as `asked` and contains the iterations of `window`.
    pub const fn new(asked: IterationRange, window: IterationRange) -> Self {
        Self {
            asked,
            window,
            is_again: false,
            goes_on: false,
            on_demand: false,
            is_measured: false,
        }
    }

    const fn on_time(window: IterationRange) -> Self {
        Self::new(window, window)
    }

    /// Returns the number of the first iteration after the window. If the window has not ended yet, returns `over`,
    /// the number of iterations that have ended.
    pub fn over(&self, over: u64) -> u64 {
        let end = self.window.last.and_then(|last| last.checked_add(1));
        end.map_or(over, |end| end.min(over))
    }

    /// Returns a description of the incomplete window if the process ends after `over` iterations; `None` if the
    /// window is complete by then. A window without a last iteration is incomplete only if it lasts until its figures
    /// are precise enough.
    pub fn cut(self, over: u64) -> Option<Cut> {
        let is_cut = match self.window.last {
            Some(last) => over <= last,
            None => self.is_measured,
        };
        is_cut.then(|| {
            let last = over
                .checked_sub(1)
                .filter(|last| *last >= self.window.first);
            Cut {
                has: last.map(|last| IterationRange {
                    first: self.window.first,
                    last: Some(last),
                }),
            }
        })
    }

    /// Returns true if the window's iterations differ from the requested ones. Right after the window has opened for
    /// the first time, this means that it opened late.
    pub fn is_late(&self) -> bool {
        self.asked != self.window
    }
}

/// A window that the end of the process has cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The iterations that the window contains, if any.
    pub has: Option<IterationRange>,
}

/// Returns the window shifted to begin at `first`, with the same number of iterations. `first` must not be before the
/// window's own first iteration.
fn later(window: IterationRange, first: u64) -> IterationRange {
    let late = first.saturating_sub(window.first);
    IterationRange {
        first,
        last: window.last.map(|last| last.saturating_add(late)),
    }
}
