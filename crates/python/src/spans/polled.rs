//! Functions that an engine calls repeatedly to look for requests. All calls between two steps are recorded as one
//! event, not as one event for each call. An engine calls such a function on a single thread, so the calls of only one
//! thread are stored at a time.

use core::sync::atomic::{AtomicU64, Ordering};

use tllmprof_config::PyFunction;
use tllmprof_platform::{ids, lifecycle};
use tllmprof_recorder as recorder;
use tllmprof_recorder::What;
use tllmprof_recorder::watch::{self, Cause};
use tllmprof_sync::Published;

/// The calls with which an engine has looked for requests since the last step, and the thread that made them.
struct Polled {
    function: Published<PyFunction>,
    thread: AtomicU64,
    /// The start of the first call in ticks, the record's unit of time. `until` is the end of the last call.
    since: AtomicU64,
    until: AtomicU64,
}

lifecycle::global! {
    stage: Sinks;

    #[fork(by = in_child)]
    #[restart(by = forget)]
    static POLLED: Polled = Polled::none();
}

impl Polled {
    const fn none() -> Self {
        Self {
            function: Published::none(),
            thread: AtomicU64::new(0),
            since: AtomicU64::new(0),
            until: AtomicU64::new(0),
        }
    }

    fn add(&self, function: &'static PyFunction, thread: u64, since: u64, until: u64) {
        let is_first = self.function.get().is_none();
        if is_first || self.thread.load(Ordering::Relaxed) != thread {
            self.thread.store(thread, Ordering::Relaxed);
            self.since.store(since, Ordering::Relaxed);
        }
        self.until.store(until, Ordering::Relaxed);
        self.function.set(Some(function));
    }

    /// Removes and returns the function, the start of its first call and the end of its last one,
    /// if `thread` made the calls.
    fn take(&self, thread: u64) -> Option<(&'static PyFunction, u64, u64)> {
        if self.function.get().is_none() || self.thread.load(Ordering::Relaxed) != thread {
            return None;
        }
        let function = self.function.take()?;
        let [since, until] = [&self.since, &self.until].map(|at| at.load(Ordering::Relaxed));
        Some((function, since, until))
    }
}

/// Called at the end of a call in which an engine waited for requests. Counts the call's time as idle time; for a
/// function that the engine calls repeatedly, [`step_begins`] counts it later. `since` is the call's start in ticks,
/// the record's unit of time. `polled` is the called function if the engine calls it repeatedly, otherwise `None`.
pub(crate) fn ended(polled: Option<&'static PyFunction>, since: u64) {
    if !recorder::is_keeping() && !watch::is_watching() {
        return;
    }
    let now = recorder::ticks();
    match polled {
        Some(function) => POLLED.add(function, this_thread(), since, now),
        None => watch::add(Cause::Idle, now.saturating_sub(since)),
    }
}

/// Called when a step starts on the calling thread. Records the thread's stored calls as one event, and counts the time
/// from the start of the first call to the end of the last one as idle time.
pub(crate) fn step_begins() {
    if POLLED.function.get().is_none() {
        return;
    }
    if let Some((function, since, until)) = POLLED.take(this_thread()) {
        let took = until.saturating_sub(since);
        watch::add(Cause::Idle, took);
        if recorder::is_keeping() {
            let name = recorder::lasting_id_of(function.qualname.as_str());
            recorder::event(since, took, What::Function { name });
        }
    }
}

fn this_thread() -> u64 {
    u64::from(ids::thread().cast_unsigned())
}

fn forget() {
    POLLED.function.set(None);
}

fn in_child(_: &lifecycle::OnlyThread) {
    forget();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_a_thread_are_one_run_from_the_first_to_the_last() {
        let function = PyFunction::parse("engine:Scheduler.on_idle").unwrap();
        let function: &'static PyFunction = Box::leak(Box::new(function));
        let polled = Polled::none();
        for since in [10, 20, 90] {
            polled.add(function, 1, since, since + 5);
        }
        assert!(polled.take(2).is_none());
        let (_, since, until) = polled.take(1).unwrap();
        assert_eq!((since, until), (10, 95));
        assert!(polled.take(1).is_none());
        polled.add(function, 1, 100, 110);
        polled.add(function, 2, 120, 130);
        let (_, since, until) = polled.take(2).unwrap();
        assert_eq!((since, until), (120, 130));
    }
}
