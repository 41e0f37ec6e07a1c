//! Windows on demand, which are not planned from the start: a user, a trigger or the sampling of kernels requests
//! them while the process runs.

use tllmprof_config::range::IterationRange;

use super::{Rest, Schedule};
use crate::window::Cut;

/// The reason why a requested window conflicts with another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// Another window is open. The value has its iterations.
    Open(IterationRange),
    /// Another window was requested earlier and has not opened yet. The value has its iterations.
    Demanded(IterationRange),
    /// The window with these iterations was planned from the start. It has an iteration in common with the requested
    /// window, or it was interrupted and still needs further iterations.
    Planned(IterationRange),
    /// A window of steady iterations (iterations of similar duration) has been planned and has yet to open. The
    /// requested window must not open before it (see [`Schedule::keeps_steady`]).
    ToCome,
}

impl Conflict {
    /// Returns the last iteration of the conflicting window, if it is known.
    pub const fn ends(&self) -> Option<u64> {
        match self {
            Self::Open(window) | Self::Demanded(window) | Self::Planned(window) => window.last,
            Self::ToCome => None,
        }
    }
}

impl Schedule {
    /// Adds a window on demand, which must begin with an iteration that has not begun. The window opens at that
    /// iteration once the library knows the step rule, without waiting for step times to settle.
    ///
    /// # Errors
    /// Returns the conflict if another window is open, was requested before, or is planned for the same iterations.
    pub fn demand(&mut self, window: IterationRange) -> Result<(), Conflict> {
        if let Some(open) = &self.open {
            return Err(Conflict::Open(open.window));
        }
        self.demand_after(window)
    }

    /// Returns true if the open window ends before iteration `first`.
    pub fn ends_before(&self, first: u64) -> bool {
        let last = self.open.and_then(|open| open.window.last);
        last.is_some_and(|last| last < first)
    }

    /// Interrupts the open window of steady iterations for a requested window that begins with iteration `first`. The
    /// open window closes before `first` and opens again later, unless it has reached its part with kernels. Returns
    /// true if it is interrupted. Does nothing if another window was requested before.
    pub fn give_way(&mut self, first: u64) -> bool {
        self.demanded.is_none() && self.make_way(first)
    }

    /// Does the work of [`Schedule::give_way`]. The window that begins with iteration `first` may already be stored as
    /// the requested one.
    pub(super) fn make_way(&mut self, first: u64) -> bool {
        let is_measuring = self.is_measuring();
        let measuring = self.length.and_then(|length| length.measuring);
        let (Some(open), Some(measuring)) = (&mut self.open, measuring) else {
            return false;
        };
        if !is_measuring || open.goes_on || open.window.last.is_some() {
            return false;
        }
        let last = first.saturating_sub(1).max(open.window.first);
        open.window.last = Some(last);
        if measuring.takes_kernels() {
            open.asked.last = Some(last);
        } else {
            open.goes_on = true;
            self.rest = Some(Rest {
                asked: open.asked,
                left: None,
            });
        }
        true
    }

    /// Returns true if the open window is to be closed only to make room for a requested window that has not
    /// opened yet.
    fn has_given_way(&self) -> bool {
        let goes_on = self
            .open
            .is_some_and(|open| open.goes_on && open.is_measured);
        goes_on && self.demanded.is_some()
    }

    /// Returns the latest captured part of the window of steady iterations, if that window was
    /// interrupted and has not opened again.
    pub fn interrupted(&self) -> Option<Cut> {
        let last = self.captured.last()?;
        (self.rest.is_some() && last.is_measured).then_some(Cut {
            has: Some(last.window),
        })
    }

    /// Refuses a window on demand while a window of steady iterations has yet to open. To be called if a profiler is in
    /// the process: it may capture only as many windows as were planned, and would capture the requested one instead.
    ///
    /// # Errors
    /// Returns [`Conflict::ToCome`] if such a window will open.
    pub fn keeps_steady(&self) -> Result<(), Conflict> {
        match self.settling.is_some() && self.next < self.windows.len() && !self.is_open() {
            true => Err(Conflict::ToCome),
            false => Ok(()),
        }
    }

    /// Adds a window on demand, like [`Schedule::demand`], that begins after the end of the open window.
    ///
    /// # Errors
    /// Returns the conflict if another window was requested before, or is planned for the same iterations.
    pub fn demand_after(&mut self, window: IterationRange) -> Result<(), Conflict> {
        if let Some(demanded) = self.demanded {
            return Err(Conflict::Demanded(demanded));
        }
        let planned = self.windows.get(self.next..).unwrap_or_default();
        let gives_way = self.is_settling() || self.length.is_some();
        // A planned window that was interrupted needs the next iterations to become complete, so it conflicts with
        // each request.
        let is_hit = |planned: &&IterationRange| self.rest.is_some() || planned.overlaps(&window);
        if let Some(planned) = planned.iter().filter(|_| !gives_way).find(is_hit) {
            return Err(Conflict::Planned(*planned));
        }
        self.demanded = Some(window);
        Ok(())
    }

    /// Makes the open window end with `iteration`, and cancels a window on demand that has not opened. A planned window
    /// that was closed for a while does not open again. Returns true if the open window has to be closed, or if such a
    /// planned window was given up. The caller has to close the open window as soon as [`Schedule::has_edge_at`]
    /// returns true.
    pub fn stop(&mut self, iteration: u64) -> bool {
        let has_given_way = self.has_given_way();
        let was_demanded = self.demanded.take().is_some();
        if let Some(open) = self.open.as_mut().filter(|_| has_given_way) {
            // The requested window is cancelled, so the open window continues as if there had been no
            // request.
            open.goes_on = false;
            open.window.last = None;
            self.rest = None;
            return false;
        }
        // If another window was interrupted for the window that is stopped now, that other window keeps its remaining
        // iterations, and opens again.
        let is_on_demand = was_demanded || self.open.is_some_and(|open| open.on_demand);
        let keeps_rest = self.length.is_some() && is_on_demand;
        let gives_up = !keeps_rest && self.rest.take().is_some() && self.open.is_none();
        self.next += usize::from(gives_up);
        let Some(open) = &mut self.open else {
            return gives_up;
        };
        open.goes_on = false;
        let last = open
            .window
            .last
            .map_or(iteration, |last| last.min(iteration));
        let last = last.max(open.window.first);
        open.window.last = Some(last);
        if open.is_measured {
            open.asked.last = Some(last);
        }
        true
    }

    /// If the open window is one on demand, makes it end with `iteration`. Unlike [`Schedule::stop`], does not cancel a
    /// window on demand that has not opened.
    pub fn stop_open(&mut self, iteration: u64) {
        let demanded = self.demanded.take();
        if self.open.is_some_and(|open| open.on_demand) {
            self.stop(iteration);
        }
        self.demanded = demanded;
    }

    /// Returns true if a window that was planned by iteration numbers is open or will open.
    pub fn has_numbered(&self) -> bool {
        self.settling.is_none() && self.next < self.windows.len()
    }

    /// Returns the window that was requested and has not opened yet.
    pub const fn demanded(&self) -> Option<IterationRange> {
        self.demanded
    }

    /// Returns the number of windows on demand that have closed.
    pub const fn demands_met(&self) -> u64 {
        self.demands_met
    }
}
