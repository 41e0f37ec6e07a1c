//! A requested Python function, and the effect of its calls: steps, ranges or waits for requests.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use once_cell::race::OnceBox;
use tllmprof_config::PyFunction;
use tllmprof_config::condition::BatchFacts;
use tllmprof_engines::{DUMMY_STEPS, is_step};

use super::polled;
use crate::object::Python;
use crate::{closing, groups, rank};
use tllmprof_capture::marks::Pushed;
use tllmprof_capture::marks::RegisteredName;
use tllmprof_recorder as recorder;
use tllmprof_session::by_name;
use tllmprof_session::engines;
use tllmprof_steps::step::counted::Counted;

/// A function that a setting or a table of the library requests by name.
pub(crate) struct RequestedFunction {
    /// The function's name as it was requested.
    pub asked: PyFunction,
    /// The name of the NVTX ranges for the function's calls; empty if its calls have no ranges.
    name: OnceBox<RegisteredName>,
    /// The reason why the function's calls are steps; empty if they are not.
    step: OnceBox<StepOf>,
    /// True if an iteration may last longer than the call that began it. This is so for an engine's step function,
    /// because much of the iteration's work may come after the call.
    outlives: bool,
    /// True if an engine calls the function repeatedly while it has no requests.
    polls: AtomicBool,
    /// True if an engine waits for requests inside the function.
    idles: AtomicBool,
    /// True if steps inside the function are passes of a draft model (speculative decoding).
    drafts: AtomicBool,
    /// True if the program has replaced the function with another one, whose calls count as this
    /// function's.
    is_replaced: AtomicBool,
    /// True if the replacement has called the function that it replaces.
    is_called_within: AtomicBool,
    /// Number of calls of the function so far.
    calls: AtomicU64,
    /// Number of calls that have yielded and have not ended.
    suspended: AtomicU64,
    /// The number, plus 1, of the iteration that ends once none of the function's calls is suspended any more; 0 for
    /// none.
    ends: AtomicU64,
}

/// The reason why a function's calls are steps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepOf {
    /// The calls are steps because the rule in `TLLMPROF_STEP` names the function.
    Rule,
    /// The function is a known engine's step. The value is the engine's index in
    /// `engines::in_python`.
    Engine(usize),
    /// The function runs a known engine's step for a batch without requests. The value is its index in
    /// [`DUMMY_STEPS`].
    Dummy(usize),
}

/// The state of a call that a thread is in.
pub(crate) struct Entered {
    range: Option<Pushed>,
    /// The number of the iteration that begins with this call and may end with it; `None` if there is none.
    iteration: Option<u64>,
    /// True if the thread resumed a call that had yielded, and false if it entered a new call.
    goes_on: bool,
    is_unkept: bool,
    /// The start of the call in ticks, the record's unit of time; `None` unless an engine waits for requests inside
    /// the call.
    idles_since: Option<u64>,
}

impl RequestedFunction {
    pub(crate) fn new(asked: PyFunction) -> Self {
        Self {
            outlives: is_step(&asked),
            asked,
            name: OnceBox::new(),
            step: OnceBox::new(),
            polls: AtomicBool::new(false),
            idles: AtomicBool::new(false),
            drafts: AtomicBool::new(false),
            is_replaced: AtomicBool::new(false),
            is_called_within: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            suspended: AtomicU64::new(0),
            ends: AtomicU64::new(0),
        }
    }

    /// Gives the function a name for the ranges of its calls (`name`), and makes its calls steps (`step`). A name or
    /// step that the function already has is kept.
    pub(crate) fn means(&self, name: Option<RegisteredName>, step: Option<StepOf>) {
        if let Some(name) = name {
            self.name.get_or_init(|| Box::new(name));
        }
        if let Some(step) = step {
            self.step.get_or_init(|| Box::new(step));
        }
    }

    /// Stores that an engine calls the function repeatedly while it has no requests.
    pub(crate) fn polls(&self) {
        self.polls.store(true, Ordering::Relaxed);
    }

    /// Stores that an engine waits for requests inside the function.
    pub(crate) fn idles(&self) {
        self.idles.store(true, Ordering::Relaxed);
    }

    /// Called if steps inside the function are passes of a draft model. From then on [`Self::is_of_drafts`] returns
    /// true.
    pub(crate) fn drafts(&self) {
        self.drafts.store(true, Ordering::Relaxed);
    }

    /// Returns true if steps inside the function are passes of a draft model.
    pub(crate) fn is_of_drafts(&self) -> bool {
        self.drafts.load(Ordering::Relaxed)
    }

    /// Makes this function's calls count as calls of `other`, too. Both functions have the same code object.
    pub(crate) fn is_also(&self, other: &Self) {
        self.means(other.name.get().copied(), other.step.get().copied());
        if other.polls.load(Ordering::Relaxed) {
            self.polls();
        }
        if other.idles.load(Ordering::Relaxed) {
            self.idles();
        }
        if other.is_of_drafts() {
            self.drafts();
        }
    }

    /// Called when the program has replaced the function with another one. From then on, calls of the replacement count
    /// as this function's calls.
    pub(crate) fn is_replaced_now(&self) {
        self.is_replaced.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Relaxed)
    }

    /// Called when the replacement has called the function. From then on [`Self::is_called_within`] returns true.
    pub(crate) fn called_within(&self) {
        self.is_called_within.store(true, Ordering::Relaxed);
    }

    /// Returns true if the replacement has called the function.
    pub(crate) fn is_called_within(&self) -> bool {
        self.is_called_within.load(Ordering::Relaxed)
    }

    /// Returns the number of calls that have begun so far. A resumed generator or coroutine is not counted again.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns the reason why the function's calls are steps, or `None` if they are not.
    pub(crate) fn step(&self) -> Option<StepOf> {
        self.step.get().copied()
    }

    /// Returns true if the function's calls are counted as steps.
    #[inline]
    pub(crate) fn is_step(&self) -> bool {
        match self.step.get() {
            None => false,
            Some(StepOf::Rule) => true,
            Some(StepOf::Engine(index)) => engines::is_step(*index),
            Some(StepOf::Dummy(index)) => {
                DUMMY_STEPS.get(*index).is_some_and(engines::is_dummy_step)
            }
        }
    }

    /// Records that a thread enters the function: a call begins, or a generator or coroutine resumes. `overlaps` is
    /// true if the call may end while calls that began later are still open. `counts` is false if this call is not
    /// counted as a step, although the function's calls are steps. `facts` reads the call's batch. It is called only
    /// if the batch decides whether a window opens.
    pub(crate) fn enters(
        &'static self,
        py: Python<'_>,
        goes_on: bool,
        overlaps: bool,
        counts: bool,
        facts: &mut dyn FnMut() -> BatchFacts,
    ) -> Entered {
        let iteration = self.begins(py, goes_on, counts, facts);
        let begin = if overlaps {
            RegisteredName::push_apart
        } else {
            RegisteredName::push
        };
        Entered {
            range: self.name.get().copied().map(begin),
            iteration,
            goes_on,
            is_unkept: false,
            idles_since: self.idles.load(Ordering::Relaxed).then(recorder::ticks),
        }
    }

    /// Records that a call begins or resumes, like [`RequestedFunction::enters`]. Used for a call that is not stored
    /// because the thread is inside too many calls. The call gets no range, and [`RequestedFunction::leaves`] gets
    /// [`Entered::unkept`] for it. If the call begins an iteration, this iteration lasts until the next one begins.
    pub(crate) fn enters_unkept(&'static self, py: Python<'_>, goes_on: bool) {
        self.begins(py, goes_on, true, &mut BatchFacts::default);
    }

    fn begins(
        &self,
        py: Python<'_>,
        goes_on: bool,
        counts: bool,
        facts: &mut dyn FnMut() -> BatchFacts,
    ) -> Option<u64> {
        if goes_on {
            return None;
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        if !counts {
            return None;
        }
        if self.is_step() {
            polled::step_begins();
        }
        self.count(py, facts)
    }

    /// Records that the thread leaves the function: the call has returned, raised or yielded.
    pub(crate) fn leaves(&'static self, py: Python<'_>, entered: Entered, has_ended: bool) {
        let Entered {
            range,
            iteration,
            goes_on,
            is_unkept,
            idles_since,
        } = entered;
        drop(range);
        if let Some(since) = idles_since {
            let polls = self.polls.load(Ordering::Relaxed);
            polled::ended(polls.then_some(&self.asked), since);
        }
        if self.step.get().is_none() || is_unkept {
            return;
        }
        let iteration = iteration.filter(|_| !self.outlives);
        if let Some(iteration) = self.over(iteration, goes_on, has_ended) {
            closing::without_gil(py, || by_name::has_ended(iteration));
        }
    }

    /// Returns the iteration that ends when a call that counts as a step ends or yields, if there is one. An
    /// iteration ends only when none of the function's calls is suspended. `iteration` is the iteration that this
    /// call began.
    fn over(&self, iteration: Option<u64>, goes_on: bool, has_ended: bool) -> Option<u64> {
        let left = match (goes_on, has_ended) {
            (false, false) => self.suspended.fetch_add(1, Ordering::Relaxed) + 1,
            (true, true) => self.resumed_ended(),
            _ => self.suspended.load(Ordering::Relaxed),
        };
        if iteration.is_none() && !(goes_on && has_ended) {
            return None;
        }
        let waiting = iteration.map_or_else(
            || self.ends.load(Ordering::Relaxed),
            |iteration| iteration + 1,
        );
        if left > 0 {
            self.ends.store(waiting, Ordering::Relaxed);
            return None;
        }
        let iteration = waiting.checked_sub(1)?;
        self.ends.store(0, Ordering::Relaxed);
        Some(iteration)
    }

    /// Ends the call's range and iteration because the thread has ended during the call. The interpreter may have
    /// ended, too.
    pub(crate) fn abandons(&'static self, entered: Entered) {
        drop(entered.range);
        if let Some(iteration) = entered.iteration
            && !self.outlives
        {
            by_name::has_ended(iteration);
        }
    }

    /// Counts the end of a call that had yielded, and returns the number of calls that are still
    /// suspended. The number stays at 0 if the call yielded before the function was marked.
    fn resumed_ended(&self) -> u64 {
        let less = |left: u64| left.checked_sub(1);
        let before = self
            .suspended
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        before.map_or(0, |left| left - 1)
    }

    /// Counts the call if the function's calls are steps. Returns the number of the iteration that begins with the
    /// call and ends with it, if there is one.
    #[inline]
    fn count(&self, py: Python<'_>, facts: &mut dyn FnMut() -> BatchFacts) -> Option<u64> {
        if !(self.is_step() && by_name::count(Counted::Python)) {
            return None;
        }
        rank::look_for(py);
        groups::look_for(py);
        let facts = if tllmprof_session::wants_facts() {
            facts()
        } else {
            BatchFacts::default()
        };
        let ends = closing::without_gil(py, || by_name::ask_with(Counted::Python, facts));
        // From here on, a thread that opens or closes windows does not wait for this call any longer. This thread has
        // the GIL again, so nothing delays the Python function any more.
        tllmprof_session::goes_on();
        ends
    }

    /// Sets the number of suspended calls to 0, because the ends of these calls will not be
    /// reported.
    pub(crate) fn forget_calls(&self) {
        self.suspended.store(0, Ordering::Relaxed);
        self.ends.store(0, Ordering::Relaxed);
    }

    /// Forgets open iterations in the child of a fork, because they belong to the parent.
    pub(crate) fn in_child(&self) {
        self.ends.store(0, Ordering::Relaxed);
    }
}

impl Entered {
    /// Returns the state of a call that is not a step. The call may have a range.
    pub(crate) const fn with(range: Option<Pushed>) -> Self {
        Self {
            range,
            iteration: None,
            goes_on: false,
            is_unkept: false,
            idles_since: None,
        }
    }

    /// Returns the state of a call whose end has no effect: a call that could not be stored, or a call of a replaced
    /// function inside its replacement, which counts instead.
    pub(crate) const fn unkept() -> Self {
        let mut entered = Self::with(None);
        entered.is_unkept = true;
        entered
    }

    /// Returns the number of the iteration that begins with this call and may end with it; `None` if there is none.
    pub(crate) const fn iteration(&self) -> Option<u64> {
        self.iteration
    }

    pub(crate) const fn is_unkept(&self) -> bool {
        self.is_unkept
    }

    /// Removes the call's range from the thread's stack of ranges for a while
    /// ([`Pushed::interrupt`]).
    pub(crate) fn interrupt(&mut self) {
        self.range.iter_mut().for_each(Pushed::interrupt);
    }

    /// Puts the call's range back on the thread's stack of ranges.
    pub(crate) fn resume(&mut self) {
        self.range.iter_mut().for_each(Pushed::resume);
    }

    /// Drops the call's range without ending it. Called in the child of a fork, because the range belongs to the
    /// parent.
    pub(crate) fn forget(self) {
        if let Some(range) = self.range {
            range.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> RequestedFunction {
        RequestedFunction::new(PyFunction::parse(name).unwrap())
    }

    #[test]
    fn an_iteration_is_over_when_the_call_returns() {
        let step = function("m:step");
        assert_eq!(step.over(Some(0), false, true), Some(0));
        assert_eq!(step.over(Some(7), false, true), Some(7));
        // This call began no iteration, for example because it was inside a call of another step. So its end does not
        // end an iteration.
        assert_eq!(step.over(None, false, true), None);
    }

    #[test]
    fn a_generators_iteration_is_over_when_it_has_ended() {
        let step = function("m:step");
        assert_eq!(step.over(Some(3), false, false), None); // the generator yields
        assert_eq!(step.over(None, true, false), None); // it resumes, and yields again
        assert_eq!(step.over(None, true, true), Some(3));
        // The start of this call was not recorded, so its end ends no iteration.
        assert_eq!(step.over(None, true, true), None);
    }

    #[test]
    fn of_calls_that_overlap_the_last_ends_the_iteration() {
        let step = function("m:step");
        assert_eq!(step.over(Some(1), false, false), None);
        assert_eq!(step.over(Some(2), false, false), None);
        assert_eq!(step.over(None, true, true), None);
        assert_eq!(step.over(None, true, true), Some(2));
        // A call that returns while another one is suspended does not end an iteration.
        assert_eq!(step.over(Some(4), false, false), None);
        assert_eq!(step.over(Some(5), false, true), None);
        assert_eq!(step.over(None, true, true), Some(5));
    }

    #[test]
    fn the_child_of_a_fork_ends_no_iteration_of_its_parents() {
        let step = function("m:step");
        assert_eq!(step.over(Some(3), false, false), None);
        step.in_child();
        assert_eq!(step.over(None, true, true), None);
    }

    #[test]
    fn a_function_means_what_it_was_first_asked_for() {
        let (one, other) = (function("m:f"), function("m:g"));
        assert!(one.step().is_none() && one.calls() == 0);
        other.means(None, Some(StepOf::Engine(3)));
        one.is_also(&other);
        assert!(one.step() == Some(StepOf::Engine(3)));
        one.means(None, Some(StepOf::Rule));
        assert!(one.step() == Some(StepOf::Engine(3)));
    }

    #[test]
    fn an_engines_step_outlives_its_call() {
        assert!(!function("m:f").outlives);
        let engines = tllmprof_engines::python_steps();
        let steps: Vec<_> = engines.map(|(engine, _)| engine.step).collect();
        let named = steps.first().unwrap().strip_prefix("py:").unwrap();
        assert!(function(named).outlives);
    }
}
