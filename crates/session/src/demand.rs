//! A window on demand: one that is requested while the process runs.

use core::sync::atomic::{AtomicBool, Ordering};

use tllmprof_config::condition::Condition;
use tllmprof_config::{IterationRange, TracePath};
use tllmprof_platform::lifecycle;

lifecycle::global! {
    stage: Session;

    /// True if a window on demand that has not closed yet has its own condition on batches.
    #[fork(reset)]
    pub static HAS_CONDITION: AtomicBool = AtomicBool::new(false);
    /// True if data about each iteration are needed to open or close a window: to find steady iterations (iterations of
    /// similar duration), or to measure until the window's figures are precise enough. Both need the batch, because
    /// they leave out iterations without requests or tokens.
    #[fork(reset)]
    pub static SEARCHES: AtomicBool = AtomicBool::new(false);
}

/// Returns true if the batch of each new iteration has to be described, because a condition, a trigger, or the opening
/// or closing of a window (see `SEARCHES`) depends on it.
pub fn wants_facts() -> bool {
    HAS_CONDITION.load(Ordering::Relaxed)
        || SEARCHES.load(Ordering::Relaxed)
        || crate::activity::settings()
            .is_some_and(|settings| settings.condition.is_some() || settings.when.is_some())
}

/// Returns true if passes of a draft model count as steps, because a condition in the settings refers to such
/// passes.
pub fn counts_drafts() -> bool {
    crate::activity::settings().is_some_and(|settings| {
        let when = settings.when.as_ref().map(|when| &when.condition);
        let mut conditions = settings.condition.iter().chain(when);
        conditions.any(Condition::names_drafts)
    })
}

/// The largest number of windows on demand that are stored. At most two of them have not closed: one is open, and
/// another one has yet to open.
const MAX_DEMANDS: usize = 4;

/// A window that was requested while the process runs, with its settings and its progress.
pub(crate) struct Demand {
    /// The number of the request, counted from 1.
    pub number: u64,
    /// The iterations that were requested.
    pub window: IterationRange,
    pub condition: Option<Condition>,
    pub kernels: Option<u64>,
    /// True if earlier iterations belong to the window, too: those that the flight recorder (which keeps the latest
    /// iterations) has stored.
    pub past: bool,
    /// The path for the trace of the PyTorch profiler, if the profiler runs in the window.
    pub torch_trace: Option<TracePath>,
    pub progress: DemandProgress,
}

/// The progress of a window on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DemandProgress {
    /// The window's first iteration has not begun yet.
    Waits,
    /// The window is open. The value is the number of its first iteration.
    Open(u64),
    /// The window has closed. The value is the numbers of its first and last iteration; `None` if the window never
    /// opened or has no iterations.
    Closed(Option<(u64, u64)>),
}

impl Demand {
    /// Returns true if the window is open or has yet to open.
    pub(crate) const fn is_due(&self) -> bool {
        !matches!(self.progress, DemandProgress::Closed(_))
    }
}

/// The latest windows on demand, the oldest first. A window may be requested while an earlier one is still open, so
/// each of them has its own settings and progress.
#[derive(Default)]
pub(crate) struct Demands {
    latest: Vec<Demand>,
    /// The number of windows that have been requested so far.
    count: u64,
}

impl Demands {
    /// Adds a request, and returns its number. `demand` makes the request with that number. If [`MAX_DEMANDS`] windows
    /// are stored, first removes the oldest one that has closed.
    pub(crate) fn add(&mut self, demand: impl FnOnce(u64) -> Demand) -> u64 {
        self.count += 1;
        if self.latest.len() >= MAX_DEMANDS
            && let Some(oldest) = self.latest.iter().position(|demand| !demand.is_due())
        {
            self.latest.remove(oldest);
        }
        self.latest.push(demand(self.count));
        self.note_conditions();
        self.count
    }

    /// Returns the progress of the request `number`; `None` if there was no such request, or if it is no longer stored.
    pub(crate) fn progress(&self, number: u64) -> Option<DemandProgress> {
        let demand = self.latest.iter().find(|demand| demand.number == number)?;
        Some(demand.progress)
    }

    /// Returns the requested window that has yet to open, if there is one.
    pub(crate) fn waiting(&self) -> Option<&Demand> {
        self.latest
            .iter()
            .find(|demand| demand.progress == DemandProgress::Waits)
    }

    /// Returns the window that was requested as `window` and has not closed yet.
    pub(crate) fn due(&self, window: IterationRange) -> Option<&Demand> {
        self.latest
            .iter()
            .find(|demand| demand.is_due() && demand.window == window)
    }

    /// Stores the progress of the window that was requested as `window` and has not closed yet. Does nothing if there
    /// is no such window.
    pub(crate) fn note(&mut self, window: IterationRange, progress: DemandProgress) {
        let mut latest = self.latest.iter_mut();
        if let Some(demand) = latest.find(|demand| demand.is_due() && demand.window == window) {
            demand.progress = progress;
            self.note_conditions();
        }
    }

    /// Updates [`HAS_CONDITION`] after a window or its progress has changed.
    fn note_conditions(&self) {
        let has_one = |demand: &Demand| demand.is_due() && demand.condition.is_some();
        HAS_CONDITION.store(self.latest.iter().any(has_one), Ordering::Relaxed);
    }
}
