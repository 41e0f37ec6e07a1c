//! What is to be done with CUPTI, and where: by the iterations and windows of the thread that switches.
//!
//! | state             | `Opens`   | `Obstructed` | an iteration `Begins`         | `Closes`      | `Ends`     |
//! |-------------------|-----------|--------------|-------------------------------|---------------|------------|
//! | `Off`             | `Waiting` | `Hopeless`   |                               |               |            |
//! | `Waiting`         |           | `Hopeless`   | attach, unless captured       | `Off`, or `Leaving` as before | `Off` |
//! | `Taking(until)`   |           | `Hopeless`   | at `until`: stop and `Leaving`| stop, `Leaving` | stop, `Off` |
//! | `Leaving(tries)`  | `Waiting` | `Hopeless`   | leave, where that is due      |               | `Off`      |
//! | `Hopeless`        |           |              | leave, where that is due      |               | `Hopeless` |
//!
//! Attaching is answered by `Attached` (`Waiting` → `Taking`) or `NotAttached` (→ `Off`, `Leaving` or
//! `Hopeless`), leaving by `Left` (→ `Off`), `Busy` (→ `Leaving` again later, or `Off`) or `Broken`
//! (→ `Hopeless`). An empty field: nothing changes. `Closed` is a `Begins` that attaches nothing.

/// How often it is tried to take CUPTI out, each time twice as many iterations after the last.
const TRIES: u32 = 8;
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
    /// It could not be taken out now.
    Busy { iteration: u64 },
    /// It did not go, and is of no use any more.
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
    /// The same, and then as [`Action::Leave`].
    StopAndLeave,
    /// Take CUPTI out; answered by [`Event::Left`], [`Event::Busy`] or [`Event::Broken`].
    Leave,
    /// Say that a stream was captured during the whole window.
    SayCaptured,
}

impl Plan {
    /// The iteration at which there is something to do next; [`NEVER`] for none.
    pub const fn due(self) -> u64 {
        match self {
            Self::Waiting { .. } => 0,
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
            Self::Off | Self::Taking { .. } => None,
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

#[cfg(test)]
mod tests {
    use tllmprof_sync::States;

    use super::super::attempt::{self, Attempt};
    use super::super::presence::{self, Presence};
    use super::Action::{self, Nothing, SayCaptured, Stop, StopAndLeave};
    use super::Event::{self, Attached, Broken, Busy, Closes, Ends, Left, Obstructed, Opens};
    use super::Plan::{self, Hopeless, Leaving, Off, Taking, Waiting};
    use super::{LATE, Leave, NEVER, TRIES, Where};

    const SLOW: Event = Event::NotAttached {
        iteration: 5,
        may_pass: false,
        may_be_in: true,
    };

    fn begins(iteration: u64, cupti: Where) -> Event {
        let capturing = false;
        Event::Begins {
            iteration,
            capturing,
            cupti,
        }
    }

    fn captured(iteration: u64, cupti: Where) -> Event {
        let capturing = true;
        Event::Begins {
            iteration,
            capturing,
            cupti,
        }
    }

    fn closed(over: u64, cupti: Where) -> Event {
        let capturing = false;
        Event::Closed {
            over,
            capturing,
            cupti,
        }
    }

    /// What is to be done at each of `events`, and the plan after them.
    fn after(events: &[Event]) -> (Vec<Action>, Plan) {
        let mut plan = Off;
        let on = |event: &Event| {
            let (next, action) = plan.next(*event);
            plan = next;
            action
        };
        (events.iter().map(on).collect(), plan)
    }

    #[test]
    fn kernels_are_taken_in_the_first_iterations_of_a_window() {
        let events = [
            Opens,
            begins(5, Where::Out),
            Attached { until: 7 },
            begins(6, Where::In),
            begins(7, Where::In),
            Left,
            begins(8, Where::Out),
            Closes { over: 9 },
            closed(9, Where::Out),
        ];
        let (actions, plan) = after(&events);
        let attach = Action::Attach;
        assert_eq!(
            actions,
            [
                Nothing,
                attach,
                Nothing,
                Nothing,
                StopAndLeave,
                Nothing,
                Nothing,
                Nothing,
                Nothing
            ]
        );
        assert_eq!((plan, plan.due()), (Off, NEVER));
    }

    #[test]
    fn the_hot_path_is_asked_where_something_is_due() {
        assert_eq!(after(&[]).1.due(), NEVER);
        assert_eq!(after(&[Opens]).1.due(), 0);
        let taking = [Opens, begins(5, Where::Out), Attached { until: 7 }];
        assert_eq!(after(&taking).1.due(), 7);
    }

    #[test]
    fn a_window_that_closes_first_ends_the_taking() {
        let events = [
            Opens,
            begins(5, Where::Out),
            Attached { until: 50 },
            Closes { over: 6 },
            closed(6, Where::In),
            Left,
        ];
        let (actions, plan) = after(&events);
        assert_eq!(actions[3..], [Stop, Action::Leave, Nothing]);
        assert_eq!(plan, Off);
    }

    #[test]
    fn cupti_neither_comes_nor_goes_while_a_stream_is_captured() {
        let events = [
            Opens,
            captured(5, Where::Out),
            begins(6, Where::Out),
            Attached { until: 7 },
            captured(7, Where::In),
            captured(8, Where::In),
            begins(9, Where::In),
        ];
        let (actions, _) = after(&events);
        assert_eq!(
            actions[1..],
            [
                Nothing,
                Action::Attach,
                Nothing,
                Nothing,
                Nothing,
                StopAndLeave
            ]
        );
    }

    #[test]
    fn a_capture_at_the_close_puts_the_leaving_off() {
        let cupti = Where::In;
        let events = [
            Opens,
            begins(5, Where::Out),
            Attached { until: 50 },
            Closes { over: 9 },
            Event::Closed {
                over: 9,
                capturing: true,
                cupti,
            },
            begins(10, cupti),
        ];
        let (actions, _) = after(&events);
        assert_eq!(actions[3..], [Stop, Nothing, Action::Leave]);
    }

    #[test]
    fn a_window_that_is_captured_all_the_while_says_so() {
        let events = [Opens, captured(5, Where::Out), Closes { over: 6 }];
        let (actions, plan) = after(&events);
        assert_eq!((actions[2], plan), (SayCaptured, Off));
    }

    #[test]
    fn it_is_tried_again_later_and_later_and_then_let_be() {
        let mut plan = Leaving(Leave { tries: 0, at: 100 });
        let mut tried = Vec::new();
        for iteration in 100..1000 {
            let (next, action) = plan.next(begins(iteration, Where::In));
            plan = next;
            if action == Action::Leave {
                tried.push(iteration);
                plan = plan.next(Busy { iteration }).0;
            }
        }
        assert_eq!(tried, [100, 101, 103, 107, 115, 131, 163, 227]);
        assert_eq!(tried.len(), TRIES as usize);
        assert_eq!(plan, Off);
    }

    #[test]
    fn a_window_that_opens_before_cupti_could_go_takes_it_as_it_is() {
        let events = [
            Opens,
            begins(5, Where::Out),
            Attached { until: 6 },
            begins(6, Where::In),
            Busy { iteration: 6 },
            Closes { over: 6 },
            Opens,
        ];
        let (_, plan) = after(&events);
        let leave = Some(Leave { tries: 1, at: 7 });
        assert_eq!(plan, Waiting { leave });
        let (plan, action) = plan.next(begins(7, Where::In));
        assert_eq!(action, Action::Attach);
        assert_eq!(plan.next(Attached { until: 8 }).0, Taking { until: 8 });
        // And where that window closes before any iteration of its own, it goes as it was to.
        let (plan, action) = plan.next(Closes { over: 7 });
        assert_eq!((plan.is_leaving(), action), (true, SayCaptured));
    }

    #[test]
    fn what_may_pass_is_tried_at_the_next_window() {
        let refused = Event::NotAttached {
            iteration: 5,
            may_pass: true,
            may_be_in: false,
        };
        let events = [Opens, begins(5, Where::Out), refused, Opens];
        let (_, plan) = after(&events);
        assert_eq!(plan, Waiting { leave: None });
    }

    #[test]
    fn what_may_not_pass_is_never_tried_again() {
        let (_, plan) = after(&[Opens, Obstructed, Opens]);
        assert_eq!(plan, Hopeless { leave: None });
        let events = [
            Opens,
            begins(5, Where::Out),
            Attached { until: 6 },
            begins(6, Where::In),
        ];
        let (_, plan) = after(&[&events[..], &[Broken, Opens, begins(7, Where::In)]].concat());
        assert_eq!((plan, plan.due()), (Hopeless { leave: None }, NEVER));
    }

    #[test]
    fn cupti_that_comes_too_late_goes_when_it_is_in() {
        let events = [
            Opens,
            begins(5, Where::Out),
            SLOW,
            begins(5, Where::Coming),
            begins(5 + LATE, Where::In),
            Left,
        ];
        let (actions, plan) = after(&events);
        assert_eq!(actions[3..], [Nothing, Action::Leave, Nothing]);
        assert_eq!(plan, Hopeless { leave: None });
    }

    #[test]
    fn cupti_attaches_too_late_and_the_process_exits() {
        let (mut attempt, mut presence) = (Attempt::Wanted(0), Presence::Out);
        let (_, plan) = after(&[Opens, begins(5, Where::Out)]);
        attempt = attempt.next(attempt::Event::Begins).unwrap_or(attempt);
        let number = attempt.number();
        // The program's thread waits no longer, and goes on.
        attempt = attempt.next(attempt::Event::Abandons).unwrap_or(attempt);
        let (plan, _) = plan.next(SLOW);
        // The worker comes to the end of it.
        for event in [presence::Event::Subscribed, presence::Event::Enabled] {
            presence = presence.next(event).unwrap_or(presence);
        }
        assert_eq!(attempt.next(attempt::Event::Commits(number)), None);
        presence = presence
            .next(presence::Event::SwitchedOff)
            .unwrap_or(presence);
        // The process ends before anything is due.
        let (plan, action) = plan.next(Ends);
        assert_eq!((action, plan.due()), (Nothing, NEVER));
        assert_eq!(presence, Presence::In);
        assert_eq!(plan.next(begins(99, Where::In)).1, Nothing);
    }

    #[test]
    fn the_end_of_the_process_stops_what_is_taken() {
        let taking = [Opens, begins(5, Where::Out), Attached { until: 50 }, Ends];
        let (actions, plan) = after(&taking);
        assert_eq!((actions[3], plan), (Stop, Off));
        let leaving = [
            Opens,
            begins(5, Where::Out),
            Attached { until: 6 },
            Closes { over: 6 },
            Ends,
        ];
        let (actions, plan) = after(&leaving);
        assert_eq!((actions[4], plan), (Nothing, Off));
    }

    #[test]
    fn the_child_of_a_fork_has_no_window_and_not_its_parents_cupti() {
        let child = Plan::of_child(true);
        assert_eq!(child.next(Opens), (child, Nothing));
        assert_eq!(child.next(Event::Closes { over: 9 }), (child, Nothing));
        assert_eq!(Plan::of_child(false).next(Opens).0, Waiting { leave: None });
    }

    /// Calls `act` with the plan before and after each event of all lists of so many events.
    fn walk(plan: Plan, events: &[Event], length: u32, act: &impl Fn(Plan, Event, Plan, Action)) {
        for event in events.iter().copied().filter(|_| length > 0) {
            let (next, action) = plan.next(event);
            act(plan, event, next, action);
            walk(next, events, length - 1, act);
        }
    }

    #[test]
    fn whatever_happens_in_whatever_order() {
        let refused = |may_pass, may_be_in| Event::NotAttached {
            iteration: 2,
            may_pass,
            may_be_in,
        };
        let events = [
            Opens,
            Obstructed,
            begins(1, Where::Out),
            begins(2, Where::In),
            begins(3, Where::Coming),
            captured(3, Where::In),
            Attached { until: 2 },
            refused(true, true),
            refused(true, false),
            refused(false, true),
            Closes { over: 2 },
            closed(2, Where::In),
            Left,
            Busy { iteration: 2 },
            Broken,
            Ends,
        ];
        walk(Off, &events, 5, &|before, event, after, action| {
            let list = (before, event, after, action);
            let is_hopeless = |plan| matches!(plan, Hopeless { .. });
            assert!(!is_hopeless(before) || is_hopeless(after), "{list:?}");
            assert!(event != Ends || after.due() == NEVER, "{list:?}");
            let is_captured = matches!(
                event,
                Event::Begins {
                    capturing: true,
                    ..
                }
            );
            assert!(!is_captured || action == Nothing, "{list:?}");
            let writes_stop = matches!(action, Stop | StopAndLeave);
            let was_taking = matches!(before, Taking { .. });
            let is_taking = matches!(after, Taking { .. });
            // What has begun in the record ends there, unless the record itself is ruled out.
            let ends = was_taking && !is_taking && event != Obstructed;
            assert_eq!(writes_stop, ends, "{list:?}");
            let leaves = matches!(action, Action::Leave | StopAndLeave);
            assert!(!leaves || after.is_leaving(), "{list:?}");
        });
    }

    #[test]
    fn answers_to_what_was_not_asked_change_nothing() {
        let answers = [
            Attached { until: 9 },
            SLOW,
            Left,
            Busy { iteration: 9 },
            Broken,
        ];
        for plan in [Off, Taking { until: 7 }] {
            for answer in answers {
                assert_eq!(plan.next(answer), (plan, Nothing), "{answer:?}");
            }
        }
    }
}
