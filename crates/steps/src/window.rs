//! Decides which iterations are captured.
//!
//! A window A-B holds the iterations A to B: it opens before the step that begins A continues, and closes
//! before the step that begins B + 1 does. Steps of other threads that began before A and are still running
//! do not belong to it, and steps of A to B may be running when it closes.

mod schedule;
#[cfg(test)]
mod tests;

use tllmprof_config::range::Window;

pub use schedule::{Conflict, Schedule};

/// A point in the sequence of iterations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Point {
    /// Before the first iteration, or where the count starts again.
    #[default]
    Start,
    /// The beginning of this iteration.
    In(u64),
    /// After this iteration has ended and before the next has begun.
    After(u64),
}

impl Point {
    /// Returns the iteration that begins next.
    pub const fn next(self) -> u64 {
        match self {
            Self::Start => 0,
            Self::In(iteration) | Self::After(iteration) => iteration.saturating_add(1),
        }
    }

    /// Returns the number of iterations that have ended.
    pub const fn over(self) -> u64 {
        match self {
            Self::Start => 0,
            Self::In(iteration) => iteration,
            Self::After(iteration) => iteration.saturating_add(1),
        }
    }
}

/// The changes at a point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edge {
    /// The window that has ended.
    pub close: Option<Taken>,
    /// The window that begins.
    pub open: Option<Taken>,
    /// True if the part with kernels begins, of the window that stays open.
    pub kernels: bool,
}

/// A window as it was asked for, and the iterations that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The window that was asked for.
    pub asked: Window,
    /// The window's iterations: later ones than asked for, if it opened late.
    pub window: Window,
    /// True if it was closed in between and has opened again.
    pub is_again: bool,
    /// True if it closes in between and continues later.
    pub goes_on: bool,
    /// True if it was asked for while the process ran.
    pub on_demand: bool,
    /// True if it lasts until it has what its figures need.
    pub is_measured: bool,
}

impl Taken {
    /// A window that was asked for as `asked` and takes the iterations of `window`.
    pub const fn new(asked: Window, window: Window) -> Self {
        Self {
            asked,
            window,
            is_again: false,
            goes_on: false,
            on_demand: false,
            is_measured: false,
        }
    }

    const fn on_time(window: Window) -> Self {
        Self::new(window, window)
    }

    /// Returns the number of the first iteration after the window. It is at most `over`, the number of iterations that
    /// have ended.
    pub fn over(&self, over: u64) -> u64 {
        let end = self.window.last.and_then(|last| last.checked_add(1));
        end.map_or(over, |end| end.min(over))
    }

    /// Returns the iterations that the window has if the process ends within it, after `over` iterations. `None` if the
    /// window has all of its iterations.
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
                has: last.map(|last| Window {
                    first: self.window.first,
                    last: Some(last),
                }),
            }
        })
    }

    /// Returns true if it opened late.
    pub fn is_late(&self) -> bool {
        self.asked != self.window
    }
}

/// A window that the end of the process has cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The iterations that it has, if any.
    pub has: Option<Window>,
}

/// Returns as many iterations as `window` has, starting with `first`.
fn later(window: Window, first: u64) -> Window {
    let late = first.saturating_sub(window.first);
    Window {
        first,
        last: window.last.map(|last| last.saturating_add(late)),
    }
}
