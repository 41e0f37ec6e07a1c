//! The schedule of windows: those that were planned when the process was started, one after the other.

mod demand;

use std::time::Instant;

use tllmprof_config::range::Window;

use super::{Edge, Point, Taken, later};
use crate::steady::{Settling, Verdict};

pub use demand::Conflict;

/// Parts of windows that were closed in between which are kept one by one.
pub(super) const PARTS: usize = 1024;

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

    /// Forgets the windows that were planned from the start.
    pub fn plan_none(&mut self) {
        self.windows.truncate(self.next);
        self.settling = None;
    }

    /// The window that is open.
    pub const fn open(&self) -> Option<Taken> {
        self.open
    }

    /// Whether a window is open or may yet open.
    pub fn has_more(&self) -> bool {
        self.is_open() || self.demanded.is_some() || self.next < self.windows.len()
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
