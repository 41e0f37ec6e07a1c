//! A Python function that is marked or counted, and what a call of it means.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use once_cell::race::OnceBox;
use tllmprof_config::PyFunction;
use tllmprof_config::condition::Facts;
use tllmprof_engines::{DUMMY_STEPS, is_step};

use super::polled;
use crate::object::Python;
use crate::{groups, rank};
use tllmprof_capture::marks::Name;
use tllmprof_capture::marks::Pushed;
use tllmprof_recorder as recorder;
use tllmprof_session::by_name;
use tllmprof_session::engines;
use tllmprof_steps::step::counted::Counted;

/// A function that was asked for by its name.
pub struct Function {
    /// As it was asked for.
    pub asked: PyFunction,
    /// The name of its ranges, where it gets any.
    name: OnceBox<Name>,
    /// Whose step it is, if it is one.
    step: OnceBox<StepOf>,
    /// An iteration that begins with a call goes on when that has ended: an engine's, most of whose
    /// work may come after the function.
    outlives: bool,
    /// An engine calls it over and over while it has nothing to do.
    polls: AtomicBool,
    /// An engine waits for requests in it.
    idles: AtomicBool,
    /// An engine's steps within it are passes of a model that drafts.
    drafts: AtomicBool,
    /// The program has put another one in its place, whose calls are its own, too.
    is_replaced: AtomicBool,
    /// That one has called it.
    is_called_within: AtomicBool,
    /// Calls so far.
    calls: AtomicU64,
    /// Calls that have yielded and not ended.
    suspended: AtomicU64,
    /// The iteration that is over when none of those is left, counted from 1; 0 for none.
    ends: AtomicU64,
}

/// Whose step a function is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StepOf {
    /// The rule names it.
    Rule,
    /// Of an engine, by its place among those in Python.
    Engine(usize),
    /// Of an engine that has nothing to do, by its place in the table.
    Dummy(usize),
}

/// What is kept while a thread is in a call.
pub struct Entered {
    range: Option<Pushed>,
    /// The iteration that the call began.
    iteration: Option<u64>,
    /// The call began earlier, and yielded.
    goes_on: bool,
    is_unkept: bool,
    /// When a call began of a function in which an engine waits for requests.
    idles_since: Option<u64>,
}

impl Function {
    pub fn new(asked: PyFunction) -> Self {
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

    /// Its calls mean this, too, unless they mean something of the kind already.
    pub fn means(&self, name: Option<Name>, step: Option<StepOf>) {
        if let Some(name) = name {
            self.name.get_or_init(|| Box::new(name));
        }
        if let Some(step) = step {
            self.step.get_or_init(|| Box::new(step));
        }
    }

    /// An engine calls it over and over while it has nothing to do.
    pub fn polls(&self) {
        self.polls.store(true, Ordering::Relaxed);
    }

    /// An engine waits for requests in it.
    pub fn idles(&self) {
        self.idles.store(true, Ordering::Relaxed);
    }

    /// An engine's steps within it are passes of a model that drafts.
    pub fn drafts(&self) {
        self.drafts.store(true, Ordering::Relaxed);
    }

    /// Whether they are.
    pub fn is_of_drafts(&self) -> bool {
        self.drafts.load(Ordering::Relaxed)
    }

    /// The code that `other` names is this function's: its calls mean what those of both do.
    pub fn is_also(&self, other: &Self) {
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

    /// The program has put another one in its place, whose calls are its own, too, from here on.
    pub fn is_replaced_now(&self) {
        self.is_replaced.store(true, Ordering::Relaxed);
    }

    /// Whether the program has put another one in its place.
    #[inline]
    pub fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Relaxed)
    }

    /// What has replaced it calls it.
    pub fn called_within(&self) {
        self.is_called_within.store(true, Ordering::Relaxed);
    }

    /// Whether what has replaced it has called it.
    pub fn is_called_within(&self) -> bool {
        self.is_called_within.load(Ordering::Relaxed)
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Whose step it is, if it is one.
    pub fn step(&self) -> Option<StepOf> {
        self.step.get().copied()
    }

    /// Whether its calls are counted as steps.
    #[inline]
    pub fn is_step(&self) -> bool {
        match self.step.get() {
            None => false,
            Some(StepOf::Rule) => true,
            Some(StepOf::Engine(index)) => engines::is_step(*index),
            Some(StepOf::Dummy(index)) => {
                DUMMY_STEPS.get(*index).is_some_and(engines::is_dummy_step)
            }
        }
    }

    /// A thread enters the function: a call begins, or a generator or coroutine that has yielded
    /// goes on. `overlaps`: it may end before calls that begin later. `facts` reads what is in its batch, if that decides
    /// whether a window opens.
    pub fn enters(
        &'static self,
        py: Python<'_>,
        goes_on: bool,
        overlaps: bool,
        facts: &mut dyn FnMut() -> Facts,
    ) -> Entered {
        let iteration = self.begins(py, goes_on, facts);
        let begin = if overlaps {
            Name::push_apart
        } else {
            Name::push
        };
        Entered {
            range: self.name.get().copied().map(begin),
            iteration,
            goes_on,
            is_unkept: false,
            idles_since: self.idles.load(Ordering::Relaxed).then(recorder::ticks),
        }
    }

    /// As [`Function::enters`], where nothing can be kept of the call, which has no range then and
    /// is left with [`Entered::unkept`]: an iteration that begins here is open until the next.
    pub fn enters_unkept(&'static self, py: Python<'_>, goes_on: bool) {
        self.begins(py, goes_on, &mut Facts::default);
    }

    fn begins(
        &self,
        py: Python<'_>,
        goes_on: bool,
        facts: &mut dyn FnMut() -> Facts,
    ) -> Option<u64> {
        if goes_on {
            return None;
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.is_step() {
            polled::step_begins();
        }
        self.count(py, facts)
    }

    /// The thread leaves it: the call has ended, by returning or raising, or has only yielded.
    pub fn leaves(&'static self, py: Python<'_>, entered: Entered, has_ended: bool) {
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
            py.without_gil(|| by_name::has_ended(iteration));
        }
    }

    /// The iteration that is over when a call of a step ends or yields, of which `iteration` is the
    /// one that it began: when no call is left that has yielded.
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

    /// The thread has ended in the midst of the call. There may be no interpreter any more.
    pub fn abandons(&'static self, entered: Entered) {
        drop(entered.range);
        if let Some(iteration) = entered.iteration
            && !self.outlives
        {
            by_name::has_ended(iteration);
        }
    }

    /// A call has ended that had yielded: how many of those are left. One that began before the
    /// function was marked was not counted.
    fn resumed_ended(&self) -> u64 {
        let less = |left: u64| left.checked_sub(1);
        let before = self
            .suspended
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        before.map_or(0, |left| left - 1)
    }

    /// Counts the call if it is a step: the iteration that it begins, where that matters.
    #[inline]
    fn count(&self, py: Python<'_>, facts: &mut dyn FnMut() -> Facts) -> Option<u64> {
        if !(self.is_step() && by_name::count(Counted::Python)) {
            return None;
        }
        rank::look_for(py);
        groups::look_for(py);
        let facts = if tllmprof_session::wants_facts() {
            facts()
        } else {
            Facts::default()
        };
        let ends = py.without_gil(|| by_name::ask_with(Counted::Python, facts));
        // Not before the thread has the GIL again: the call is to be in the window that it belongs to.
        tllmprof_session::goes_on();
        ends
    }

    /// How calls that have yielded go on is not seen.
    pub fn forget_calls(&self) {
        self.suspended.store(0, Ordering::Relaxed);
        self.ends.store(0, Ordering::Relaxed);
    }

    /// In the child of a fork, iterations that were open are the parent's.
    pub fn in_child(&self) {
        self.ends.store(0, Ordering::Relaxed);
    }
}

impl Entered {
    /// Of a call that has a range, or none, and is no step.
    pub const fn with(range: Option<Pushed>) -> Self {
        Self {
            range,
            iteration: None,
            goes_on: false,
            is_unkept: false,
            idles_since: None,
        }
    }

    /// Of a call of which nothing was kept.
    pub const fn unkept() -> Self {
        let mut entered = Self::with(None);
        entered.is_unkept = true;
        entered
    }

    /// The iteration that the call began, if that is of this call alone.
    pub const fn iteration(&self) -> Option<u64> {
        self.iteration
    }

    pub const fn is_unkept(&self) -> bool {
        self.is_unkept
    }

    /// Takes its range off the thread's stack for a while ([`Pushed::interrupt`]).
    pub fn interrupt(&mut self) {
        self.range.iter_mut().for_each(Pushed::interrupt);
    }

    /// Puts its range on the thread's stack again.
    pub fn resume(&mut self) {
        self.range.iter_mut().for_each(Pushed::resume);
    }

    /// Gives the range up without ending it: it is another process's.
    pub fn forget(self) {
        if let Some(range) = self.range {
            range.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str) -> Function {
        Function::new(PyFunction::parse(name).unwrap())
    }

    #[test]
    fn an_iteration_is_over_when_the_call_returns() {
        let step = function("m:step");
        assert_eq!(step.over(Some(0), false, true), Some(0));
        assert_eq!(step.over(Some(7), false, true), Some(7));
        // A call that began none, as one within another.
        assert_eq!(step.over(None, false, true), None);
    }

    #[test]
    fn a_generators_iteration_is_over_when_it_has_ended() {
        let step = function("m:step");
        assert_eq!(step.over(Some(3), false, false), None); // yields
        assert_eq!(step.over(None, true, false), None); // goes on, and yields again
        assert_eq!(step.over(None, true, true), Some(3));
        assert_eq!(step.over(None, true, true), None); // one that began unseen
    }

    #[test]
    fn of_calls_that_overlap_the_last_ends_the_iteration() {
        let step = function("m:step");
        assert_eq!(step.over(Some(1), false, false), None);
        assert_eq!(step.over(Some(2), false, false), None);
        assert_eq!(step.over(None, true, true), None);
        assert_eq!(step.over(None, true, true), Some(2));
        // A call that returns while another waits ends nothing yet.
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
