//! What is to be done with CUPTI, and where: by the iterations and windows of the thread that switches.
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
//! Attaching is answered by `Attached` (`Waiting` → `Taking`) or `NotAttached` (→ `Off`, `Leaving` or
//! `Hopeless`), leaving by `Left` (→ `Off`), `Busy` (→ `Leaving` again later, or `Off`), `Early` (→ `Leaving`
//! again later) or `Broken` (→ `Hopeless`). `Yields` makes `Cut` of `Taking`, and nothing is left to take out in any state.
//! An empty field: nothing changes. `Closed` is a `Begins` that attaches nothing.

#[cfg(test)]
mod tests;

/// How often it is tried to take CUPTI out, each time twice as many iterations after the last.
const TRIES: u32 = 8;
/// How many iterations later it is looked again whether it is early no more.
const EARLY: u64 = 64;
/// Iterations after which it is looked again whether CUPTI, which was waited for in vain, is in.
const LATE: u64 = 16;

pub const NEVER: u64 = u64::MAX;

/// A state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Nothing is to be done.
    Off,
    /// A window is open; a stream capture is under way, maybe. CUPTI may be in since the last.
    Waiting { leave: Option<Leave> },
    /// Kernels are taken, to before this iteration.
    Taking { until: u64 },
    /// Kernels were taken to the middle of an iteration: another profiler has CUPTI now.
    Cut,
    /// CUPTI is to be taken out.
    Leaving(Leave),
    /// It will never come to anything; CUPTI may still have to be taken out.
    Hopeless { leave: Option<Leave> },
}

/// CUPTI is to be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leave {
    /// How often that was tried.
    pub tries: u32,
    /// The iteration at which it is tried next.
    pub at: u64,
}

/// Where CUPTI is, as far as the worker has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    Out,
    /// The worker is attaching it.
    Coming,
    In,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A window opens.
    Opens,
    /// The variables, or another tool, rule kernels out.
    Obstructed,
    /// `iteration` is about to begin. `capturing`: a stream capture is under way, and CUPTI neither
    /// comes nor goes.
    Begins {
        iteration: u64,
        capturing: bool,
        cupti: Where,
    },
    /// Kernels are taken, to before `until`.
    Attached { until: u64 },
    /// They are not. `may_pass`: the reason may be gone at the next window; `may_be_in`: CUPTI is in
    /// the driver, or coming.
    NotAttached {
        iteration: u64,
        may_pass: bool,
        may_be_in: bool,
    },
    /// The window is about to close.
    Closes { over: u64 },
    /// It has closed, before iteration `over`.
    Closed {
        over: u64,
        capturing: bool,
        cupti: Where,
    },
    /// CUPTI was taken out, or stays for good where it is, switched off.
    Left,
    /// Another profiler takes CUPTI.
    Yields,
    /// It could not be taken out now.
    Busy { iteration: u64 },
    /// It is too early for that, which is no try.
    Early { iteration: u64 },
    /// It did not go, and cannot be used any more.
    Broken,
    /// The process ends.
    Ends,
}

/// What the thread that switches has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Nothing,
    /// Attach CUPTI; answered by [`Event::Attached`] or [`Event::NotAttached`].
    Attach,
    /// Write that kernels were taken to here.
    Stop,
    /// Write that kernels were taken to before the iteration that has just ended.
    StopBefore,
    /// As [`Action::Stop`], and then as [`Action::Leave`].
    StopAndLeave,
    /// Take CUPTI out; answered by [`Event::Left`], [`Event::Busy`], [`Event::Early`] or [`Event::Broken`].
    Leave,
    /// Say that a stream was captured during the whole window.
    SayCaptured,
}

impl Plan {
    /// The iteration at which there is something to do next; [`NEVER`] for none.
    pub const fn due(self) -> u64 {
        match self {
            Self::Waiting { .. } | Self::Cut => 0,
            Self::Taking { until } => until,
            Self::Leaving(leave) | Self::Hopeless { leave: Some(leave) } => leave.at,
            Self::Off | Self::Hopeless { leave: None } => NEVER,
        }
    }

    /// The state in the child of a fork. `was_loaded`: its parent had loaded CUPTI, which knows of the
    /// parent's threads.
    pub const fn of_child(was_loaded: bool) -> Self {
        if was_loaded {
            Self::Hopeless { leave: None }
        } else {
            Self::Off
        }
    }

    /// Whether CUPTI is still to be taken out.
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

    /// The same with another end of CUPTI's, and no window.
    const fn with(self, leave: Option<Leave>) -> Self {
        match (self, leave) {
            (Self::Hopeless { .. }, leave) => Self::Hopeless { leave },
            (_, Some(leave)) => Self::Leaving(leave),
            (_, None) => Self::Off,
        }
    }

    /// `event` happens: the state after it, and what is to be done.
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
                    // It could not be switched off.
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
                    self.with(leave)
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
                (self.with(None), Action::Nothing)
            }
            (Self::Cut, Event::Begins { .. } | Event::Closes { .. } | Event::Ends) => {
                (Self::Off, Action::StopBefore)
            }
            (Self::Waiting { leave }, Event::Closes { .. }) => {
                (self.with(leave), Action::SayCaptured)
            }
            (Self::Taking { .. }, Event::Closes { over }) => (Self::stopped(over), Action::Stop),
            (Self::Leaving(_) | Self::Hopeless { leave: Some(_) }, Event::Left) => {
                (self.with(None), Action::Nothing)
            }
            (
                Self::Leaving(leave) | Self::Hopeless { leave: Some(leave) },
                Event::Busy { iteration },
            ) => {
                let tries = leave.tries + 1;
                let at = iteration.saturating_add(1 << leave.tries);
                let again = (tries < TRIES).then_some(Leave { tries, at });
                (self.with(again), Action::Nothing)
            }
            (
                Self::Leaving(leave) | Self::Hopeless { leave: Some(leave) },
                Event::Early { iteration },
            ) => {
                let at = iteration.saturating_add(EARLY);
                (self.with(Some(Leave { at, ..leave })), Action::Nothing)
            }
            (Self::Leaving(_) | Self::Hopeless { .. }, Event::Broken) => {
                (Self::Hopeless { leave: None }, Action::Nothing)
            }
            (Self::Taking { .. }, Event::Ends) => (Self::Off, Action::Stop),
            (_, Event::Ends) => (self.with(None), Action::Nothing),
            _ => (self, Action::Nothing),
        }
    }

    /// Kernels were taken in the iterations before `over`.
    const fn stopped(over: u64) -> Self {
        Self::Leaving(Leave { tries: 0, at: over })
    }

    /// Whether CUPTI is to be taken out where `iteration` begins.
    fn look(self, iteration: u64, capturing: bool, cupti: Where) -> (Self, Action) {
        let Some(leave) = self.pending().filter(|leave| leave.at <= iteration) else {
            return (self, Action::Nothing);
        };
        let later = |iterations| {
            let at = iteration.saturating_add(iterations);
            (self.with(Some(Leave { at, ..leave })), Action::Nothing)
        };
        match cupti {
            // It comes too late, and goes as soon as it is in.
            Where::Coming => later(LATE),
            Where::Out => (self.with(None), Action::Nothing),
            Where::In if capturing => later(1),
            Where::In => (self, Action::Leave),
        }
    }
}
