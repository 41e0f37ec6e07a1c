//! A window on demand: one that is requested while the process runs.

use core::sync::atomic::{AtomicBool, Ordering};

use tllmprof_config::TracePath;
use tllmprof_config::condition::Condition;
use tllmprof_platform::lifecycle;

lifecycle::global! {
    stage: Session;

    /// True if the current window on demand has its own condition on batches.
    #[fork(reset)]
    pub static HAS_CONDITION: AtomicBool = AtomicBool::new(false);
    /// True if data about each iteration are needed to open or close a window: to find steady iterations (iterations
    /// of similar duration), or to measure until the window's figures are precise enough. Both leave out iterations
    /// whose batch has no requests or no tokens.
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

/// A window that was requested while the process runs, with its settings and its progress.
pub(crate) struct Demand {
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
