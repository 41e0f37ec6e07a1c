//! Where an engine looks for requests over and over: what lies between two steps is one run of that function in the
//! record, not one for each call.

use core::cell::Cell;

use tllmprof_config::PyFunction;
use tllmprof_recorder as recorder;
use tllmprof_recorder::What;

use crate::threads;

/// The calls since the last step: the function, when the first began, and when the last ended.
pub struct Polled(Cell<Option<(&'static PyFunction, u64, u64)>>);

impl Polled {
    pub const fn new() -> Self {
        Self(Cell::new(None))
    }

    /// The thread has ended.
    pub fn end(&self) {
        self.0.set(None);
    }

    fn add(&self, function: &'static PyFunction, since: u64, until: u64) {
        let first = self.0.get().map_or(since, |(_, first, _)| first);
        self.0.set(Some((function, first, until)));
    }
}

/// A call of the thread has ended that began at `since`, in the record's ticks.
pub fn ended(function: &'static PyFunction, since: u64) {
    if let Some(thread) = threads::known().filter(|_| recorder::is_recording()) {
        thread.polled.add(function, since, recorder::ticks());
    }
}

/// The thread begins a step.
pub fn step_begins() {
    let polled = threads::known().and_then(|thread| thread.polled.0.take());
    if let Some((function, since, until)) = polled {
        let name = recorder::id_of(function.qualname.as_str());
        recorder::event(since, until.saturating_sub(since), What::Function { name });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_one_run_from_the_first_to_the_last() {
        let function = PyFunction::parse("engine:Scheduler.on_idle").unwrap();
        let function: &'static PyFunction = Box::leak(Box::new(function));
        let polled = Polled::new();
        for since in [10, 20, 90] {
            polled.add(function, since, since + 5);
        }
        let (_, since, until) = polled.0.take().unwrap();
        assert_eq!((since, until), (10, 95));
        polled.add(function, 100, 110);
        polled.end();
        assert!(polled.0.take().is_none());
    }
}
