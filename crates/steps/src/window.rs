//! Which iterations are captured.
//!
//! A window A-B holds the iterations A to B: it is open before the step that begins A goes on, and
//! closed before the one that begins B + 1 does. Steps of other threads that began before A and
//! still run are not its iterations, and those of A to B may be running where it closes.

use std::time::Instant;

use tllmprof_config::range::Window;

use crate::steady::{Settling, Verdict};

/// A place in the sequence of iterations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Point {
    /// Before the first one, or where the count starts again.
    #[default]
    Start,
    /// Where this iteration begins.
    In(u64),
    /// Where this iteration has ended, and the next has not begun.
    After(u64),
}

impl Point {
    /// The iteration that begins next.
    pub const fn next(self) -> u64 {
        match self {
            Self::Start => 0,
            Self::In(iteration) | Self::After(iteration) => iteration.saturating_add(1),
        }
    }

    /// Iterations that are over.
    pub const fn over(self) -> u64 {
        match self {
            Self::Start => 0,
            Self::In(iteration) => iteration,
            Self::After(iteration) => iteration.saturating_add(1),
        }
    }
}

/// What has to happen at a point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Edge {
    /// The window that has ended.
    pub close: Option<Taken>,
    /// The window that begins.
    pub open: Option<Taken>,
}

/// A window as it was asked for, and the iterations that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The window that was asked for.
    pub asked: Window,
    /// Its iterations: later ones than asked for, where it opened late.
    pub window: Window,
    /// It was closed in between and has opened again.
    pub is_again: bool,
    /// It closes in between and goes on later.
    pub goes_on: bool,
    /// It was asked for while the process ran.
    pub on_demand: bool,
}

impl Taken {
    /// A window as it was asked for that takes the iterations of another.
    pub const fn of(asked: Window, window: Window) -> Self {
        Self {
            asked,
            window,
            is_again: false,
            goes_on: false,
            on_demand: false,
        }
    }

    const fn on_time(window: Window) -> Self {
        Self::of(window, window)
    }

    /// How far it goes: the iteration after its last, where `over` of them are over.
    pub fn over(&self, over: u64) -> u64 {
        let end = self.window.last.and_then(|last| last.checked_add(1));
        end.map_or(over, |end| end.min(over))
    }

    /// What it has of its iterations where the process ends before the last of them, after `over` of them.
    pub fn cut(self, over: u64) -> Option<Cut> {
        let is_cut = self.window.last.is_some_and(|last| over <= last);
        is_cut.then(|| {
            let last = over
                .checked_sub(1)
                .filter(|last| *last >= self.window.first);
            Cut {
                has: last.map(|last| Window {
                    first: self.window.first,
                    last: Some(last),
                }),
            }
        })
    }

    /// Whether it opened late.
    pub fn is_late(&self) -> bool {
        self.asked != self.window
    }
}

/// A window that the end of the process has cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The iterations that it has, if there are any.
    pub has: Option<Window>,
}

/// As many iterations as `window` has, from `first` on.
fn later(window: Window, first: u64) -> Window {
    let late = first.saturating_sub(window.first);
    Window {
        first,
        last: window.last.map(|last| last.saturating_add(late)),
    }
}

/// Parts of windows that were closed in between which are kept one by one.
const PARTS: usize = 1024;

/// What a window has left to take: so many iterations, or all that come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rest {
    asked: Window,
    left: Option<u64>,
}

/// The windows of a process, on their way from wanted to captured.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    windows: Vec<Window>,
    /// Windows before this one are behind us.
    next: usize,
    /// The one at `next`, if it is open.
    open: Option<Taken>,
    /// What it has left to take, if it was closed in between.
    rest: Option<Rest>,
    captured: Vec<Taken>,
    /// Parts that are not kept: there were too many.
    unkept: u64,
    /// A window whose beginning has passed opens late, as long as was asked for, instead of what
    /// is left of it.
    is_patient: bool,
    /// No window opens for now.
    held: bool,
    /// The iteration that begins does not count: no window opens with it.
    passes_over: bool,
    /// The window begins once the time of an iteration has settled.
    settling: Option<Settling>,
    /// A window that was asked for while the process runs and has not opened yet. It comes before those at `next`.
    demanded: Option<Window>,
    /// How many of those have closed.
    demands_met: u64,
}

/// Why no window can be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// This one is open.
    Open(Window),
    /// This one was asked for already.
    Demanded(Window),
    /// This one was planned from the start, and has an iteration of the new one.
    Planned(Window),
}

impl Schedule {
    /// The schedule for `windows`, which are sorted and apart.
    pub fn new(windows: &[Window]) -> Self {
        Self {
            windows: windows.to_vec(),
            // The last one is closed where nothing may be allocated.
            captured: Vec::with_capacity(windows.len()),
            ..Self::default()
        }
    }

    /// The schedule for windows that are not to be missed by those who count late.
    pub fn patient(windows: &[Window]) -> Self {
        Self {
            is_patient: true,
            held: true,
            ..Self::new(windows)
        }
    }

    /// Lets no window open, or lets them again.
    pub fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Lets no window open until [`Schedule::hold`] lets them: one whose beginning passes meanwhile opens late.
    pub fn wait(&mut self) {
        self.is_patient = true;
        self.held = true;
    }

    /// Lets windows be made of iterations that count alone ([`Schedule::counts`]): they open with the first one.
    #[must_use]
    pub fn of_some(self) -> Self {
        Self {
            is_patient: true,
            ..self
        }
    }

    /// Lets the window begin once the time of an iteration has settled ([`Schedule::begins`]).
    #[must_use]
    pub fn once_settled(self) -> Self {
        Self {
            settling: Some(Settling::default()),
            ..self
        }
    }

    /// Whether the window waits for that, so that [`Schedule::begins`] is to know of each iteration.
    pub fn is_settling(&self) -> bool {
        self.settling
            .as_ref()
            .is_some_and(|settling| settling.verdict().is_none())
    }

    /// `iteration` begins now, and has not been reached yet.
    pub fn begins(&mut self, iteration: u64, now: Instant) {
        if let Some(settling) = &mut self.settling {
            settling.begins(iteration, now, !self.passes_over);
        }
    }

    /// A stream was captured in the iteration that runs.
    pub fn interrupt(&mut self) {
        if let Some(settling) = &mut self.settling {
            settling.interrupt();
        }
    }

    /// What has become of the time of an iteration, where the window has waited for it to settle.
    pub fn verdict(&self) -> Option<Verdict> {
        self.settling.as_ref()?.verdict()
    }

    /// Says of `iteration`, before it is reached, whether it counts. The open window lasts one longer for
    /// each that does not.
    pub fn counts(&mut self, iteration: u64, counts: bool) {
        self.passes_over = !counts;
        if let Some(open) = &mut self.open
            && let Some(last) = &mut open.window.last
            && iteration <= *last
            && !counts
        {
            *last = last.saturating_add(1);
        }
    }

    /// As [`Schedule::counts`] of one that does not: the open window closes before it, and opens again with the
    /// next one that counts. Whether there is one to be closed, which none is that was demanded.
    pub fn splits(&mut self, iteration: u64) -> bool {
        self.passes_over = true;
        let Some(open) = &mut self.open else {
            return false;
        };
        let last = open.window.last;
        if open.on_demand || open.goes_on || last.is_some_and(|last| last < iteration) {
            return false;
        }
        open.goes_on = true;
        open.window.last = Some(iteration.saturating_sub(1));
        self.rest = Some(Rest {
            asked: open.asked,
            left: last.map(|last| last - iteration + 1),
        });
        true
    }

    /// How many iterations a window that was closed in between still has to take; none if it takes all.
    pub fn lacks(&self) -> Option<u64> {
        self.rest?.left
    }

    /// Adds a window while the process runs, which must begin with an iteration that none has reached. It waits for
    /// nothing but that, and that its iteration is understood: not for times to settle.
    ///
    /// # Errors
    /// The window that is in its way.
    pub fn demand(&mut self, window: Window) -> Result<(), Conflict> {
        if let Some(open) = &self.open {
            return Err(Conflict::Open(open.asked));
        }
        if let Some(demanded) = self.demanded {
            return Err(Conflict::Demanded(demanded));
        }
        let planned = self.windows.get(self.next..).unwrap_or_default();
        // Those of one that was closed in between are its rest's.
        let is_hit = |planned: &&Window| self.rest.is_some() || planned.overlaps(&window);
        if let Some(planned) = planned.iter().filter(|_| !self.is_settling()).find(is_hit) {
            return Err(Conflict::Planned(*planned));
        }
        self.demanded = Some(window);
        Ok(())
    }

    /// Ends what is open with `iteration`, and forgets what was demanded. Whether a window is left to be closed, which
    /// is as [`Schedule::has_edge_at`] says.
    pub fn stop(&mut self, iteration: u64) -> bool {
        self.demanded = None;
        if self.rest.take().is_some() && self.open.is_none() {
            self.next += 1;
        }
        let Some(open) = &mut self.open else {
            return false;
        };
        open.goes_on = false;
        let last = open
            .window
            .last
            .map_or(iteration, |last| last.min(iteration));
        open.window.last = Some(last.max(open.window.first));
        true
    }

    /// Forgets the windows that were planned from the start.
    pub fn plan_none(&mut self) {
        self.windows.truncate(self.next);
        self.settling = None;
    }

    /// The window that was demanded and has not opened.
    pub const fn demanded(&self) -> Option<Window> {
        self.demanded
    }

    /// How many windows that were demanded have closed.
    pub const fn demands_met(&self) -> u64 {
        self.demands_met
    }

    /// The window that is open.
    pub const fn open(&self) -> Option<Taken> {
        self.open
    }

    /// Whether a window is open.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The window that would be open at `iteration` if it were not held.
    pub fn waiting_at(&self, iteration: u64) -> Option<Window> {
        let window = self.coming().find(|window| window.first <= iteration)?;
        (self.held && self.open.is_none()).then_some(window)
    }

    /// Whether no window opens, whatever iteration begins.
    fn is_held(&self) -> bool {
        self.held || self.passes_over
    }

    /// Whether any window has ever opened.
    pub fn has_opened(&self) -> bool {
        self.open.is_some() || !self.captured.is_empty() || self.demands_met > 0
    }

    /// The windows that open next, of those planned and those demanded.
    fn coming(&self) -> impl Iterator<Item = Window> {
        let planned = self.windows.get(self.next).copied();
        let planned = planned.filter(|_| !self.is_settling());
        self.demanded.into_iter().chain(planned)
    }

    /// The iteration whose beginning opens or closes a window next.
    pub fn next_edge(&self) -> Option<u64> {
        match &self.open {
            Some(open) => open.window.last?.checked_add(1),
            None => self.coming().map(|window| window.first).min(),
        }
    }

    /// Whether something has to happen at `point`.
    pub fn has_edge_at(&self, point: Point) -> bool {
        match point {
            Point::Start => false,
            Point::In(_) if self.is_held() && self.open.is_none() => false,
            Point::In(iteration) => self.next_edge().is_some_and(|edge| edge <= iteration),
            Point::After(iteration) => self.closes_after(iteration),
        }
    }

    /// Whether the open window ends with `iteration`.
    pub fn closes_after(&self, iteration: u64) -> bool {
        self.open
            .is_some_and(|open| open.window.last == Some(iteration))
    }

    /// Moves on to `point`.
    pub fn reach(&mut self, point: Point) -> Edge {
        match point {
            Point::Start => Edge::default(),
            Point::In(iteration) => self.advance(iteration),
            Point::After(iteration) if self.closes_after(iteration) => Edge {
                close: self.close(),
                open: None,
            },
            Point::After(_) => Edge::default(),
        }
    }

    fn advance(&mut self, iteration: u64) -> Edge {
        let mut edge = Edge::default();
        let is_over = |w: &Window| w.last.is_some_and(|last| last < iteration);
        if self.open.is_some_and(|open| is_over(&open.window)) {
            edge.close = self.close();
        }
        if self.open.is_none()
            && !self.is_held()
            && let Some(demanded) = self.demanded.take_if(|window| window.first <= iteration)
        {
            self.open = Some(Taken {
                on_demand: true,
                ..Taken::of(demanded, later(demanded, iteration))
            });
            edge.open = self.open;
        } else if self.open.is_none() && !self.is_held() && !self.is_settling() {
            if self.settling.is_some()
                && self.captured.is_empty()
                && let Some(window) = self.windows.first_mut()
            {
                // Nobody asked for it by number.
                *window = later(*window, iteration);
            }
            while !self.is_patient && self.windows.get(self.next).is_some_and(is_over) {
                self.next += 1;
            }
            // Profilers need time between windows that were asked for apart.
            let apart = edge.close.is_none() || !self.is_patient;
            let window = self.windows.get(self.next).filter(|w| w.first <= iteration);
            if let Some(window) = window.filter(|window| apart || window.first == iteration) {
                self.open = Some(self.take(*window, iteration));
                self.rest = None;
                edge.open = self.open;
                // It is closed where nothing may be allocated, maybe.
                self.captured.reserve(1);
            }
        }
        edge
    }

    /// The iterations that `window` takes when it opens at `iteration`.
    fn take(&self, window: Window, iteration: u64) -> Taken {
        if let Some(Rest { asked, left }) = self.rest {
            let last = left.map(|left| iteration.saturating_add(left - 1));
            let first = iteration;
            return Taken {
                is_again: true,
                ..Taken::of(asked, Window { first, last })
            };
        }
        let late = iteration.saturating_sub(window.first);
        if !self.is_patient || late == 0 {
            return Taken::on_time(window);
        }
        Taken::of(window, later(window, iteration))
    }

    /// Closes the open window, as at the end of the process; no window opens after it.
    pub fn finish(&mut self) -> Option<Taken> {
        let closed = self.close();
        self.demanded = None;
        self.windows.truncate(self.next);
        closed
    }

    fn close(&mut self) -> Option<Taken> {
        let taken = self.open.take()?;
        if taken.on_demand {
            self.demands_met += u64::from(!taken.goes_on);
            return Some(taken);
        }
        self.next += usize::from(!taken.goes_on);
        let is_full = taken.is_again && self.captured.len() >= PARTS;
        match self
            .captured
            .last_mut()
            .filter(|last| is_full && last.is_again)
        {
            Some(last) => {
                *last = taken;
                self.unkept += 1;
            }
            None => self.captured.push(taken),
        }
        Some(taken)
    }

    /// The windows that opened and closed.
    pub fn captured(&self) -> &[Taken] {
        &self.captured
    }

    /// How many parts of windows were captured beside those, between the last two of them.
    pub const fn unkept(&self) -> u64 {
        self.unkept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    fn window(first: u64, last: impl Into<Option<u64>>) -> Window {
        Window {
            first,
            last: last.into(),
        }
    }

    fn taken(window: Window) -> Option<Taken> {
        Some(Taken::on_time(window))
    }

    fn events(windows: &[Window], iterations: impl IntoIterator<Item = u64>) -> Vec<(u64, Edge)> {
        let mut schedule = Schedule::new(windows);
        iterations
            .into_iter()
            .map(|n| (n, schedule.advance(n)))
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
                        close: None
                    }
                ),
                (
                    10,
                    Edge {
                        open: None,
                        close: taken(w)
                    }
                )
            ]
        );
    }

    /// Windows of the iterations for which `counts`, as they were taken.
    fn of_some(windows: &[Window], until: u64, counts: impl Fn(u64) -> bool) -> Schedule {
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
        // 6, 9 and 12 count.
        let thirds = of_some(&[asked], 40, |n| n % 3 == 0);
        assert_eq!(windows(&thirds), [(asked, window(6, 12))]);
        let all = of_some(&[asked], 40, |_| true);
        assert_eq!(windows(&all), [(asked, asked)]);
        let none = of_some(&[asked], 40, |n| n < 5);
        assert!(!none.has_opened());
        // The second waits for the first, and what comes just after an end does not count.
        let next = window(9, 10);
        let even = of_some(&[asked, next], 40, |n| n % 2 == 0);
        assert_eq!(
            windows(&even),
            [(asked, window(6, 10)), (next, window(12, 14))]
        );
        // One that is not full at the end says how far it came.
        let mut cut = of_some(&[asked], 10, |n| n == 5 || n > 8);
        let taken = cut.finish().unwrap();
        assert_eq!(taken.window, window(5, 10));
        assert_eq!(taken.cut(10).unwrap().has, Some(window(5, 9)));
        // A window without an end needs to open only.
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
        schedule.advance(1);
        assert_eq!(
            schedule.advance(10),
            Edge {
                close: taken(a),
                open: taken(c)
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
        schedule.advance(5);
        assert_eq!(schedule.next_edge(), Some(10));
        schedule.advance(10);
        assert_eq!(schedule.next_edge(), Some(u64::MAX));
        schedule.advance(u64::MAX);
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
        assert!(schedule.advance(0).open.is_some());
        assert!(schedule.finish().is_some());
        assert_eq!(schedule.advance(1), Edge::default());
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
        // What is open closes in any case.
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
                schedule.begins(n, now);
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
        // It is late for nobody, whatever else may hold windows up.
        let mut held = Schedule::patient(&asked);
        held.hold(false);
        assert_eq!(run(held.once_settled(), |_| true), edges);
        // As many of those that count.
        let some = run(Schedule::new(&asked).of_some().once_settled(), |n| {
            n % 2 == 0
        });
        assert_eq!(some.len(), 2);
        let (opened, closed) = (some[0].0, some[1].0);
        assert_eq!((opened % 2, closed - opened), (0, 39), "{some:?}");
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
            schedule.begins(n, start + Duration::from_millis(n));
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
            schedule.begins(n, start + Duration::from_millis(n));
            let is_due = n >= crate::steady::NEEDED;
            assert_eq!(schedule.waiting_at(n).is_some(), is_due, "{n}");
            assert!(schedule.reach(Point::In(n)).open.is_none());
        }
        schedule.hold(false);
        assert_eq!(schedule.reach(Point::In(40)).open, taken(window(40, 44)));
    }

    /// What happens to a schedule, one after the other.
    enum Then {
        /// A window is demanded; what is in its way.
        Demand(Window, Option<Conflict>),
        /// The iterations before this one begin; what opens and closes there.
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
            schedule.begins(n, start + Duration::from_millis(n));
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
}
