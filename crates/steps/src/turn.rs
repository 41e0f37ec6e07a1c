//! The turn is the right to open and close windows, which this module calls switching. One thread at a time
//! has it. That thread opens and closes windows until none is left to open or close up to the point in the sequence
//! of iterations that the process has reached.
//!
//! | stage       | `Claims`    | `GoesOn`                | `Switches`/`Switched` | `Ends`   |
//! |-------------|-------------|-------------------------|-----------------------|----------|
//! | `Unbegun`   | `Claimed`   |                         |                       |          |
//! | `Claimed`   |             | `Switching`             |                       |          |
//! | `Free`      | `Switching` |                         |                       | `Ended`  |
//! | `Switching` |             | `Free`, once finished   | `Switching`           |          |
//! | `Ended`     |             |                         |                       |          |
//!
//! The table has the stage after each event. In an empty field the stage does not change, and the action is
//! [`Action::Refuse`]. The events `Reached` and `Passed` change no stage.

#[cfg(test)]
mod tests;

use core::time::Duration;
use std::time::Instant;

use crate::window::Point;

/// The longest time that other threads wait while one thread opens a window or starts the profilers.
pub const OPENING: Duration = Duration::from_secs(2);
/// The longest time that other threads wait while one thread closes a window. It is short: the thread that closes the
/// window waits until the device is idle, and running kernels may need kernels that the other threads launch.
pub const CLOSING: Duration = Duration::from_millis(50);

/// The stage of the turn, which states if a thread has the turn, and for which purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// No thread has the turn (the right to open and close windows), and the profilers have not been started yet.
    #[default]
    Unbegun,
    /// A thread has the turn (the right to open and close windows) and is about to start the profilers. Other threads
    /// wait for that thread until this time.
    Claimed { until: Instant },
    /// No thread has the turn (the right to open and close windows).
    Free,
    /// A thread has the turn (the right to open and close windows) and uses it. That thread may make CUDA calls
    /// meanwhile. Other threads wait for that thread until this time.
    Switching { until: Instant },
    /// The process is ending, so that no thread can take the turn (the right to open and close windows) any more.
    Ended,
}

/// The turn, the point that the process has reached, and the point up to which windows have been opened and closed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn {
    stage: Stage,
    /// The point that the process has reached. Windows may have to be opened or closed up to this point.
    target: Point,
    /// The point up to which all windows have been opened and closed.
    done: Point,
}

/// An event that changes the turn (the right to open and close windows), or that a thread reports to get its next
/// action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnEvent {
    /// A thread of the program has reached this point in the sequence of iterations.
    Reached(Point),
    /// The thread that reported [`TurnEvent::Reached`] has found that no window has to be opened or closed at the
    /// point that the process has reached ([`Turn::target`]).
    Passed,
    /// A thread takes the turn (the right to open and close windows), at this time.
    Claims(Instant),
    /// The thread that has the turn (the right to open and close windows) asks for its next action.
    GoesOn,
    /// The thread that has the turn (the right to switch windows) is about to open a window, or to close one if
    /// `closes` is true.
    Switches { closes: bool, now: Instant },
    /// The thread that has the turn (the right to switch windows) has opened and closed all windows up to this point.
    Switched(Point),
    /// The process is ending.
    Ends,
}

/// The action that a thread has to take after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Wait for the thread that has the turn (the right to switch windows), at most until this time. With `None`, do
    /// not wait.
    Wait(Option<Instant>),
    /// Check whether a window has to be opened or closed at the point that the process has reached ([`Turn::target`]).
    Look,
    /// Let the threads run until the next window opens or closes. No thread has the turn (the right to switch windows)
    /// now.
    Rest,
    /// Start the profilers, then report [`TurnEvent::GoesOn`] again.
    Begin,
    /// Open and close the windows up to this point, then report [`TurnEvent::GoesOn`] again.
    Switch(Point),
    /// Continue. The event has been stored, and nothing else has to be done.
    Go,
    /// Do nothing. The event is not possible in this stage.
    Refuse,
}

impl Turn {
    /// Returns true if a thread has the turn (the right to open and close windows), or if the process is ending.
    pub const fn is_taken(&self) -> bool {
        !matches!(self.stage, Stage::Unbegun | Stage::Free)
    }

    /// Returns true if the profilers have been started or are being started.
    pub const fn has_begun(&self) -> bool {
        !matches!(self.stage, Stage::Unbegun | Stage::Claimed { .. })
    }

    /// Returns the point that the process has reached.
    pub const fn target(&self) -> Point {
        self.target
    }

    /// Returns the point up to which all windows have been opened and closed.
    pub const fn done(&self) -> Point {
        self.done
    }

    /// Returns the time until which other threads wait for the thread that has the turn (the right to open and close
    /// windows). Returns `None` if they do not wait.
    pub const fn until(&self) -> Option<Instant> {
        match self.stage {
            Stage::Claimed { until } | Stage::Switching { until } => Some(until),
            Stage::Unbegun | Stage::Free | Stage::Ended => None,
        }
    }

    /// Applies `event` to the turn. Returns the action for the thread that reports the event.
    ///
    /// The state is changed in place for speed, because this function runs for each call that may be a step.
    #[inline(always)]
    pub fn on(&mut self, event: TurnEvent) -> Action {
        match (self.stage, event) {
            (stage, TurnEvent::Reached(target)) => {
                self.target = target;
                match stage {
                    Stage::Unbegun | Stage::Free => Action::Look,
                    _ => Action::Wait(self.until()),
                }
            }
            (Stage::Unbegun | Stage::Free, TurnEvent::Passed) => {
                self.done = self.target;
                Action::Rest
            }
            (Stage::Unbegun, TurnEvent::Claims(now)) => {
                let until = now + OPENING;
                self.to(Stage::Claimed { until }, Action::Go)
            }
            (Stage::Free, TurnEvent::Claims(now)) => {
                let until = now + OPENING;
                self.to(Stage::Switching { until }, Action::Go)
            }
            (Stage::Claimed { until }, TurnEvent::GoesOn) => {
                self.to(Stage::Switching { until }, Action::Begin)
            }
            (Stage::Switching { .. }, TurnEvent::GoesOn) if self.target == self.done => {
                self.to(Stage::Free, Action::Rest)
            }
            (Stage::Switching { .. }, TurnEvent::GoesOn) => Action::Switch(self.target),
            (Stage::Switching { .. }, TurnEvent::Switches { closes, now }) => {
                let until = now + if closes { CLOSING } else { OPENING };
                self.to(Stage::Switching { until }, Action::Go)
            }
            (Stage::Switching { .. }, TurnEvent::Switched(done)) => {
                self.done = done;
                Action::Go
            }
            (Stage::Free, TurnEvent::Ends) => self.to(Stage::Ended, Action::Go),
            _ => Action::Refuse,
        }
    }

    fn to(&mut self, stage: Stage, action: Action) -> Action {
        self.stage = stage;
        action
    }
}
