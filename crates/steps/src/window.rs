//! Which iterations are captured.
//!
//! A window A-B holds the iterations A to B: it is open before the step that begins A goes on, and
//! closed before the one that begins B + 1 does. Steps of other threads that began before A and
//! still run are not its iterations, and those of A to B may be running where it closes.

mod schedule;
#[cfg(test)]
mod tests;

use tllmprof_config::range::Window;

pub use schedule::{Conflict, Schedule};

/// A place in the sequence of iterations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Point {
    /// Before the first one, or where the count starts again.
    #[default]
    Start,
    /// Where this iteration begins.
    In(u64),
    /// Where this iteration has ended, and the next has not begun.
    After(u64),
}

impl Point {
    /// The iteration that begins next.
    pub const fn next(self) -> u64 {
        match self {
            Self::Start => 0,
            Self::In(iteration) | Self::After(iteration) => iteration.saturating_add(1),
        }
    }

    /// Iterations that are over.
    pub const fn over(self) -> u64 {
        match self {
            Self::Start => 0,
            Self::In(iteration) => iteration,
            Self::After(iteration) => iteration.saturating_add(1),
        }
    }
}

/// What has to happen at a point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edge {
    /// The window that has ended.
    pub close: Option<Taken>,
    /// The window that begins.
    pub open: Option<Taken>,
}

/// A window as it was asked for, and the iterations that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The window that was asked for.
    pub asked: Window,
    /// Its iterations: later ones than asked for, where it opened late.
    pub window: Window,
    /// It was closed in between and has opened again.
    pub is_again: bool,
    /// It closes in between and goes on later.
    pub goes_on: bool,
    /// It was asked for while the process ran.
    pub on_demand: bool,
}

impl Taken {
    /// A window as it was asked for that takes the iterations of another.
    pub const fn of(asked: Window, window: Window) -> Self {
        Self {
            asked,
            window,
            is_again: false,
            goes_on: false,
            on_demand: false,
        }
    }

    const fn on_time(window: Window) -> Self {
        Self::of(window, window)
    }

    /// How far it goes: the iteration after its last, where `over` of them are over.
    pub fn over(&self, over: u64) -> u64 {
        let end = self.window.last.and_then(|last| last.checked_add(1));
        end.map_or(over, |end| end.min(over))
    }

    /// What it has of its iterations where the process ends before the last of them, after `over` of them.
    pub fn cut(self, over: u64) -> Option<Cut> {
        let is_cut = self.window.last.is_some_and(|last| over <= last);
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

    /// Whether it opened late.
    pub fn is_late(&self) -> bool {
        self.asked != self.window
    }
}

/// A window that the end of the process has cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The iterations that it has, if there are any.
    pub has: Option<Window>,
}

/// As many iterations as `window` has, from `first` on.
fn later(window: Window, first: u64) -> Window {
    let late = first.saturating_sub(window.first);
    Window {
        first,
        last: window.last.map(|last| last.saturating_add(late)),
    }
}
