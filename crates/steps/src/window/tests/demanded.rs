//! Tests of windows on demand (requested while the process runs): at which points they open and
//! close.

use core::time::Duration;
use std::time::Instant;

use tllmprof_config::range::IterationRange;

use super::super::{Conflict, Edge, Point, Schedule, Taken};
use super::{OWN, window};
use crate::length::KernelPart;

/// An event that a test applies to a schedule.
enum Then {
    /// A window is requested. The second value is the conflict that the schedule must report, if any.
    Demand(IterationRange, Option<Conflict>),
    /// The iterations before the one with this number begin. The second value lists the windows that must open and
    /// close meanwhile, each with the iteration at which this happens.
    Until(u64, &'static [(u64, &'static str)]),
    Stop(bool),
}

fn drive(mut schedule: Schedule, events: &[Then]) -> Schedule {
    let mut next = 0;
    for event in events {
        match event {
            Then::Demand(window, conflict) => {
                assert_eq!(schedule.demand(*window).err(), *conflict, "{window}");
            }
            Then::Stop(is_open) => assert_eq!(schedule.stop(next - 1), *is_open),
            Then::Until(end, expected) => {
                let mut seen = Vec::new();
                for n in next..*end {
                    let has_edge = schedule.has_edge_at(Point::In(n));
                    let is_near = schedule.next_edge().is_some_and(|edge| edge <= n);
                    let edge = schedule.reach(Point::In(n));
                    assert_eq!(has_edge, edge != Edge::default(), "{n}");
                    assert!(is_near || !has_edge, "the threads may run past {n}");
                    let name = |taken: Taken, verb| format!("{verb} {}", taken.window);
                    seen.extend(edge.close.map(|taken| (n, name(taken, "close"))));
                    seen.extend(edge.open.map(|taken| (n, name(taken, "open"))));
                }
                let seen: Vec<_> = seen.iter().map(|(n, what)| (*n, &**what)).collect();
                assert_eq!(seen, *expected);
                next = *end;
            }
        }
    }
    schedule
}

#[test]
fn a_window_is_added_while_the_process_runs() {
    let schedule = drive(
        Schedule::new(&[]),
        &[
            Then::Until(7, &[]),
            Then::Demand(window(7, 9), None),
            Then::Demand(window(20, 21), Some(Conflict::Demanded(window(7, 9)))),
            Then::Until(9, &[(7, "open 7-9")]),
            Then::Demand(window(20, 21), Some(Conflict::Open(window(7, 9)))),
            Then::Until(12, &[(10, "close 7-9")]),
            Then::Demand(window(13, 13), None),
            Then::Until(15, &[(13, "open 13"), (14, "close 13")]),
        ],
    );
    assert_eq!(schedule.demands_met(), 2);
    assert!(schedule.has_opened() && schedule.captured().is_empty());
}

#[test]
fn what_was_demanded_is_stopped() {
    let schedule = drive(
        Schedule::new(&[]),
        &[
            Then::Until(3, &[]),
            Then::Stop(false),
            Then::Demand(window(5, None), None),
            Then::Stop(false),
            Then::Until(8, &[]),
            Then::Demand(window(8, None), None),
            Then::Until(11, &[(8, "open 8-")]),
            Then::Stop(true),
            Then::Stop(true),
            Then::Until(13, &[(11, "close 8-10")]),
            Then::Stop(false),
        ],
    );
    assert_eq!((schedule.demands_met(), schedule.demanded()), (1, None));
    assert_eq!(schedule.next_edge(), None);
}

#[test]
fn an_open_window_can_be_closed_where_no_iteration_begins_any_more() {
    let mut schedule = Schedule::new(&[]);
    schedule.demand(window(2, 90)).unwrap();
    assert!(schedule.reach(Point::In(2)).open.is_some());
    assert!(schedule.stop(2) && schedule.has_edge_at(Point::After(2)));
    let closed = schedule.reach(Point::After(2)).close.unwrap();
    assert_eq!((closed.window, closed.on_demand), (window(2, 2), true));
}

#[test]
fn planned_windows_are_taken_all_the_same() {
    let planned = [window(5, 6), window(30, 31)];
    let schedule = drive(
        Schedule::new(&planned),
        &[
            Then::Demand(window(6, 8), Some(Conflict::Planned(planned[0]))),
            Then::Demand(window(2, 3), None),
            Then::Until(6, &[(2, "open 2-3"), (4, "close 2-3"), (5, "open 5-6")]),
            Then::Until(10, &[(7, "close 5-6")]),
            Then::Demand(window(12, None), Some(Conflict::Planned(planned[1]))),
            Then::Demand(window(12, 29), None),
            Then::Until(30, &[(12, "open 12-29")]),
            Then::Until(
                40,
                &[(30, "close 12-29"), (30, "open 30-31"), (32, "close 30-31")],
            ),
        ],
    );
    assert_eq!((schedule.demands_met(), schedule.captured().len()), (2, 2));
    let mut schedule = drive(
        Schedule::new(&planned),
        &[Then::Until(6, &[(5, "open 5-6")]), Then::Stop(true)],
    );
    schedule.plan_none();
    let schedule = drive(schedule, &[Then::Until(40, &[(6, "close 5")])]);
    assert_eq!(schedule.next_edge(), None);
}

#[test]
fn a_demand_waits_for_no_time_to_settle_and_the_steady_window_comes_later() {
    let mut schedule = Schedule::new(&[window(0, 4)]).once_settled();
    let start = Instant::now();
    let mut taken = Vec::new();
    for n in 0..80 {
        if n == 3 {
            schedule.demand(window(5, 6)).unwrap();
        }
        schedule.begins(n, start + Duration::from_millis(n), OWN);
        let has_edge = schedule.has_edge_at(Point::In(n));
        let edge = schedule.reach(Point::In(n));
        assert_eq!(has_edge, edge != Edge::default(), "{n}");
        taken.extend(edge.close.map(|taken| (taken.window, taken.on_demand)));
    }
    let steady = window(24, 28);
    assert_eq!(taken, [(window(5, 6), true), (steady, false)]);
}

#[test]
fn a_demand_opens_late_where_its_iteration_is_not_understood() {
    let mut schedule = Schedule::new(&[]);
    schedule.hold(true);
    schedule.demand(window(5, 9)).unwrap();
    assert_eq!(
        (schedule.waiting_at(4), schedule.waiting_at(5)),
        (None, Some(window(5, 9)))
    );
    assert_eq!(schedule.reach(Point::In(6)), Edge::default());
    schedule.hold(false);
    let late = schedule.reach(Point::In(7)).open.unwrap();
    assert_eq!((late.asked, late.window), (window(5, 9), window(7, 11)));
}

#[test]
fn a_demand_lasts_for_as_many_iterations_as_count_and_is_not_split() {
    let mut schedule = Schedule::new(&[]);
    schedule.demand(window(4, 5)).unwrap();
    let mut taken = Vec::new();
    for n in 0..20 {
        let counts = n % 3 == 0;
        assert!(!schedule.splits(n));
        schedule.counts(n, counts);
        taken.extend(schedule.reach(Point::In(n)).close.map(|taken| taken.window));
    }
    assert_eq!(taken, [window(6, 9)]);
}

/// Runs iterations of 10 ms with a planned window of steady iterations, and calls `then` before each
/// iteration. Returns the windows that closed, and the schedule. Each window comes with the iteration before which it
/// closed, and is marked as true if it was requested.
fn drive_steady(
    until: u64,
    mut then: impl FnMut(&mut Schedule, u64),
) -> (Vec<(u64, IterationRange, bool)>, Schedule) {
    let kernels = KernelPart {
        iterations: 20,
        within: None,
    };
    let mut schedule = Schedule::new(&[window(0, None)])
        .once_settled()
        .as_long_as_needed(Some(kernels));
    let start = Instant::now();
    let mut closed = Vec::new();
    for n in 0..until {
        then(&mut schedule, n);
        if schedule.follows_each() {
            schedule.begins(n, start + Duration::from_millis(10 * n), OWN);
        }
        let has_edge = schedule.has_edge_at(Point::In(n));
        let edge = schedule.reach(Point::In(n));
        assert_eq!(has_edge, edge != Edge::default(), "{n}");
        let taken = edge.close.map(|taken| (n, taken.window, taken.on_demand));
        closed.extend(taken);
    }
    (closed, schedule)
}

#[test]
fn an_open_steady_window_gives_way_and_opens_again() {
    let asked = window(60, 69);
    let (closed, schedule) = drive_steady(400, |schedule, n| {
        if n == 50 {
            assert!(matches!(schedule.demand(asked), Err(Conflict::Open(_))));
            assert!(schedule.give_way(60) && schedule.ends_before(60));
            schedule.demand_after(asked).unwrap();
            assert!(!schedule.give_way(70), "it has given way");
        }
    });
    // The planned window needs 200 iterations without kernels and 20 with kernels, and is interrupted once. The first
    // iteration after the interruption does not count towards the 200.
    let planned = [(60, window(24, 59), false), (255, window(70, 254), false)];
    assert_eq!(closed, [planned[0], (70, asked, true), planned[1]]);
    assert!(schedule.interrupted().is_none());
    let names: Vec<_> = schedule
        .captured()
        .iter()
        .map(|taken| taken.asked)
        .collect();
    assert_eq!(names, [window(24, None), window(24, 254)]);
    // The process ends while the planned window is closed for the requested one.
    let (closed, schedule) = drive_steady(65, |schedule, n| {
        if n == 50 {
            schedule.give_way(60);
            schedule.demand_after(asked).unwrap();
        }
    });
    assert_eq!(closed, planned[..1]);
    assert_eq!(schedule.interrupted().unwrap().has, Some(window(24, 59)));
}

#[test]
fn a_steady_window_that_opens_after_the_request_gives_way_in_time() {
    // The window is requested before step times have settled. The planned window opens at iteration 24.
    let asked = window(60, 69);
    let (closed, _) = drive_steady(400, |schedule, n| {
        if n == 10 {
            schedule.demand(asked).unwrap();
        }
    });
    let planned = [(60, window(24, 59), false), (255, window(70, 254), false)];
    assert_eq!(closed, [planned[0], (70, asked, true), planned[1]]);
    // The request is cancelled. The planned window stays open.
    let (closed, _) = drive_steady(400, |schedule, n| match n {
        10 => schedule.demand(asked).unwrap(),
        55 => assert!(!schedule.stop(54)),
        _ => {}
    });
    assert_eq!(closed, [(244, window(24, 243), false)]);
}

#[test]
fn a_steady_window_goes_on_where_what_it_gave_way_to_is_stopped() {
    let (closed, _) = drive_steady(400, |schedule, n| match n {
        50 => {
            schedule.give_way(60);
            schedule.demand_after(window(60, 69)).unwrap();
        }
        55 => assert!(!schedule.stop(54)),
        _ => {}
    });
    assert_eq!(closed, [(244, window(24, 243), false)]);
    // The requested window is stopped while it is open. Then the planned window opens again.
    let (closed, _) = drive_steady(400, |schedule, n| match n {
        50 => {
            schedule.give_way(60);
            schedule.demand_after(window(60, None)).unwrap();
        }
        65 => assert!(schedule.stop(64)),
        _ => {}
    });
    let windows: Vec<_> = closed.iter().map(|(_, window, _)| *window).collect();
    assert_eq!(windows, [window(24, 59), window(60, 64), window(65, 249)]);
    // No window was requested, so `stop` stops the planned window itself.
    let (closed, schedule) = drive_steady(400, |schedule, n| {
        if n == 50 {
            assert!(schedule.stop(49));
        }
    });
    assert_eq!(closed, [(50, window(24, 49), false)]);
    assert_eq!(schedule.captured()[0].asked, window(24, 49));
}

#[test]
fn a_steady_window_that_has_its_times_is_given_up() {
    let (closed, _) = drive_steady(400, |schedule, n| {
        if n == 230 {
            assert!(schedule.give_way(n));
            schedule.demand_after(window(n, 240)).unwrap();
        }
    });
    let windows: Vec<_> = closed.iter().map(|(_, window, _)| *window).collect();
    assert_eq!(windows, [window(24, 229), window(230, 240)]);
}
