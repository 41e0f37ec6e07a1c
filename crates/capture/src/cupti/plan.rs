//! The plan for CUPTI: what the thread that switches must do at each iteration and window.
//!
//! | state             | `Opens`   | `Obstructed` | an iteration `Begins`         | `Closes`      | `Ends`     |
//! |-------------------|-----------|--------------|-------------------------------|---------------|------------|
//! | `Off`             | `Waiting` | `Hopeless`   |                               |               |            |
//! | `Waiting`         |           | `Hopeless`   | attach, unless captured       | `Off`, or `Leaving` as before | `Off` |
//! | `Taking(until)`   |           | `Hopeless`   | at `until`: stop and `Leaving`| stop, `Leaving` | stop, `Off` |
//! | `Cut`             |           | `Hopeless`   | stop before it, `Off`         | stop before, `Off` | stop before, `Off` |
//! | `Leaving(tries)`  | `Waiting` | `Hopeless`   | leave, where that is due      |               | `Off`      |
//! | `Hopeless`        |           |              | leave, where that is due      |               | `Hopeless` |
//!
//! Attaching results in `Attached` (`Waiting` → `Taking`) or `NotAttached` (→ `Off`, `Leaving` or `Hopeless`).
//! Detaching results in `Left` (→ `Off`), `Busy` (→ `Leaving`, to try again later, or `Off`), `Early` (→ `Leaving`, to
//! try again later) or `Broken` (→ `Hopeless`). `Yields` turns `Taking` into `Cut`; after it no state has anything to
//! detach. In an empty field nothing changes. `Closed` is like a `Begins` that attaches nothing.

#[cfg(test)]
mod tests;

/// Largest number of attempts to detach CUPTI. Each waits twice as many iterations as the one before.
const MAX_TRIES: u32 = 8;
/// Number of iterations after which `Early` is checked again.
const EARLY_RETRY_ITERATIONS: u64 = 64;
/// Number of iterations after which an attempt to attach that took too long is checked again.
const LATE_RETRY_ITERATIONS: u64 = 16;

pub const NEVER: u64 = u64::MAX;

/// The state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachPlan {
    /// Nothing must be done.
    Off,
    /// A window is open, and kernels are not recorded yet, maybe because of a stream capture. CUPTI may still be
    /// attached from the window before.
    Waiting { leave: Option<Leave> },
    /// Kernels are recorded until before this iteration.
    Taking { until: u64 },
    /// Kernels were recorded until the middle of an iteration, when another profiler took CUPTI.
    Cut,
    /// CUPTI must be detached.
    Leaving(Leave),
    /// Kernels can never be recorded in this process. CUPTI may still have to be detached.
    Hopeless { leave: Option<Leave> },
}

/// A detachment that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leave {
    /// Number of attempts so far.
    pub tries: u32,
    /// The iteration of the next attempt.
    pub at: u64,
}

/// State of CUPTI, as far as the worker has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    Out,
    /// The worker is attaching it.
    Coming,
    In,
}

/// An event that changes the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A window opens.
    Opens,
    /// The variables, or another tool, rule kernels out.
    Obstructed,
    /// `iteration` is about to begin. If `capturing`, a stream capture is under way, and CUPTI is neither attached nor
    /// detached.
    Begins {
        iteration: u64,
        capturing: bool,
        cupti: Where,
    },
    /// Kernels are recorded until before `until`.
    Attached { until: u64 },
    /// Kernels are not recorded. `may_pass`: the reason may be gone at the next window. `may_be_in`: CUPTI is attached,
    /// or is being attached.
    NotAttached {
        iteration: u64,
        may_pass: bool,
        may_be_in: bool,
    },
    /// The window is about to close.
    Closes { over: u64 },
    /// The window has closed, before iteration `over`.
    Closed {
        over: u64,
        capturing: bool,
        cupti: Where,
    },
    /// CUPTI was detached, or stays attached until the process ends, but disabled.
    Left,
    /// Another profiler takes CUPTI.
    Yields,
    /// CUPTI could not be detached now.
    Busy { iteration: u64 },
    /// It is too early to detach CUPTI. This does not count as an attempt.
    Early { iteration: u64 },
    /// CUPTI could not be detached, and cannot be used any more.
    Broken,
    /// The process ends.
    Ends,
}

/// The next task of the thread that switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    /// Attach CUPTI; results in [`Event::Attached`] or [`Event::NotAttached`].
    Attach,
    /// Write that kernels were recorded up to here.
    Stop,
    /// Write that kernels were recorded until before the iteration that has just ended.
    StopBefore,
    /// Do the same as for [`Action::Stop`], then the same as for [`Action::Leave`].
    StopAndLeave,
    /// Detach CUPTI; results in [`Event::Left`], [`Event::Busy`], [`Event::Early`] or [`Event::Broken`].
    Leave,
    /// Log that a stream was captured during the whole window.
    SayCaptured,
}

impl AttachPlan {
    /// Returns the iteration at which something must be done next; [`NEVER`] for none.
    pub const fn due(self) -> u64 {
        match self {
            Self::Waiting { .. } | Self::Cut => 0,
            Self::Taking { until } => until,
            Self::Leaving(leave) | Self::Hopeless { leave: Some(leave) } => leave.at,
            Self::Off | Self::Hopeless { leave: None } => NEVER,
        }
    }

    /// Returns the state in the child of a fork. `was_loaded` is true if its parent had loaded CUPTI, which refers to
    /// the
    /// parent's threads.
    pub const fn of_child(was_loaded: bool) -> Self {
        if was_loaded {
            Self::Hopeless { leave: None }
        } else {
            Self::Off
        }
    }

    /// Returns true if CUPTI must still be detached.
    pub const fn is_leaving(self) -> bool {
        self.pending().is_some()
    }

    const fn pending(self) -> Option<Leave> {
        match self {
            Self::Off | Self::Taking { .. } | Self::Cut => None,
            Self::Waiting { leave } | Self::Hopeless { leave } => leave,
            Self::Leaving(leave) => Some(leave),
        }
    }

    /// Returns the state after this one with another pending detachment, and without a window.
    const fn with_leave(self, leave: Option<Leave>) -> Self {
        match (self, leave) {
            (Self::Hopeless { .. }, leave) => Self::Hopeless { leave },
            (_, Some(leave)) => Self::Leaving(leave),
            (_, None) => Self::Off,
        }
    }

    /// Returns the state after `event`, and what to do.
    pub fn next(self, event: Event) -> (Self, Action) {
        let leave = self.pending();
        match (self, event) {
            (Self::Off | Self::Leaving(_), Event::Opens) => {
                (Self::Waiting { leave }, Action::Nothing)
            }
            (_, Event::Obstructed) => (Self::Hopeless { leave }, Action::Nothing),
            (
                Self::Waiting { .. },
                Event::Begins {
                    capturing: false, ..
                },
            ) => (self, Action::Attach),
            (
                Self::Taking { until },
                Event::Begins {
                    iteration,
                    capturing,
                    cupti,
                },
            ) if until <= iteration => {
                if capturing {
                    // CUPTI cannot be disabled during a stream capture.
                    let until = iteration.saturating_add(1);
                    return (Self::Taking { until }, Action::Nothing);
                }
                let stopped = Self::stopped(iteration);
                match stopped.look(iteration, capturing, cupti) {
                    (next, Action::Leave) => (next, Action::StopAndLeave),
                    (next, _) => (next, Action::Stop),
                }
            }
            (
                Self::Leaving(_) | Self::Hopeless { .. },
                Event::Begins {
                    iteration,
                    capturing,
                    cupti,
                }
                | Event::Closed {
                    over: iteration,
                    capturing,
                    cupti,
                },
            ) => self.look(iteration, capturing, cupti),
            (Self::Waiting { .. }, Event::Attached { until }) => {
                (Self::Taking { until }, Action::Nothing)
            }
            (
                Self::Waiting { .. },
                Event::NotAttached {
                    iteration,
                    may_pass,
                    may_be_in,
                },
            ) => {
                let at = iteration;
                let leave = may_be_in.then_some(Leave { tries: 0, at });
                let refused = if may_pass {
                    self.with_leave(leave)
                } else {
                    Self::Hopeless { leave }
                };
                (refused, Action::Nothing)
            }
            (Self::Taking { .. }, Event::Yields) => (Self::Cut, Action::Nothing),
            (Self::Waiting { .. }, Event::Yields) => {
                (Self::Waiting { leave: None }, Action::Nothing)
            }
            (Self::Leaving(_) | Self::Hopeless { .. }, Event::Yields) => {
                (self.with_leave(None), Action::Nothing)
            }
            (Self::Cut, Event::Begins { .. } | Event::Closes { .. } | Event::Ends) => {
                (Self::Off, Action::StopBefore)
            }
            (Self::Waiting { leave }, Event::Closes { .. }) => {
                (self.with_leave(leave), Action::SayCaptured)
            }
            (Self::Taking { .. }, Event::Closes { over }) => (Self::stopped(over), Action::Stop),
            (Self::Leaving(_) | Self::Hopeless { leave: Some(_) }, Event::Left) => {
                (self.with_leave(None), Action::Nothing)
            }
            (
                Self::Leaving(leave) | Self::Hopeless { leave: Some(leave) },
                Event::Busy { iteration },
            ) => {
                let tries = leave.tries + 1;
                let at = iteration.saturating_add(1 << leave.tries);
                let again = (tries < MAX_TRIES).then_some(Leave { tries, at });
                (self.with_leave(again), Action::Nothing)
            }
            (
                Self::Leaving(leave) | Self::Hopeless { leave: Some(leave) },
                Event::Early { iteration },
            ) => {
                let at = iteration.saturating_add(EARLY_RETRY_ITERATIONS);
                (
                    self.with_leave(Some(Leave { at, ..leave })),
                    Action::Nothing,
                )
            }
            (Self::Leaving(_) | Self::Hopeless { .. }, Event::Broken) => {
                (Self::Hopeless { leave: None }, Action::Nothing)
            }
            (Self::Taking { .. }, Event::Ends) => (Self::Off, Action::Stop),
            (_, Event::Ends) => (self.with_leave(None), Action::Nothing),
            _ => (self, Action::Nothing),
        }
    }

    /// Returns the state after kernels were recorded in the iterations before `over`.
    const fn stopped(over: u64) -> Self {
        Self::Leaving(Leave { tries: 0, at: over })
    }

    /// Returns the state when `iteration` begins, and whether CUPTI must be detached there.
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
            // It comes too late, and is detached as soon as it is attached.
            Where::Coming => later(LATE_RETRY_ITERATIONS),
            Where::Out => (self.with_leave(None), Action::Nothing),
            Where::In if capturing => later(1),
            Where::In => (self, Action::Leave),
        }
    }
}
