use tllmprof_sync::States;

use super::super::attempt::{self, Attempt};
use super::super::presence::{self, Presence};
use super::Action::{self, Nothing, SayCaptured, Stop, StopAndLeave, StopBefore};
use super::AttachPlan::{self, Cut, Hopeless, Leaving, Off, Taking, Waiting};
use super::PlanEvent::{
    self, Attached, Broken, Busy, Closes, Early, Ends, Left, Obstructed, Opens, Yields,
};
use super::{EARLY_RETRY_ITERATIONS, LATE_RETRY_ITERATIONS, Leave, MAX_TRIES, NEVER, Where};

const SLOW: PlanEvent = PlanEvent::NotAttached {
    iteration: 5,
    may_pass: false,
    may_be_in: true,
};

fn begins(iteration: u64, cupti: Where) -> PlanEvent {
    let capturing = false;
    PlanEvent::Begins {
        iteration,
        capturing,
        cupti,
    }
}

fn captured(iteration: u64, cupti: Where) -> PlanEvent {
    let capturing = true;
    PlanEvent::Begins {
        iteration,
        capturing,
        cupti,
    }
}

fn closed(over: u64, cupti: Where) -> PlanEvent {
    let capturing = false;
    PlanEvent::Closed {
        over,
        capturing,
        cupti,
    }
}

/// Returns the action that the plan requires at each of the `events`, and the plan after all of them.
fn after(events: &[PlanEvent]) -> (Vec<Action>, AttachPlan) {
    let mut plan = Off;
    let on = |event: &PlanEvent| {
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
        PlanEvent::Closed {
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
    assert_eq!(tried.len(), MAX_TRIES as usize);
    assert_eq!(plan, Off);
}

#[test]
fn what_is_too_early_is_no_try() {
    let mut plan = Leaving(Leave { tries: 3, at: 100 });
    for time in 0..20 {
        let iteration = 100 + time * EARLY_RETRY_ITERATIONS;
        assert_eq!(
            plan.next(begins(iteration - 1, Where::In)).1,
            Action::Nothing
        );
        let (next, action) = plan.next(begins(iteration, Where::In));
        assert_eq!(action, Action::Leave);
        plan = next.next(Early { iteration }).0;
    }
    let at = 100 + 20 * EARLY_RETRY_ITERATIONS;
    assert_eq!(plan, Leaving(Leave { tries: 3, at }));
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
    // If the new window closes before CUPTI is attached for it, the detachment that was pending before the window
    // opened is still pending.
    let (plan, action) = plan.next(Closes { over: 7 });
    assert_eq!((plan.is_leaving(), action), (true, SayCaptured));
}

#[test]
fn what_may_pass_is_tried_at_the_next_window() {
    let refused = PlanEvent::NotAttached {
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
        begins(5 + LATE_RETRY_ITERATIONS, Where::In),
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
    attempt = attempt
        .next(attempt::AttemptEvent::Begins)
        .unwrap_or(attempt);
    let number = attempt.number();
    // The thread of the program no longer waits for the attempt, and continues.
    attempt = attempt
        .next(attempt::AttemptEvent::Abandons)
        .unwrap_or(attempt);
    let (plan, _) = plan.next(SLOW);
    // The worker finishes attaching CUPTI for the abandoned attempt.
    for event in [
        presence::PresenceEvent::Subscribed,
        presence::PresenceEvent::Enabled,
    ] {
        presence = presence.next(event).unwrap_or(presence);
    }
    assert_eq!(attempt.next(attempt::AttemptEvent::Commits(number)), None);
    presence = presence
        .next(presence::PresenceEvent::SwitchedOff)
        .unwrap_or(presence);
    // The process ends before the plan requires an action.
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
    let child = AttachPlan::of_child(true);
    assert_eq!(child.next(Opens), (child, Nothing));
    assert_eq!(child.next(PlanEvent::Closes { over: 9 }), (child, Nothing));
    assert_eq!(
        AttachPlan::of_child(false).next(Opens).0,
        Waiting { leave: None }
    );
}

/// Tests all sequences of up to `length` of the `events`. Calls `act` for each event, with the plan before the event,
/// the plan after the event, and the action.
fn walk(
    plan: AttachPlan,
    events: &[PlanEvent],
    length: u32,
    act: &impl Fn(AttachPlan, PlanEvent, AttachPlan, Action),
) {
    for event in events.iter().copied().filter(|_| length > 0) {
        let (next, action) = plan.next(event);
        act(plan, event, next, action);
        walk(next, events, length - 1, act);
    }
}

#[test]
fn whatever_happens_in_whatever_order() {
    let refused = |may_pass, may_be_in| PlanEvent::NotAttached {
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
            PlanEvent::Begins {
                capturing: true,
                ..
            }
        );
        assert!(!is_captured || action == Nothing, "{list:?}");
        let writes_stop = matches!(action, Stop | StopAndLeave);
        let was_taking = matches!(before, Taking { .. });
        let is_taking = matches!(after, Taking { .. });
        // When the recording of kernels ends, the plan must require that the end is written into the record. The only
        // exception is `Obstructed`, after which the plan requires no action.
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

/// If another profiler takes CUPTI during an iteration, the recording ends before that iteration, because the
/// iteration's kernels are incomplete.
#[test]
fn another_profiler_ends_it_in_the_middle_of_an_iteration() {
    let taking = [Opens, begins(5, Where::Out), Attached { until: 9 }, Yields];
    assert_eq!(
        after(&taking),
        (vec![Nothing, Action::Attach, Nothing, Nothing], Cut)
    );
    assert_eq!(Cut.due(), 0);
    for end in [begins(8, Where::Out), Closes { over: 8 }, Ends] {
        assert_eq!(Cut.next(end), (Off, StopBefore));
    }
}

#[test]
fn what_was_left_to_another_profiler_is_not_taken_out() {
    let pending = Leave { tries: 2, at: 7 };
    let leave = Some(pending);
    for (plan, left) in [
        (Waiting { leave }, Waiting { leave: None }),
        (Leaving(pending), Off),
        (Hopeless { leave }, Hopeless { leave: None }),
        (Off, Off),
    ] {
        assert_eq!(plan.next(Yields), (left, Nothing));
    }
}
