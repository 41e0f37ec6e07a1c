//! The longest wait for the GIL of the threads that have ended: others have their places now.

use core::time::Duration;

use super::thread_name::Text;
use tllmprof_platform::lifecycle;
use tllmprof_sync::Lock;

const PATIENCE: Duration = Duration::from_millis(10);

lifecycle::global! {
    stage: Sinks;

    #[fork(reset)]
    #[restart(keep)]
    static LONGEST: Lock<Option<Longest>> = Lock::new(None);
}

/// How long a thread has waited, in nanoseconds, and what it is called.
pub struct Longest {
    pub time: u64,
    pub name: Text,
}

/// A thread has ended whose longest wait this is.
pub fn keep(wait: Longest) {
    if let Some(mut longest) = LONGEST.lock_for(PATIENCE)
        && longest
            .as_ref()
            .is_none_or(|longest| longest.time < wait.time)
    {
        *longest = Some(wait);
    }
}

/// The longest, which is forgotten here.
pub fn take() -> Option<Longest> {
    LONGEST
        .lock_for(PATIENCE)
        .and_then(|mut longest| longest.take())
}
