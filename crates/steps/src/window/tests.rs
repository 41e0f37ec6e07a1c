//! Tests of planned windows: at which points in the sequence of iterations they open and close.

mod demanded;

use core::time::Duration;
use std::time::Instant;

use tllmprof_config::range::IterationRange;

use super::schedule::PARTS;
use super::*;
use crate::length::KernelPart;
use crate::steady::Known;

/// An iteration that no condition excludes, and in which the program waited neither for requests nor for the GPU.
const OWN: Known = Known {
    counts: true,
    idle: Duration::ZERO,
    gpu_wait: Duration::ZERO,
};

fn window(first: u64, last: impl Into<Option<u64>>) -> IterationRange {
    IterationRange {
        first,
        last: last.into(),
    }
}

fn taken(window: IterationRange) -> Option<Taken> {
    Some(Taken::on_time(window))
}

fn events(
    windows: &[IterationRange],
    iterations: impl IntoIterator<Item = u64>,
) -> Vec<(u64, Edge)> {
    let mut schedule = Schedule::new(windows);
    iterations
        .into_iter()
        .map(|n| (n, schedule.reach(Point::In(n))))
        .filter(|(_, e)| *e != Edge::default())
        .collect()
}

#[test]
fn a_window_opens_at_its_first_and_closes_after_its_last() {
    let w = window(5, 9);
    assert_eq!(
        events(&[w], 0..40),
        [
            (
                5,
                Edge {
                    open: taken(w),
                    ..Edge::default()
                }
            ),
            (
                10,
                Edge {
                    close: taken(w),
                    ..Edge::default()
                }
            )
        ]
    );
}

/// Runs the iterations before `until`. Only iterations for which `counts` returns true count for the length of windows.
/// Returns the schedule.
fn of_some(windows: &[IterationRange], until: u64, counts: impl Fn(u64) -> bool) -> Schedule {
    let mut schedule = Schedule::new(windows).of_some();
    for n in 0..until {
        schedule.counts(n, counts(n));
        let has_edge = schedule.has_edge_at(Point::In(n));
        let edge = schedule.reach(Point::In(n));
        assert_eq!(has_edge, edge != Edge::default(), "{n}");
    }
    schedule
}

#[test]
fn a_window_of_some_iterations_opens_with_one_and_lasts_for_as_many_as_were_asked_for() {
    let windows = |schedule: &Schedule| -> Vec<_> {
        let captured = schedule.captured().iter();
        captured.map(|taken| (taken.asked, taken.window)).collect()
    };
    let asked = window(5, 7);
    // Only multiples of 3 count. Three iterations were requested, so the window lasts until 6, 9 and 12 have run.
    let thirds = of_some(&[asked], 40, |n| n % 3 == 0);
    assert_eq!(windows(&thirds), [(asked, window(6, 12))]);
    let all = of_some(&[asked], 40, |_| true);
    assert_eq!(windows(&all), [(asked, asked)]);
    let none = of_some(&[asked], 40, |n| n < 5);
    assert!(!none.has_opened());
    // The second window waits for the first. An excluded iteration right after the end of a window does not
    // make that window longer.
    let next = window(9, 10);
    let even = of_some(&[asked, next], 40, |n| n % 2 == 0);
    assert_eq!(
        windows(&even),
        [(asked, window(6, 10)), (next, window(12, 14))]
    );
    // A window that is not complete when the process ends reports the iterations that it contains.
    let mut cut = of_some(&[asked], 10, |n| n == 5 || n > 8);
    let taken = cut.finish().unwrap();
    assert_eq!(taken.window, window(5, 10));
    assert_eq!(taken.cut(10).unwrap().has, Some(window(5, 9)));
    // A window without a last iteration stays open while excluded iterations run.
    let open = of_some(&[window(2, None)], 9, |n| n == 4);
    assert!(open.is_open());
}

#[test]
fn a_window_that_is_split_has_the_iterations_that_count_alone() {
    let asked = window(5, 8);
    let mut schedule = Schedule::new(&[asked, window(20, None)]).of_some();
    let counts = |n: u64| n % 4 < 2;
    for n in 0..30 {
        if counts(n) || n == 10 {
            schedule.counts(n, counts(n));
        } else {
            schedule.splits(n);
            assert!(!schedule.splits(n), "twice");
        }
        let has_edge = schedule.has_edge_at(Point::In(n));
        assert_eq!(has_edge, schedule.reach(Point::In(n)) != Edge::default());
    }
    assert_eq!(schedule.lacks(), None);
    schedule.finish();
    let parts = schedule.captured().iter();
    let parts: Vec<_> = parts
        .map(|taken| (taken.window.to_string(), taken.is_again, taken.goes_on))
        .collect();
    let part = |text: &str, is_again, goes_on| (text.to_owned(), is_again, goes_on);
    assert_eq!(
        parts,
        [
            part("5", false, true),
            part("8-10", true, true),
            part("12", true, false),
            part("20-21", false, true),
            part("24-25", true, true),
            part("28-", true, false),
        ]
    );
}

#[test]
fn a_window_of_many_parts_keeps_some_and_counts_the_others() {
    let mut schedule = Schedule::new(&[window(0, None)]).of_some();
    let parts = PARTS as u64 + 9;
    for n in 0..2 * parts {
        match n % 2 {
            0 => schedule.counts(n, true),
            _ => drop(schedule.splits(n)),
        }
        schedule.reach(Point::In(n));
    }
    let kept = schedule.captured();
    assert_eq!((kept.len(), schedule.unkept()), (PARTS, 9));
    assert_eq!(kept[PARTS - 2].window.first, 2 * (PARTS as u64 - 2));
    assert_eq!(kept[PARTS - 1].window.first, 2 * (parts - 1));
}

#[test]
fn a_window_that_was_closed_in_between_says_what_it_lacks() {
    let mut schedule = Schedule::new(&[window(1, 5)]).of_some();
    schedule.reach(Point::In(1));
    assert_eq!(schedule.lacks(), None);
    assert!(schedule.splits(3));
    assert!(schedule.reach(Point::In(3)).close.is_some());
    assert_eq!(schedule.lacks(), Some(3));
    assert!(schedule.finish().is_none() && !schedule.is_open());
}

#[test]
fn the_rest_of_a_window_that_was_closed_in_between_is_given_up_once() {
    let mut schedule = Schedule::new(&[window(1, 5)]).of_some();
    schedule.reach(Point::In(1));
    assert!(schedule.splits(3));
    assert!(schedule.reach(Point::In(3)).close.is_some());
    assert!(schedule.stop(3) && !schedule.stop(3));
    schedule.counts(4, true);
    assert_eq!(schedule.reach(Point::In(4)), Edge::default());
    assert!(!schedule.has_more());
}

#[test]
fn many_windows_one_after_the_other() {
    let (a, b, c) = (window(2, 3), window(7, 7), window(30, None));
    let seen = events(&[a, b, c], 0..40);
    let opened: Vec<_> = seen
        .iter()
        .filter_map(|(n, e)| Some((*n, e.open?.window)))
        .collect();
    let closed: Vec<_> = seen
        .iter()
        .filter_map(|(n, e)| Some((*n, e.close?.window)))
        .collect();
    assert_eq!(opened, [(2, a), (7, b), (30, c)]);
    assert_eq!(closed, [(4, a), (8, b)]);
}

#[test]
fn a_jump_closes_and_opens_at_once_and_leaves_out_what_it_passed() {
    let (a, b, c) = (window(1, 2), window(4, 5), window(8, 20));
    let mut schedule = Schedule::new(&[a, b, c]);
    schedule.reach(Point::In(1));
    assert_eq!(
        schedule.reach(Point::In(10)),
        Edge {
            close: taken(a),
            open: taken(c),
            kernels: false,
        }
    );
    assert_eq!(schedule.captured(), [Taken::on_time(a)]);
}

#[test]
fn a_window_goes_no_further_than_its_last_iteration() {
    let bounded = Taken::on_time(window(5, 9));
    assert_eq!([7, 10, 14].map(|over| bounded.over(over)), [7, 10, 10]);
    let open = Taken::on_time(window(5, None));
    assert_eq!(open.over(14), 14);
    assert_eq!(Taken::on_time(window(5, u64::MAX)).over(14), 14);
}

#[test]
fn next_edge_says_where_to_look_again() {
    let mut schedule = Schedule::new(&[window(5, 9), window(u64::MAX, u64::MAX)]);
    assert_eq!(schedule.next_edge(), Some(5));
    schedule.reach(Point::In(5));
    assert_eq!(schedule.next_edge(), Some(10));
    schedule.reach(Point::In(10));
    assert_eq!(schedule.next_edge(), Some(u64::MAX));
    schedule.reach(Point::In(u64::MAX));
    assert_eq!(schedule.next_edge(), None);
    assert_eq!(schedule.finish(), taken(window(u64::MAX, u64::MAX)));
    assert_eq!(schedule.next_edge(), None);
}

#[test]
fn a_window_closes_where_its_last_iteration_is_known_to_end() {
    let w = window(5, 6);
    let mut schedule = Schedule::new(&[w, window(8, 8)]);
    assert!(schedule.reach(Point::In(5)).open.is_some());
    assert!(!schedule.has_edge_at(Point::After(5)));
    assert_eq!(schedule.reach(Point::After(5)), Edge::default());
    assert!(schedule.has_edge_at(Point::After(6)));
    assert_eq!(schedule.reach(Point::After(6)).close, taken(w));
    assert!(!schedule.has_edge_at(Point::In(7)));
    assert!(schedule.has_edge_at(Point::In(8)));
}

#[test]
fn nothing_opens_after_the_end() {
    let mut schedule = Schedule::new(&[window(0, None)]);
    assert!(schedule.reach(Point::In(0)).open.is_some());
    assert!(schedule.finish().is_some());
    assert_eq!(schedule.reach(Point::In(1)), Edge::default());
    assert_eq!(schedule.finish(), None);
}

#[test]
fn the_end_of_the_process_cuts_a_window_off() {
    let cut = |window, over| {
        let taken = Taken::on_time(window).cut(over)?;
        Some(taken.has.map(|has| has.to_string()))
    };
    assert_eq!(cut(window(5, 9), 10), None);
    assert_eq!(cut(window(5, 9), 9), Some(Some("5-8".into())));
    assert_eq!(cut(window(5, 9), 6), Some(Some("5".into())));
    assert_eq!(cut(window(5, 9), 5), Some(None));
    assert_eq!(cut(window(0, 0), 0), Some(None));
    assert_eq!(
        cut(window(5, None), 6),
        None,
        "to the end, as was asked for"
    );
}

#[test]
fn what_is_not_understood_is_not_captured_and_a_window_opens_late_instead() {
    let (a, b, c) = (window(5, 9), window(11, 12), window(100, 104));
    let mut schedule = Schedule::patient(&[a, b, c]);
    assert!(!schedule.has_edge_at(Point::In(5)));
    assert_eq!(schedule.waiting_at(4), None);
    assert_eq!(schedule.waiting_at(14), Some(a));
    assert_eq!(schedule.reach(Point::In(14)), Edge::default());
    schedule.hold(false);
    assert!(schedule.has_edge_at(Point::In(15)));
    let late = schedule.reach(Point::In(15)).open.unwrap();
    assert_eq!((late.asked, late.window), (a, window(15, 19)));
    // A window that is already open closes even if windows are prevented from opening.
    schedule.hold(true);
    assert!(schedule.has_edge_at(Point::In(20)));
    assert_eq!(schedule.reach(Point::In(20)).close, Some(late));
    schedule.hold(false);
    let late = schedule.reach(Point::In(21)).open.unwrap();
    assert_eq!((late.asked, late.window), (b, window(21, 22)));
    let edge = schedule.reach(Point::In(23));
    assert_eq!((edge.close, edge.open), (Some(late), None));
    assert_eq!(schedule.reach(Point::In(100)).open, taken(c));
    assert!(schedule.reach(Point::In(104)).open.is_none());
    assert_eq!(schedule.reach(Point::In(105)).close, taken(c));
}

#[test]
fn a_window_that_has_to_wait_is_as_long_as_was_asked_for() {
    let w = window(5, 9);
    let mut schedule = Schedule::new(&[w]);
    schedule.wait();
    assert!(!schedule.has_edge_at(Point::In(5)));
    assert_eq!(
        (schedule.waiting_at(4), schedule.waiting_at(5)),
        (None, Some(w))
    );
    assert_eq!(schedule.reach(Point::In(11)), Edge::default());
    schedule.hold(false);
    let late = schedule.reach(Point::In(12)).open.unwrap();
    assert_eq!((late.asked, late.window), (w, window(12, 16)));
}

#[test]
fn a_window_of_steady_iterations_begins_where_their_time_has_settled() {
    let micros = |n| if n < 10 { 5000 } else { 1000 };
    let run = |mut schedule: Schedule, counts: fn(u64) -> bool| {
        let mut now = Instant::now();
        let mut edges = Vec::new();
        for n in 0..200 {
            schedule.counts(n, counts(n));
            schedule.begins(n, now, OWN);
            let has_edge = schedule.has_edge_at(Point::In(n));
            let edge = schedule.reach(Point::In(n));
            assert_eq!(has_edge, edge != Edge::default(), "{n}");
            assert_eq!(schedule.waiting_at(n), None);
            let all = [(n, edge.open), (n, edge.close)];
            edges.extend(all.into_iter().filter_map(|(n, w)| Some((n, w?))));
            now += Duration::from_micros(micros(n));
        }
        edges
    };
    let asked = [window(0, 19)];
    let taken = Taken::on_time(window(32, 51));
    let edges = run(Schedule::new(&asked).once_settled(), |_| true);
    assert_eq!(edges, [(32, taken), (52, taken)]);
    // A window of steady iterations does not count as late, even if the schedule lets other windows
    // open late.
    let mut held = Schedule::patient(&asked);
    held.hold(false);
    assert_eq!(run(held.once_settled(), |_| true), edges);
    // With a condition, the window has the same number of iterations as without one, not counting
    // the excluded iterations.
    let some = run(Schedule::new(&asked).of_some().once_settled(), |n| {
        n % 2 == 0
    });
    assert_eq!(some.len(), 2);
    let (opened, closed) = (some[0].0, some[1].0);
    assert_eq!((opened % 2, closed - opened), (0, 39), "{some:?}");
}

#[test]
fn a_window_without_a_length_lasts_until_it_has_what_it_needs() {
    let run = |kernels, until: u64, millis: fn(u64) -> u64| {
        let asked = [window(0, None)];
        let mut schedule = Schedule::patient(&asked)
            .once_settled()
            .as_long_as_needed(kernels);
        schedule.hold(false);
        let mut now = Instant::now();
        let mut edges = Vec::new();
        for n in 0..until {
            let follows_each = schedule.follows_each();
            assert!(follows_each || schedule.captured().len() == 1, "{n}");
            schedule.begins(n, now, OWN);
            let has_edge = schedule.has_edge_at(Point::In(n));
            let edge = schedule.reach(Point::In(n));
            assert_eq!(has_edge, edge != Edge::default(), "{n}");
            let closed = edge.close.map(|taken| taken.window);
            if has_edge {
                edges.push((n, edge.open.is_some(), edge.kernels, closed));
            }
            now += Duration::from_millis(millis(n));
        }
        (edges, schedule.finish())
    };
    let kernels = KernelPart {
        iterations: 20,
        within: Some(Duration::from_millis(300)),
    };
    let (edges, _) = run(Some(kernels), 400, |_| 10);
    let all = [
        (24, true, false, None),
        (224, false, true, None),
        (244, false, false, Some(window(24, 243))),
    ];
    assert_eq!(edges, all);
    // In this test, one iteration in the middle of the window is a pause of 5 s. It counts towards the window's length
    // as an iteration of 0.1 s.
    let (edges, _) = run(Some(kernels), 400, |n| if n == 100 { 5000 } else { 10 });
    assert_eq!(edges[1].0, 215);
    let (edges, _) = run(None, 400, |_| 10);
    assert_eq!(edges[1], (224, false, false, Some(window(24, 223))));
    // The process ends before the window closes.
    let (edges, open) = run(Some(kernels), 100, |_| 10);
    assert_eq!(edges.len(), 1);
    let cut = open.and_then(|open| open.cut(100)).unwrap();
    assert_eq!(cut.has, Some(window(24, 99)));
}

#[test]
fn a_steady_window_keeps_its_name_where_it_opens_again() {
    let mut schedule = Schedule::new(&[window(0, 4)]).of_some().once_settled();
    let start = Instant::now();
    for n in 0..60 {
        match n {
            27..30 => drop(schedule.splits(n)),
            _ => schedule.counts(n, true),
        }
        schedule.begins(n, start + Duration::from_millis(n), OWN);
        schedule.reach(Point::In(n));
    }
    let captured = schedule.captured().iter();
    let captured: Vec<_> = captured.map(|taken| (taken.asked, taken.window)).collect();
    let asked = window(24, 28);
    assert_eq!(captured, [(asked, window(24, 26)), (asked, window(30, 31))]);
}

#[test]
fn a_steady_window_that_is_held_waits_for_that_too() {
    let mut schedule = Schedule::new(&[window(0, 4)]).once_settled();
    schedule.wait();
    let start = Instant::now();
    for n in 0..40 {
        schedule.begins(n, start + Duration::from_millis(n), OWN);
        let is_due = n >= crate::steady::NEEDED;
        assert_eq!(schedule.waiting_at(n).is_some(), is_due, "{n}");
        assert!(schedule.reach(Point::In(n)).open.is_none());
    }
    schedule.hold(false);
    assert_eq!(schedule.reach(Point::In(40)).open, taken(window(40, 44)));
}

#[test]
fn late_windows_are_kept_apart() {
    let mut schedule = Schedule::patient(&[window(2, 3), window(5, None)]);
    schedule.hold(false);
    assert!(schedule.reach(Point::In(40)).open.is_some());
    let edge = schedule.reach(Point::In(42));
    assert!(edge.close.is_some() && edge.open.is_none());
    assert_eq!(
        schedule.reach(Point::In(43)).open.unwrap().window,
        window(43, None)
    );
}
