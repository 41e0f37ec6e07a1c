//! The schedule of windows: opens the planned windows of a process one after another, and windows on demand
//! in between.

mod demand;

use std::time::Instant;

use tllmprof_config::range::IterationRange;

use super::{Edge, Point, Taken, later};
use crate::length::{KernelPart, Measuring, Next};
use crate::steady::{Known, Settling, Verdict};

pub use demand::Conflict;

/// The largest number of captured parts of windows that are listed one by one. A window has several parts if
/// it is closed for a while and opens again.
pub(super) const PARTS: usize = 1024;

/// The iterations that a window still needs after it was closed for a while: `left` of them, or all further
/// iterations if `left` is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rest {
    asked: IterationRange,
    left: Option<u64>,
}

/// The windows of a process: those that are planned, open and captured.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    windows: Vec<IterationRange>,
    /// The index in `windows` of the planned window that is open or, if none is open, that opens next. The windows
    /// before this index are finished.
    next: usize,
    /// The window that is open now, if any.
    open: Option<Taken>,
    /// The iterations that the window at the index `next` still needs, if it was closed for a while and has not
    /// opened again; otherwise `None`.
    rest: Option<Rest>,
    captured: Vec<Taken>,
    /// The number of captured parts of windows that are not in the list `captured`, because there were too
    /// many.
    unkept: u64,
    /// True if a window that could not open at its first iteration opens late with its full number of iterations. If
    /// false, it opens late with only those of its iterations that are left.
    is_patient: bool,
    /// True if no window may open until [`Schedule::hold`] is called with false.
    held: bool,
    /// True if the iteration that begins does not count (for example, a condition excludes it). Then no window opens
    /// with this iteration.
    passes_over: bool,
    /// The search for steady iterations, if the window has to begin once the time of an iteration
    /// has settled; else `None`.
    settling: Option<Settling>,
    /// The data for the window's length, if the window lasts until its figures are precise enough; otherwise `None`.
    length: Option<Length>,
    /// A window that was requested while the process runs and has not opened yet. If a planned window is due as well,
    /// the requested window opens first.
    demanded: Option<IterationRange>,
    /// The number of windows on demand that have closed.
    demands_met: u64,
}

/// The length of a window that lasts until its figures are precise enough.
#[derive(Clone, Copy, Debug)]
struct Length {
    kernels: Option<KernelPart>,
    /// The measurement of the window's length, once it has opened.
    measuring: Option<Measuring>,
    /// The time when the latest iteration began; `None` before the first one.
    now: Option<Instant>,
    /// True if the part with kernels begins with the next iteration.
    is_kernels_due: bool,
}

impl Schedule {
    /// Returns the schedule for `windows`, which must be sorted and must not overlap.
    pub fn new(windows: &[IterationRange]) -> Self {
        Self {
            windows: windows.to_vec(),
            // Memory for the list of captured windows is reserved now, because the last window may be closed in a
            // signal handler, where nothing may be allocated.
            captured: Vec::with_capacity(windows.len()),
            ..Self::default()
        }
    }

    /// Returns a schedule for a process in which counting begins late. Its windows open late if their beginning was
    /// missed. No window opens until [`Schedule::hold`] is called with false.
    pub fn patient(windows: &[IterationRange]) -> Self {
        Self {
            is_patient: true,
            held: true,
            ..Self::new(windows)
        }
    }

    /// Prevents windows from opening if `held` is true, and allows them to open if `held` is false.
    pub fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// Prevents windows from opening until [`Schedule::hold`] is called with false. A window whose beginning is missed
    /// meanwhile opens late.
    pub fn wait(&mut self) {
        self.is_patient = true;
        self.held = true;
    }

    /// Makes each window last until it has the requested number of iterations that count (see [`Schedule::counts`]). A
    /// window opens with the first iteration that counts.
    #[must_use]
    pub fn of_some(self) -> Self {
        Self {
            is_patient: true,
            ..self
        }
    }

    /// Makes the window begin only once the time of an iteration has settled (see [`Schedule::begins`]).
    #[must_use]
    pub fn once_settled(self) -> Self {
        Self {
            settling: Some(Settling::default()),
            ..self
        }
    }

    /// Makes the window last until its figures are precise enough. If `kernels` is given, the window then
    /// continues with a part in which kernels are recorded.
    #[must_use]
    pub fn as_long_as_needed(self, kernels: Option<KernelPart>) -> Self {
        Self {
            length: Some(Length {
                kernels,
                measuring: None,
                now: None,
                is_kernels_due: false,
            }),
            ..self
        }
    }

    /// Returns true if [`Schedule::begins`] has to be called for each iteration.
    pub fn follows_each(&self) -> bool {
        let is_to_open =
            self.length.is_some_and(|l| l.measuring.is_none()) && self.next < self.windows.len();
        self.is_settling() || is_to_open || self.is_measuring() || self.rest.is_some()
    }

    /// Returns true if the open window is one that lasts until its figures are precise enough.
    fn is_measuring(&self) -> bool {
        self.open
            .is_some_and(|open| !open.on_demand && self.length.is_some())
    }

    /// Returns true if the window waits for the time of an iteration to settle. Then [`Schedule::begins`] has
    /// to be called for each iteration.
    pub fn is_settling(&self) -> bool {
        self.settling
            .as_ref()
            .is_some_and(|settling| settling.verdict().is_none())
    }

    /// Called when `iteration` begins, before [`Schedule::reach`]. Updates the search for steady iterations
    /// and the length of the open window.
    pub fn begins(&mut self, iteration: u64, now: Instant, known: Known) {
        let known = Known {
            counts: known.counts && !self.passes_over,
            ..known
        };
        if let Some(settling) = &mut self.settling {
            settling.begins(iteration, now, known);
        }
        let is_measuring = self.is_measuring();
        let Some(length) = &mut self.length else {
            return;
        };
        length.now = Some(now);
        let next = match length.measuring.as_mut().filter(|_| is_measuring) {
            Some(measuring) => measuring.begins(now, known),
            None => return,
        };
        match (next, &mut self.open) {
            (Next::Kernels, _) => length.is_kernels_due = true,
            (Next::Closes, Some(open)) => {
                let last = iteration.saturating_sub(1).max(open.window.first);
                open.goes_on = false;
                self.rest = None;
                open.window.last = Some(last);
                open.asked.last = Some(last.max(open.asked.first));
            }
            _ => {}
        }
    }

    /// Called when a stream was captured in the current iteration. This iteration then counts neither in the search for
    /// steady iterations nor towards the window's length.
    pub fn interrupt(&mut self) {
        if let Some(settling) = &mut self.settling {
            settling.interrupt();
        }
        if let Some(measuring) = self.length.as_mut().and_then(|l| l.measuring.as_mut()) {
            measuring.interrupt();
        }
    }

    /// Called when counting of iterations restarts, because everything before was the program's warm-up.
    pub fn restart(&mut self) {
        if let Some(settling) = &mut self.settling {
            settling.restart();
        }
    }

    /// Returns the result of the search for steady iterations; `None` if the window does not wait for steady
    /// iterations, or still waits for them.
    pub fn verdict(&self) -> Option<Verdict> {
        self.settling.as_ref()?.verdict()
    }

    /// Sets whether `iteration`, which is about to begin, counts as a part of a window. It does not count if a
    /// condition excludes it. The open window gets one iteration longer for each iteration that does not count.
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

    /// Makes the open window close before `iteration`, which does not count (see [`Schedule::counts`]). The window
    /// opens again with the next iteration that counts. Returns false if no window has to be closed. A window on demand
    /// is never split.
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

    /// Returns the number of iterations that a window still needs after it was closed for a while. Returns `None` if no
    /// window was closed for a while, or if the window has no last iteration.
    pub fn lacks(&self) -> Option<u64> {
        self.rest?.left
    }

    /// Removes the planned windows that have not opened yet.
    pub fn plan_none(&mut self) {
        self.windows.truncate(self.next);
        self.settling = None;
    }

    pub const fn open(&self) -> Option<Taken> {
        self.open
    }

    /// Returns true if a window is open or may still open.
    pub fn has_more(&self) -> bool {
        self.is_open() || self.demanded.is_some() || self.next < self.windows.len()
    }

    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns the window that was to open with `iteration` or earlier, but has to wait because no window may open yet.
    pub fn waiting_at(&self, iteration: u64) -> Option<IterationRange> {
        let window = self.coming().find(|window| window.first <= iteration)?;
        (self.held && self.open.is_none()).then_some(window)
    }

    /// Returns true if no window may open with the iteration that begins now.
    fn is_held(&self) -> bool {
        self.held || self.passes_over
    }

    /// Returns true if any window has ever opened.
    pub fn has_opened(&self) -> bool {
        self.open.is_some() || !self.captured.is_empty() || self.demands_met > 0
    }

    /// Returns the next planned window, unless it still waits for steady iterations.
    fn planned(&self) -> Option<IterationRange> {
        let planned = self.windows.get(self.next).copied();
        planned.filter(|_| !self.is_settling())
    }

    /// Returns the window on demand and the next planned window, as far as they exist.
    fn coming(&self) -> impl Iterator<Item = IterationRange> {
        self.demanded.into_iter().chain(self.planned())
    }

    /// Returns the number of the iteration that begins when the open window closes or, if none is open, when
    /// the next window opens.
    pub fn next_edge(&self) -> Option<u64> {
        match &self.open {
            Some(open) => open.window.last?.checked_add(1),
            None => match (self.demanded, self.planned()) {
                (Some(demanded), Some(planned)) => Some(demanded.first.min(planned.first)),
                (demanded, planned) => Some(demanded.or(planned)?.first),
            },
        }
    }

    /// Returns true if a window has to be opened or closed at `point`, or if the open window begins its part
    /// with kernels there.
    pub fn has_edge_at(&self, point: Point) -> bool {
        match point {
            Point::Start => false,
            Point::In(_) if self.is_held() && self.open.is_none() => false,
            Point::In(iteration) => {
                self.has_kernels_due() || self.next_edge().is_some_and(|edge| edge <= iteration)
            }
            Point::After(iteration) => self.closes_after(iteration),
        }
    }

    /// Returns true if the open window begins its part with kernels at the next iteration.
    fn has_kernels_due(&self) -> bool {
        self.is_measuring() && self.length.is_some_and(|length| length.is_kernels_due)
    }

    /// Returns true if `iteration` is the last one of the open window.
    pub fn closes_after(&self, iteration: u64) -> bool {
        self.open
            .is_some_and(|open| open.window.last == Some(iteration))
    }

    /// Moves the schedule to `point`. Returns the windows that close and open there.
    pub fn reach(&mut self, point: Point) -> Edge {
        match point {
            Point::Start => Edge::default(),
            Point::In(iteration) => self.advance(iteration),
            Point::After(iteration) if self.closes_after(iteration) => Edge {
                close: self.close(),
                ..Edge::default()
            },
            Point::After(_) => Edge::default(),
        }
    }

    fn advance(&mut self, iteration: u64) -> Edge {
        let mut edge = Edge::default();
        let is_over = |w: &IterationRange| w.last.is_some_and(|last| last < iteration);
        if self.open.is_some_and(|open| is_over(&open.window)) {
            edge.close = self.close();
        }
        if self.has_kernels_due()
            && let Some(length) = &mut self.length
        {
            length.is_kernels_due = false;
            edge.kernels = true;
        }
        if self.open.is_none()
            && !self.is_held()
            && let Some(demanded) = self.demanded.take_if(|window| window.first <= iteration)
        {
            self.open = Some(Taken {
                on_demand: true,
                ..Taken::new(demanded, later(demanded, iteration))
            });
            edge.open = self.open;
        } else if self.open.is_none() && !self.is_held() && !self.is_settling() {
            if self.settling.is_some()
                && self.captured.is_empty()
                && let Some(window) = self.windows.first_mut()
            {
                // A window of steady iterations was requested without iteration numbers, so it begins with
                // this iteration.
                *window = later(*window, iteration);
            }
            while !self.is_patient && self.windows.get(self.next).is_some_and(is_over) {
                self.next += 1;
            }
            // Profilers need time between two windows. So a window that opens late does not open at
            // the point where another window closes.
            let apart = edge.close.is_none() || !self.is_patient;
            let window = self.windows.get(self.next).filter(|w| w.first <= iteration);
            if let Some(window) = window.filter(|window| apart || window.first == iteration) {
                let taken = Taken {
                    is_measured: self.length.is_some(),
                    ..self.take(*window, iteration)
                };
                self.open = Some(taken);
                self.rest = None;
                self.measure(taken);
                edge.open = self.open;
                // If a window was requested before this one opened, the requested window begins later and takes
                // precedence. So this window has to close before that.
                if let Some(demanded) = self.demanded {
                    self.make_way(demanded.first);
                }
                // Memory for the list of captured windows is reserved now, because this window may be closed in a
                // signal handler, where nothing may be allocated.
                self.captured.reserve(1);
            }
        }
        edge
    }

    /// Starts to measure the length of the window that has opened, if the window lasts until its figures are
    /// precise enough.
    fn measure(&mut self, taken: Taken) {
        let usual = match self.verdict() {
            Some(Verdict::Settled(step)) => Some(step),
            _ => None,
        };
        if let Some(length) = &mut self.length {
            if let Some(measuring) = length.measuring.as_mut().filter(|_| taken.is_again) {
                // The window was closed for a while and opens again. The time in between does not
                // count towards its length.
                return measuring.interrupt();
            }
            let now = length.now.unwrap_or_else(Instant::now);
            length.measuring = Some(Measuring::new(length.kernels, usual, now));
        }
    }

    /// Returns the planned `window` together with the iterations that it really gets if it opens at `iteration`.
    fn take(&self, window: IterationRange, iteration: u64) -> Taken {
        if let Some(Rest { asked, left }) = self.rest {
            let last = left.map(|left| iteration.saturating_add(left - 1));
            let first = iteration;
            return Taken {
                is_again: true,
                ..Taken::new(asked, IterationRange { first, last })
            };
        }
        let late = iteration.saturating_sub(window.first);
        if !self.is_patient || late == 0 {
            return Taken::on_time(window);
        }
        Taken::new(window, later(window, iteration))
    }

    /// Closes the open window when the process ends, and removes all windows that have not opened. Returns the closed
    /// window, if one was open.
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

    /// Returns the planned windows that have opened and closed. A window that was closed for a while is listed once for
    /// each of its parts. If there are very many parts, some are missing (see [`Schedule::unkept`]).
    pub fn captured(&self) -> &[Taken] {
        &self.captured
    }

    /// Returns the number of captured parts of windows that are missing in the list that [`Schedule::captured`]
    /// returns. These parts come right before the last part in the list.
    pub const fn unkept(&self) -> u64 {
        self.unkept
    }
}
