//! Windows on demand: those that are asked for while the process runs.

use tllmprof_config::range::Window;

use super::Schedule;

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
    /// Adds a window while the process runs, which must begin with an iteration that none has reached. It waits for
    /// nothing but that, and that its iteration is understood: not for times to settle.
    ///
    /// # Errors
    /// The window that is in its way.
    pub fn demand(&mut self, window: Window) -> Result<(), Conflict> {
        if let Some(open) = &self.open {
            return Err(Conflict::Open(open.asked));
        }
        self.demand_after(window)
    }

    /// As [`Schedule::demand`], of a window that begins after the end of one that is open.
    ///
    /// # Errors
    /// As those.
    pub fn demand_after(&mut self, window: Window) -> Result<(), Conflict> {
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

    /// Whether a window is to come or open that was planned by the numbers of its iterations.
    pub fn has_numbered(&self) -> bool {
        self.settling.is_none() && self.next < self.windows.len()
    }

    /// The window that was demanded and has not opened.
    pub const fn demanded(&self) -> Option<Window> {
        self.demanded
    }

    /// How many windows that were demanded have closed.
    pub const fn demands_met(&self) -> u64 {
        self.demands_met
    }
}
