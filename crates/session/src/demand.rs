//! A window on demand, which was asked for while the process runs.

use core::sync::atomic::{AtomicBool, Ordering};

use tllmprof_config::TracePath;
use tllmprof_config::condition::Condition;
use tllmprof_platform::lifecycle;

lifecycle::global! {
    stage: Session;

    /// True if a window on demand has a condition of its own.
    #[fork(reset)]
    pub static HAS_CONDITION: AtomicBool = AtomicBool::new(false);
    /// True if a window of steady iterations will open or is open: batches without requests do not count.
    #[fork(reset)]
    pub static SEARCHES: AtomicBool = AtomicBool::new(false);
}

/// Returns true if the batch of an iteration that begins matters.
pub fn wants_facts() -> bool {
    HAS_CONDITION.load(Ordering::Relaxed)
        || SEARCHES.load(Ordering::Relaxed)
        || crate::activity::settings()
            .is_some_and(|settings| settings.condition.is_some() || settings.when.is_some())
}

/// Returns true if passes of draft models are steps, since the variables ask for them.
pub fn counts_drafts() -> bool {
    crate::activity::settings().is_some_and(|settings| {
        let when = settings.when.as_ref().map(|when| &when.condition);
        let mut conditions = settings.condition.iter().chain(when);
        conditions.any(Condition::names_drafts)
    })
}

/// A window on demand, from its acceptance on.
pub struct Demand {
    pub condition: Option<Condition>,
    pub kernels: Option<u64>,
    /// True if the kept iterations before it belong to it.
    pub past: bool,
    /// The path of the trace of the PyTorch profiler, if that runs in the window.
    pub torch_trace: Option<TracePath>,
    pub progress: Progress,
}

/// The progress of a window on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The window's first iteration has not begun.
    Waits,
    /// The window has been open since this iteration.
    Open(u64),
    /// The window has closed with this first and last iteration; `None` if it never opened, or has no iterations.
    Closed(Option<(u64, u64)>),
}

impl Demand {
    /// Returns true if it still has to take iterations.
    pub const fn is_due(&self) -> bool {
        !matches!(self.progress, Progress::Closed(_))
    }
}
