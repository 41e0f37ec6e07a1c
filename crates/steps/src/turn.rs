//! The turn: one thread at a time switches from one point of the iterations to another, and goes on
//! until it has come to where the others want the process to be.
//!
//! | stage       | `Claims`    | `GoesOn`                | `Switches`/`Switched` | `Ends`   |
//! |-------------|-------------|-------------------------|-----------------------|----------|
//! | `Unbegun`   | `Claimed`   |                         |                       |          |
//! | `Claimed`   |             | `Switching`             |                       |          |
//! | `Free`      | `Switching` |                         |                       | `Ended`  |
//! | `Switching` |             | `Free` where it is done | `Switching`           |          |
//! | `Ended`     |             |                         |                       |          |
//!
//! An empty field: the stage stays, and the event is answered by [`Action::Refuse`]. `Reached` leaves
//! every stage as it is.

#[cfg(test)]
mod tests;

use core::time::Duration;
use std::time::Instant;

use crate::window::Point;

/// How long others wait for a window to open.
pub const OPENING: Duration = Duration::from_secs(2);
/// How long others wait for a window to close. Short: the device may need their launches to become
/// idle.
pub const CLOSING: Duration = Duration::from_millis(50);

/// Who switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// Nobody, and what there is to capture with is not ready.
    #[default]
    Unbegun,
    /// A thread that is about to make it ready. Others wait for it until then.
    Claimed { until: Instant },
    /// Nobody.
    Free,
    /// A thread that may make calls of the process meanwhile. Others wait for it until then.
    Switching { until: Instant },
    /// The end of the process, for good.
    Ended,
}

/// Who switches, and to where.
#[derive(Clone, Copy, Debug, Default)]
pub struct Turn {
    stage: Stage,
    /// Where the process is to be.
    target: Point,
    /// Where it is.
    done: Point,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A thread has come to a point.
    Reached(Point),
    /// There is nothing to switch where the process is to be.
    Passed,
    /// A thread takes the turn, at this time.
    Claims(Instant),
    /// The thread that has the turn asks what is to be done.
    GoesOn,
    /// It is about to switch; whether it closes a window, and when.
    Switches { closes: bool, now: Instant },
    /// It has switched to this point.
    Switched(Point),
    /// The process ends.
    Ends,
}

/// What the thread has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Wait for the thread that has the turn, until then at most; `None`: do not wait.
    Wait(Option<Instant>),
    /// Look whether there is something to switch at the target.
    Look,
    /// Let the threads run to where the next thing happens: the turn is nobody's.
    Rest,
    /// Make ready what there is to capture with, and ask again.
    Begin,
    /// Switch to this point, and ask again.
    Switch(Point),
    /// Go on: the event is noted.
    Go,
    /// The event was not for this stage: nothing has changed.
    Refuse,
}

impl Turn {
    /// Whether a thread has the turn, or the end of the process has.
    pub const fn is_taken(&self) -> bool {
        !matches!(self.stage, Stage::Unbegun | Stage::Free)
    }

    /// Whether what there is to capture with is ready, or being made so.
    pub const fn has_begun(&self) -> bool {
        !matches!(self.stage, Stage::Unbegun | Stage::Claimed { .. })
    }

    /// Where the process is to be.
    pub const fn target(&self) -> Point {
        self.target
    }

    /// Where it is.
    pub const fn done(&self) -> Point {
        self.done
    }

    /// How long others wait for the thread that has the turn; `None` where they do not.
    pub const fn until(&self) -> Option<Instant> {
        match self.stage {
            Stage::Claimed { until } | Stage::Switching { until } => Some(until),
            Stage::Unbegun | Stage::Free | Stage::Ended => None,
        }
    }

    /// `event` happens; what is to be done about it.
    ///
    /// What changes is written in place: this runs for each call that may be a step.
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
