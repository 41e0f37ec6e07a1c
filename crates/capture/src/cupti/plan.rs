//! The plan for CUPTI: a state machine. At each iteration and window, it decides what must be done with CUPTI. The
//! thread that opens and closes windows then does this.
//!
//! In the table, each cell has the action, if one is required, and the new state, if it changes. "Stop" means: write
//! into the record that kernels were recorded up to the iteration that has just ended. "Stop before" means the same for
//! the iteration before that one. "Log" means: log that no kernels were recorded (see [`Action`]).
//!
//! | state             | `Opens`   | `Obstructed` | an iteration `Begins`         | `Closes`      | `Ends`     |
//! |-------------------|-----------|--------------|-------------------------------|---------------|------------|
//! | `Off`             | `Waiting` | `Hopeless`   |                               |               |            |
//! | `Waiting`         |           | `Hopeless`   | attach, if nothing is captured| log, `Off`¹   | `Off`      |
//! | `Taking(until)`   |           | `Hopeless`   | at `until`: stop and `Leaving`| stop, `Leaving` | stop, `Off` |
//! | `Cut`             |           | `Hopeless`   | stop before, `Off`            | as for `Begins` | as for `Begins` |
//! | `Leaving(tries)`  | `Waiting` | `Hopeless`   | detach, if this is due        |               | `Off`      |
//! | `Hopeless`        |           |              | detach, if this is due        |               | `Hopeless` |
//!
//! ¹ `Leaving`, if a detachment of CUPTI is pending from an earlier window.
//!
//! Attaching results in `Attached` (`Waiting` → `Taking`) or `NotAttached` (→ `Off`, `Leaving` or `Hopeless`).
//! Detaching results in `Left` (→ `Off`), `Busy` (→ `Leaving`, to try again later, or `Off`), `Early` (→ `Leaving`,
//! to try again later) or `Broken` (→ `Hopeless`). `Yields` turns `Taking` into `Cut`, and removes a pending
//! detachment from all other states. `Hopeless` is final: these results and `Yields` change only its pending
//! detachment. `Closed` has the same effect as `Begins` in the states `Leaving` and `Hopeless`, and no effect in the
//! other states. A transition that the table leaves empty changes nothing.

#[cfg(test)]
mod tests;

/// Maximum number of attempts to detach CUPTI. The number of iterations between two attempts doubles each time.
const MAX_TRIES: u32 = 8;
/// Number of iterations until the next check after a check has found that it is too early to detach CUPTI.
const EARLY_RETRY_ITERATIONS: u64 = 64;
/// Number of iterations until the next check after a check has found that the worker is still attaching CUPTI.
const LATE_RETRY_ITERATIONS: u64 = 16;

pub(crate) const NEVER: u64 = u64::MAX;

/// The state of the plan: the next steps for recording kernels and for detaching CUPTI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachPlan {
    /// Kernels are not being recorded, no recording is planned, and CUPTI does not have to be detached.
    Off,
    /// A window (a range of profiled iterations) is open, but kernels are not recorded yet, possibly because of a
    /// stream capture. CUPTI may still be attached from the previous window.
    Waiting { leave: Option<Leave> },
    /// Kernels are recorded until iteration `until`, exclusive.
    Taking { until: u64 },
    /// Kernels were recorded until another profiler took CUPTI in the middle of an iteration. The record does not yet
    /// state that the recording has ended.
    Cut,
    /// No kernels are recorded any more, and CUPTI has to be detached.
    Leaving(Leave),
    /// Kernels can never be recorded again in this process. CUPTI may still have to be detached.
    Hopeless { leave: Option<Leave> },
}

/// A detachment of CUPTI that still has to be performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leave {
    /// Number of attempts to detach CUPTI that have been made so far.
    pub tries: u32,
    /// The iteration at which the next attempt to detach CUPTI is due.
    pub at: u64,
}

impl Leave {
    /// Returns the detachment that is still pending after an attempt with the result `event`. `None` if the last
    /// attempt has been made.
    fn after(self, event: PlanEvent) -> Option<Self> {
        match event {
            PlanEvent::Busy { iteration } => {
                let tries = self.tries + 1;
                let at = iteration.saturating_add(1 << self.tries);
                (tries < MAX_TRIES).then_some(Self { tries, at })
            }
            PlanEvent::Early { iteration } => {
                let at = iteration.saturating_add(EARLY_RETRY_ITERATIONS);
                Some(Self { at, ..self })
            }
            _ => Some(self),
        }
    }
}

/// State of CUPTI: not attached, being attached by the worker, or attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    Out,
    /// The worker thread is attaching CUPTI at this moment.
    Coming,
    In,
}

/// An event that changes the plan for recording kernels and detaching CUPTI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlanEvent {
    /// A window opens.
    Opens,
    /// The settings or another tool make the recording of kernels impossible.
    Obstructed,
    /// `iteration` is about to begin. If `capturing` is true, a stream capture is active, so CUPTI can be neither
    /// attached nor detached.
    Begins {
        iteration: u64,
        capturing: bool,
        cupti: Where,
    },
    /// CUPTI was attached. Kernels are recorded until iteration `until`, exclusive.
    Attached { until: u64 },
    /// CUPTI was not attached, so kernels are not recorded. `may_pass` is true if attaching may succeed in the next
    /// window (range of profiled iterations). `may_be_in` is true if CUPTI is nevertheless attached, or is still being
    /// attached.
    NotAttached {
        iteration: u64,
        may_pass: bool,
        may_be_in: bool,
    },
    /// The window is about to close. `over` is the first iteration after the window.
    Closes { over: u64 },
    /// The window has closed. `over` is the first iteration after the window.
    Closed {
        over: u64,
        capturing: bool,
        cupti: Where,
    },
    /// No further attempt to detach CUPTI is made: either CUPTI was detached, or it stays attached but disabled until
    /// the process ends.
    Left,
    /// Another profiler in this process takes CUPTI.
    Yields,
    /// CUPTI could not be detached this time, because the driver or the device was busy. The detachment is tried again,
    /// until [`MAX_TRIES`] attempts have been made.
    Busy { iteration: u64 },
    /// It is too early to detach CUPTI. The check that found this does not count as an attempt to detach it.
    Early { iteration: u64 },
    /// CUPTI could not be detached, and cannot be used any more in this process.
    Broken,
    /// The process ends.
    Ends,
}

/// The action that the plan requires of the thread that switches windows (ranges of profiled iterations).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Nothing,
    /// Attach CUPTI. This results in [`PlanEvent::Attached`] or [`PlanEvent::NotAttached`].
    Attach,
    /// Write into the record that kernels were recorded up to and including the iteration that has just ended.
    Stop,
    /// Write into the record that kernels were recorded up to and including the iteration before the one that has just
    /// ended.
    StopBefore,
    /// Act as for [`Action::Stop`], then as for [`Action::Leave`].
    StopAndLeave,
    /// Detach CUPTI. This results in [`PlanEvent::Left`], [`PlanEvent::Busy`], [`PlanEvent::Early`] or
    /// [`PlanEvent::Broken`].
    Leave,
    /// Log that no kernels were recorded in the window (the range of profiled iterations), because CUPTI could not be
    /// attached: a stream capture was active before each of its iterations.
    SayCaptured,
}

impl AttachPlan {
    /// Returns the next iteration at which the plan may require an action; [`NEVER`] if there is none.
    pub(crate) const fn due(self) -> u64 {
        match self {
            Self::Waiting { .. } | Self::Cut => 0,
            Self::Taking { until } => until,
            Self::Leaving(leave) | Self::Hopeless { leave: Some(leave) } => leave.at,
            Self::Off | Self::Hopeless { leave: None } => NEVER,
        }
    }

    /// Returns the plan for the child process after a fork. `was_loaded` is true if the parent had loaded CUPTI. The
    /// child cannot use that CUPTI, because it refers to the parent's threads.
    pub(crate) const fn of_child(was_loaded: bool) -> Self {
        if was_loaded {
            Self::Hopeless { leave: None }
        } else {
            Self::Off
        }
    }

    /// Returns true if a detachment of CUPTI is pending.
    pub(crate) const fn is_leaving(self) -> bool {
        self.pending().is_some()
    }

    const fn pending(self) -> Option<Leave> {
        match self {
            Self::Off | Self::Taking { .. } | Self::Cut => None,
            Self::Waiting { leave } | Self::Hopeless { leave } => leave,
            Self::Leaving(leave) => Some(leave),
        }
    }

    /// Returns this state with `leave` as the pending detachment of CUPTI. `Hopeless` stays `Hopeless`. Any other state
    /// becomes `Leaving`, or `Off` if `leave` is `None`.
    const fn with_leave(self, leave: Option<Leave>) -> Self {
        match (self, leave) {
            (Self::Hopeless { .. }, leave) => Self::Hopeless { leave },
            (_, Some(leave)) => Self::Leaving(leave),
            (_, None) => Self::Off,
        }
    }

    /// Returns the state of the plan after `event`, and the action that is required.
    pub(crate) fn next(self, event: PlanEvent) -> (Self, Action) {
        let leave = self.pending();
        match (self, event) {
            (Self::Off | Self::Leaving(_), PlanEvent::Opens) => {
                (Self::Waiting { leave }, Action::Nothing)
            }
            (_, PlanEvent::Obstructed) => (Self::Hopeless { leave }, Action::Nothing),
            (
                Self::Waiting { .. },
                PlanEvent::Begins {
                    capturing: false, ..
                },
            ) => (self, Action::Attach),
            (
                Self::Taking { until },
                PlanEvent::Begins {
                    iteration,
                    capturing,
                    cupti,
                },
            ) if until <= iteration => Self::expire(iteration, capturing, cupti),
            (
                Self::Leaving(_) | Self::Hopeless { .. },
                PlanEvent::Begins {
                    iteration,
                    capturing,
                    cupti,
                }
                | PlanEvent::Closed {
                    over: iteration,
                    capturing,
                    cupti,
                },
            ) => self.look(iteration, capturing, cupti),
            (Self::Waiting { .. }, PlanEvent::Attached { until }) => {
                (Self::Taking { until }, Action::Nothing)
            }
            (
                Self::Waiting { .. },
                PlanEvent::NotAttached {
                    iteration: at,
                    may_pass,
                    may_be_in,
                },
            ) => {
                let leave = may_be_in.then_some(Leave { tries: 0, at });
                let refused = match may_pass {
                    true => self.with_leave(leave),
                    false => Self::Hopeless { leave },
                };
                (refused, Action::Nothing)
            }
            (Self::Taking { .. }, PlanEvent::Yields) => (Self::Cut, Action::Nothing),
            (Self::Waiting { .. }, PlanEvent::Yields) => {
                (Self::Waiting { leave: None }, Action::Nothing)
            }
            (Self::Leaving(_) | Self::Hopeless { .. }, PlanEvent::Yields | PlanEvent::Left) => {
                (self.with_leave(None), Action::Nothing)
            }
            (Self::Cut, PlanEvent::Begins { .. } | PlanEvent::Closes { .. } | PlanEvent::Ends) => {
                (Self::Off, Action::StopBefore)
            }
            (Self::Waiting { leave }, PlanEvent::Closes { .. }) => {
                (self.with_leave(leave), Action::SayCaptured)
            }
            (Self::Taking { .. }, PlanEvent::Closes { over }) => {
                (Self::stopped(over), Action::Stop)
            }
            (
                Self::Leaving(leave) | Self::Hopeless { leave: Some(leave) },
                PlanEvent::Busy { .. } | PlanEvent::Early { .. },
            ) => (self.with_leave(leave.after(event)), Action::Nothing),
            (Self::Leaving(_) | Self::Hopeless { .. }, PlanEvent::Broken) => {
                (Self::Hopeless { leave: None }, Action::Nothing)
            }
            (Self::Taking { .. }, PlanEvent::Ends) => (Self::Off, Action::Stop),
            (_, PlanEvent::Ends) => (self.with_leave(None), Action::Nothing),
            _ => (self, Action::Nothing),
        }
    }

    /// Ends the recording of kernels before `iteration`, because kernels have been recorded for the requested number of
    /// iterations. Returns the new state and the action.
    fn expire(iteration: u64, capturing: bool, cupti: Where) -> (Self, Action) {
        if capturing {
            // CUPTI cannot be disabled during a stream capture, so the recording continues for one more iteration. Then
            // this check is repeated.
            let until = iteration.saturating_add(1);
            return (Self::Taking { until }, Action::Nothing);
        }
        match Self::stopped(iteration).look(iteration, capturing, cupti) {
            (next, Action::Leave) => (next, Action::StopAndLeave),
            (next, _) => (next, Action::Stop),
        }
    }

    /// Returns the state after the recording of kernels has stopped before iteration `over`.
    const fn stopped(over: u64) -> Self {
        Self::Leaving(Leave { tries: 0, at: over })
    }

    /// Checks at the beginning of `iteration` if a pending detachment of CUPTI is due. Returns the new state and the
    /// action.
    fn look(self, iteration: u64, capturing: bool, cupti: Where) -> (Self, Action) {
        let Some(leave) = self.pending().filter(|leave| leave.at <= iteration) else {
            return (self, Action::Nothing);
        };
        let later = |iterations| {
            let at = iteration.saturating_add(iterations);
            (
                self.with_leave(Some(Leave { at, ..leave })),
                Action::Nothing,
            )
        };
        match cupti {
            // The worker is still attaching CUPTI for an attempt that was abandoned. Once CUPTI is attached, a later
            // check detaches it.
            Where::Coming => later(LATE_RETRY_ITERATIONS),
            Where::Out => (self.with_leave(None), Action::Nothing),
            Where::In if capturing => later(1),
            Where::In => (self, Action::Leave),
        }
    }
}
