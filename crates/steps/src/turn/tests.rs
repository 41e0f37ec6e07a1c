use std::time::Instant;

use super::Action::{self, Begin, Go, Look, Refuse, Rest, Switch, Wait};
use super::TurnEvent::{self, Claims, Ends, GoesOn, Passed, Reached, Switched, Switches};
use super::{CLOSING, OPENING, Turn};
use crate::window::Point::{After, In, Start};

/// Applies `events` to a new turn. Returns the resulting actions, and the turn after all events.
fn after(events: &[TurnEvent]) -> (Vec<Action>, Turn) {
    let mut turn = Turn::default();
    let actions = events.iter().map(|event| turn.on(*event)).collect();
    (actions, turn)
}

fn opens(now: Instant) -> TurnEvent {
    let closes = false;
    Switches { closes, now }
}

#[test]
fn the_first_thread_that_uses_cuda_makes_ready_and_gives_the_turn_back() {
    let (actions, turn) = after(&[Claims(Instant::now()), GoesOn, GoesOn]);
    assert_eq!(actions, [Go, Begin, Rest]);
    assert!(turn.has_begun() && !turn.is_taken() && turn.until().is_none());
}

#[test]
fn it_is_made_ready_once() {
    let now = Instant::now();
    let events = [Claims(now), GoesOn, GoesOn, Claims(now), GoesOn];
    assert_eq!(after(&events).0, [Go, Begin, Rest, Go, Rest]);
}

#[test]
fn points_with_nothing_to_switch_are_passed_without_the_turn() {
    let (actions, turn) = after(&[Reached(In(3)), Passed, Reached(After(3)), Passed]);
    assert_eq!(actions, [Look, Rest, Look, Rest]);
    assert!(!turn.has_begun() && !turn.is_taken());
    assert_eq!(turn.done(), After(3));
}

#[test]
fn a_window_opens() {
    let now = Instant::now();
    let events = [
        Reached(In(5)),
        Claims(now),
        GoesOn,
        GoesOn,
        opens(now),
        Switched(In(5)),
        GoesOn,
    ];
    let (actions, turn) = after(&events);
    assert_eq!(actions, [Look, Go, Begin, Switch(In(5)), Go, Go, Rest]);
    assert_eq!((turn.done(), turn.target()), (In(5), In(5)));
}

#[test]
fn the_turn_is_one_threads_and_others_wait_as_long_as_it_may_take() {
    let now = Instant::now();
    let mut turn = Turn::default();
    let actions = [
        Claims(now),
        Claims(now),
        Reached(In(1)),
        GoesOn,
        Reached(In(2)),
        Passed,
    ]
    .map(|event| turn.on(event));
    let until = Some(now + OPENING);
    assert_eq!(
        actions,
        [Go, Refuse, Wait(until), Begin, Wait(until), Refuse]
    );
    let later = now + OPENING;
    let closes = true;
    assert_eq!(turn.on(GoesOn), Switch(In(2)));
    assert_eq!(turn.on(Switches { closes, now: later }), Go);
    assert_eq!(turn.on(Reached(In(3))), Wait(Some(later + CLOSING)));
}

#[test]
fn the_target_that_moves_on_while_switching_is_switched_to_next() {
    let now = Instant::now();
    let events = [
        Reached(In(5)),
        Claims(now),
        GoesOn,
        GoesOn,
        opens(now),
        Reached(After(5)),
        Reached(In(6)),
        Switched(In(5)),
        GoesOn,
        opens(now),
        Switched(In(6)),
        GoesOn,
    ];
    let (actions, turn) = after(&events);
    assert_eq!(actions[8], Switch(In(6)));
    assert_eq!(actions[11], Rest);
    assert_eq!(turn.done(), In(6));
}

#[test]
fn the_count_that_starts_again_while_switching_goes_back() {
    let now = Instant::now();
    let events = [
        Reached(In(5)),
        Claims(now),
        GoesOn,
        GoesOn,
        Reached(Start),
        Switched(In(5)),
        GoesOn,
        Switched(Start),
        GoesOn,
    ];
    let (actions, turn) = after(&events);
    assert_eq!(actions[6..], [Switch(Start), Go, Rest]);
    assert_eq!(turn.done().next(), 0);
}

#[test]
fn the_end_of_the_process_takes_the_turn_for_good() {
    let now = Instant::now();
    let events = [
        Claims(now),
        GoesOn,
        GoesOn,
        Ends,
        Reached(In(1)),
        Claims(now),
        GoesOn,
        Passed,
        Ends,
    ];
    let (actions, turn) = after(&events);
    assert_eq!(
        actions[3..],
        [Go, Wait(None), Refuse, Refuse, Refuse, Refuse]
    );
    assert!(turn.is_taken() && turn.has_begun());
}

#[test]
fn the_end_of_the_process_leaves_a_switch_as_it_is() {
    let now = Instant::now();
    let events = [
        Reached(In(5)),
        Claims(now),
        GoesOn,
        GoesOn,
        Ends,
        Switched(In(5)),
        GoesOn,
    ];
    let (actions, turn) = after(&events);
    assert_eq!(actions[4..], [Refuse, Go, Rest]);
    assert!(!turn.is_taken());
}

#[test]
fn a_process_that_ends_before_anything_is_ready_has_no_end_to_take() {
    let (actions, turn) = after(&[Ends, Claims(Instant::now()), Ends]);
    assert_eq!(actions, [Refuse, Go, Refuse]);
    assert!(!turn.has_begun());
}

/// Calls `act` for each event in all possible sequences of `length` events, with the turn before and after
/// the event.
fn walk(
    turn: Turn,
    events: &[TurnEvent],
    length: u32,
    act: &impl Fn(Turn, TurnEvent, Turn, Action),
) {
    for event in events.iter().copied().filter(|_| length > 0) {
        let mut next = turn;
        let action = next.on(event);
        act(turn, event, next, action);
        walk(next, events, length - 1, act);
    }
}

#[test]
fn whatever_happens_in_whatever_order() {
    let now = Instant::now();
    let closes = true;
    let events = [
        Reached(In(1)),
        Reached(Start),
        Passed,
        Claims(now),
        GoesOn,
        Switches { closes, now },
        Switched(In(1)),
        Ends,
    ];
    walk(
        Turn::default(),
        &events,
        6,
        &|before, event, after, action| {
            let list = (before, event, after, action);
            let is_claimed = matches!(event, Claims(_)) && action == Go;
            assert!(
                !is_claimed || !before.is_taken() && after.is_taken(),
                "{list:?}"
            );
            assert!(!before.has_begun() || after.has_begun(), "{list:?}");
            assert!(action != Begin || !before.has_begun(), "{list:?}");
            let rests = matches!((event, action), (GoesOn, Rest));
            assert!(!rests || after.done() == after.target(), "{list:?}");
            assert!(!rests || before.is_taken() && !after.is_taken(), "{list:?}");
            assert!(after.is_taken() || after.until().is_none(), "{list:?}");
            let waits = matches!(action, Wait(_));
            assert_eq!(
                waits,
                before.is_taken() && matches!(event, Reached(_)),
                "{list:?}"
            );
        },
    );
}

#[test]
fn who_has_not_the_turn_switches_nothing() {
    let events = [GoesOn, opens(Instant::now()), Switched(In(1))];
    let (actions, turn) = after(&events);
    assert_eq!(actions, [Refuse; 3]);
    assert_eq!(turn.done(), Start);
}
