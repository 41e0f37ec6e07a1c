//! A window that was asked for while the process runs.

use core::sync::atomic::{AtomicBool, Ordering};

use tllmprof_config::TracePath;
use tllmprof_config::condition::Condition;
use tllmprof_platform::lifecycle;

lifecycle::global! {
    stage: Session;

    /// A window on demand has a condition, which none may have that was planned.
    #[fork(reset)]
    pub static HAS_CONDITION: AtomicBool = AtomicBool::new(false);
}

/// Whether it matters what is in the batch of an iteration that begins.
pub fn wants_facts() -> bool {
    HAS_CONDITION.load(Ordering::Relaxed)
        || crate::activity::settings()
            .is_some_and(|settings| settings.condition.is_some() || settings.when.is_some())
}

/// A window on demand, from its acceptance on.
pub struct Demand {
    pub condition: Option<Condition>,
    pub kernels: Option<u64>,
    /// The iterations before it that are kept go with it.
    pub past: bool,
    /// The PyTorch profiler runs in it.
    pub torch_trace: Option<TracePath>,
    pub progress: Progress,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Its first iteration has not begun.
    Waits,
    /// It is open since this iteration.
    Open(u64),
    /// It has closed with these iterations; with none where it never opened, or had none.
    Closed(Option<(u64, u64)>),
}

impl Demand {
    /// Whether it is still to take iterations.
    pub const fn is_due(&self) -> bool {
        !matches!(self.progress, Progress::Closed(_))
    }
}
