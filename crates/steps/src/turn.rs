//! The turn: one thread at a time switches from one point of the iterations to another, and continues until
//! it has reached the point that the other threads want.
//!
//! | stage       | `Claims`    | `GoesOn`                | `Switches`/`Switched` | `Ends`   |
//! |-------------|-------------|-------------------------|-----------------------|----------|
//! | `Unbegun`   | `Claimed`   |                         |                       |          |
//! | `Claimed`   |             | `Switching`             |                       |          |
//! | `Free`      | `Switching` |                         |                       | `Ended`  |
//! | `Switching` |             | `Free` where it is done | `Switching`           |          |
//! | `Ended`     |             |                         |                       |          |
//!
//! An empty field: the stage stays, and the event is answered by [`Action::Refuse`]. `Reached` changes no
//! stage.

#[cfg(test)]
mod tests;

use core::time::Duration;
use std::time::Instant;

use crate::window::Point;

/// The time other threads wait for a window to open.
pub const OPENING: Duration = Duration::from_secs(2);
/// The time other threads wait for a window to close. It is short, because the device may need their launches
/// to become idle.
pub const CLOSING: Duration = Duration::from_millis(50);

/// The holder of the turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// No thread has it, and the capture is not ready.
    #[default]
    Unbegun,
    /// A thread that is about to make the capture ready. Others wait for it until then.
    Claimed { until: Instant },
    /// No thread has it.
    Free,
    /// A thread that switches, and may make calls of the process meanwhile. Others wait for it until then.
    Switching { until: Instant },
    /// The end of the process has it, for good.
    Ended,
}

/// The turn, and the points that it switches between.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn {
    stage: Stage,
    /// The point that the process should be at.
    target: Point,
    /// The point that it is at.
    done: Point,
}

/// An event that concerns the turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A thread has reached a point.
    Reached(Point),
    /// There is nothing to switch at the target.
    Passed,
    /// A thread takes the turn, at this time.
    Claims(Instant),
    /// The thread that has the turn asks what it has to do.
    GoesOn,
    /// The thread is about to switch. `closes`: it closes a window.
    Switches { closes: bool, now: Instant },
    /// The thread has switched to this point.
    Switched(Point),
    /// The process ends.
    Ends,
}

/// The action of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Wait for the thread that has the turn, at most until then; `None`: do not wait.
    Wait(Option<Instant>),
    /// Check if there is something to switch at the target.
    Look,
    /// Let the threads run to the next edge: no thread has the turn.
    Rest,
    /// Make the capture ready, and ask again.
    Begin,
    /// Switch to this point, and ask again.
    Switch(Point),
    /// Continue: the event is noted.
    Go,
    /// Nothing: the event does not fit this stage.
    Refuse,
}

impl Turn {
    /// Returns true if a thread, or the end of the process, has the turn.
    pub const fn is_taken(&self) -> bool {
        !matches!(self.stage, Stage::Unbegun | Stage::Free)
    }

    /// Returns true if the capture is ready, or is being made ready.
    pub const fn has_begun(&self) -> bool {
        !matches!(self.stage, Stage::Unbegun | Stage::Claimed { .. })
    }

    /// Returns the point that the process should be at.
    pub const fn target(&self) -> Point {
        self.target
    }

    /// Returns the point that the process is at.
    pub const fn done(&self) -> Point {
        self.done
    }

    /// Returns the time until which others wait for the thread that has the turn; `None`: they do not wait.
    pub const fn until(&self) -> Option<Instant> {
        match self.stage {
            Stage::Claimed { until } | Stage::Switching { until } => Some(until),
            Stage::Unbegun | Stage::Free | Stage::Ended => None,
        }
    }

    /// Handles `event`. Returns the action for it.
    ///
    /// Changes are made in place: this runs for each call that may be a step.
    #[inline(always)]
    pub fn on(&mut self, event: Event) -> Action {
        match (self.stage, event) {
            (stage, Event::Reached(target)) => {
                self.target = target;
                match stage {
                    Stage::Unbegun | Stage::Free => Action::Look,
                    _ => Action::Wait(self.until()),
                }
            }
            (Stage::Unbegun | Stage::Free, Event::Passed) => {
                self.done = self.target;
                Action::Rest
            }
            (Stage::Unbegun, Event::Claims(now)) => {
                let until = now + OPENING;
                self.to(Stage::Claimed { until }, Action::Go)
            }
            (Stage::Free, Event::Claims(now)) => {
                let until = now + OPENING;
                self.to(Stage::Switching { until }, Action::Go)
            }
            (Stage::Claimed { until }, Event::GoesOn) => {
                self.to(Stage::Switching { until }, Action::Begin)
            }
            (Stage::Switching { .. }, Event::GoesOn) if self.target == self.done => {
                self.to(Stage::Free, Action::Rest)
            }
            (Stage::Switching { .. }, Event::GoesOn) => Action::Switch(self.target),
            (Stage::Switching { .. }, Event::Switches { closes, now }) => {
                let until = now + if closes { CLOSING } else { OPENING };
                self.to(Stage::Switching { until }, Action::Go)
            }
            (Stage::Switching { .. }, Event::Switched(done)) => {
                self.done = done;
                Action::Go
            }
            (Stage::Free, Event::Ends) => self.to(Stage::Ended, Action::Go),
            _ => Action::Refuse,
        }
    }

    fn to(&mut self, stage: Stage, action: Action) -> Action {
        self.stage = stage;
        action
    }
}
