//! The mark of a code object whose calls are reported. It contains the receiver of these calls.

use core::sync::atomic::{AtomicBool, Ordering};

use super::function::{Entered, RequestedFunction};
use crate::batch::{ArgumentLookup, BatchReader};
use crate::object::{Held, Object, Python};
use crate::place::Place;
use tllmprof_capture as capture;
use tllmprof_config::condition::BatchFacts;
use tllmprof_recorder::Batch;

/// The receiver of a code object's calls: a requested function, or another part of the library.
#[derive(Clone, Copy)]
pub(crate) enum Watch {
    Function(&'static RequestedFunction),
    Calls(&'static dyn CallReceiver),
}

/// A receiver of calls. `enters` and `leaves` run in the calling thread, which holds the GIL and has no pending
/// exception.
pub(crate) trait CallReceiver: Sync {
    /// Called when a call begins (`goes_on` is false), or when a generator or coroutine resumes (`goes_on` is true).
    /// `first` is the first positional argument of a call that begins.
    fn enters(&self, py: Python<'_>, first: Option<&Object<'_>>, goes_on: bool) -> Entered;

    /// Called when a call has returned or raised (`has_ended` is true), or has yielded (`has_ended` is false).
    fn leaves(&self, py: Python<'_>, entered: Entered, has_ended: bool);

    /// Called instead of `leaves` if the end of a call was not reported, usually because the thread has ended during
    /// the call. The interpreter may have ended, too, so this function may run without the GIL.
    fn abandons(&self, entered: Entered) {
        drop(entered);
    }
}

/// Returns true if calls of a code object create generators, coroutines or asynchronous generators. Returns `None` if
/// the flags of the code object cannot be read.
pub(crate) fn yields(code: &Object<'_>) -> Option<bool> {
    /// The flags `CO_GENERATOR`, `CO_COROUTINE` and `CO_ASYNC_GENERATOR`.
    const YIELDS: i64 = 0x20 | 0x80 | 0x200;
    Some(code.attr(c"co_flags")?.as_int()? & YIELDS != 0)
}

/// Queries about the calls of marked code objects that a thread is in.
pub(crate) trait Within {
    /// Returns true if a step inside these calls is a pass of a draft model.
    fn is_draft(&self) -> bool;
    /// Returns true if a call on this thread ended while a call that began later was still open.
    fn has_overlaps(&self) -> bool;
}

/// The mark of a code object: the receiver of its calls, and data that is needed to report them. A mark is never freed.
pub(crate) struct Mark {
    code: Held,
    pub watch: Watch,
    /// True if calls of the code object create generators, coroutines or asynchronous generators.
    pub yields: bool,
    /// The location of a call's first argument in its frame, if the receiver needs this argument.
    first: Option<Place>,
    /// The reader of a step's batch, if batches can be read.
    reader: Option<Box<BatchReader>>,
    /// The id of the code object's interpreter.
    pub interpreter: i64,
    /// True if only the code object's name is known to match the requested function. Another function may have the same
    /// name, so the first call has to show whether this is the requested function's code.
    is_candidate: AtomicBool,
}

impl Mark {
    /// Returns a mark without a code object, for tests without an interpreter.
    #[cfg(test)]
    pub(crate) const fn made(watch: Watch) -> Self {
        Self {
            code: Held::none(),
            watch,
            yields: false,
            first: None,
            reader: None,
            interpreter: 0,
            is_candidate: AtomicBool::new(false),
        }
    }

    /// Returns a mark for `code`, or `None` if `code` is not a code object.
    pub(crate) fn new(py: Python<'_>, code: &Object<'_>, watch: Watch) -> Option<Self> {
        if !code.is_code() {
            return None;
        }
        let yields = yields(code)?;
        let (first, reader) = match watch {
            Watch::Function(function) => {
                (None, BatchReader::new(py, code, yields, &function.asked))
            }
            Watch::Calls(_) => (Place::find(py, code, yields, None), None),
        };
        Some(Self {
            code: Held::new(code.clone()),
            watch,
            yields,
            first,
            reader: reader.map(Box::new),
            interpreter: py.interpreter(),
            is_candidate: AtomicBool::new(false),
        })
    }

    /// Makes this mark a candidate: its first call must confirm that the code object is the
    /// function's.
    pub(crate) fn into_candidate(self) -> Self {
        self.is_candidate.store(true, Ordering::Relaxed);
        self
    }

    /// Returns true if the mark is a candidate that no call has confirmed yet.
    #[inline]
    pub(crate) fn is_candidate(&self) -> bool {
        self.is_candidate.load(Ordering::Relaxed)
    }

    /// Stores that the code object is the function's, so that the mark is no longer a candidate.
    pub(crate) fn confirm(&self) {
        self.is_candidate.store(false, Ordering::Relaxed);
    }

    /// Returns the address of the marked code object.
    pub(crate) fn code(&self) -> usize {
        self.code.addr()
    }

    pub(crate) fn code_object<'py>(&self, py: Python<'py>) -> Option<Object<'py>> {
        self.code.get(py)
    }

    /// Reports to the receiver that a call begins or resumes. Also reads the call's batch and records it, if this batch
    /// is to be recorded. `arguments` returns the call's arguments.
    pub(crate) fn enters<'py>(
        &self,
        py: Python<'py>,
        goes_on: bool,
        arguments: ArgumentLookup<'_, 'py>,
        within: &impl Within,
    ) -> Entered {
        match self.watch {
            Watch::Function(function) => {
                let read = || {
                    if function.is_step() && within.is_draft() {
                        return Some(Batch::DRAFT);
                    }
                    let reader = self.reader.as_ref()?;
                    py.quietly(|py| reader.read(py, arguments))
                };
                let mut before = None;
                let overlaps = within.has_overlaps();
                let counts =
                    !function.is_step() || !within.is_draft() || tllmprof_session::counts_drafts();
                let entered = function.enters(py, goes_on, overlaps, counts, &mut || {
                    let batch = *before.insert(read());
                    let of = |fact: fn(Batch) -> u32| {
                        let is_known = |batch: &Batch| !batch.is_draft;
                        batch.filter(is_known).map(fact)
                    };
                    BatchFacts {
                        requests: of(|batch| batch.requests.into()),
                        tokens: of(|batch| batch.tokens),
                        prefill_tokens: of(|batch| batch.prefill_tokens),
                        is_draft: Some(batch.is_some_and(|batch| batch.is_draft)),
                    }
                });
                let iteration = entered.iteration();
                let is_told = || {
                    let is_given = self.reader.as_ref().is_some_and(|reader| reader.is_given());
                    is_given && !goes_on && !function.is_step()
                };
                // A batch that was read already (`before`) is recorded even if no batches were requested. That costs
                // little, and the histogram of iteration times needs the batch to separate prefill from decode.
                if (before.is_some() || capture::wants_batches())
                    && (iteration.is_some() || is_told())
                    && let Some(batch) = before.unwrap_or_else(read)
                {
                    capture::keep_batch(iteration, batch);
                }
                entered
            }
            Watch::Calls(calls) => py.quietly(|py| {
                let first = self.first.as_ref().filter(|_| !goes_on);
                calls.enters(py, first.and_then(arguments).as_ref(), goes_on)
            }),
        }
    }

    /// Reports to the receiver that a call begins or resumes, like [`Mark::enters`]. Used for a call that is not stored
    /// because the thread is inside too many calls. Only a requested function gets this report.
    pub(crate) fn enters_unkept(&self, py: Python<'_>, goes_on: bool) {
        if let Watch::Function(function) = self.watch {
            function.enters_unkept(py, goes_on);
        }
    }

    pub(crate) fn leaves(&self, py: Python<'_>, entered: Entered, has_ended: bool) {
        match self.watch {
            Watch::Function(function) => function.leaves(py, entered, has_ended),
            Watch::Calls(calls) if !entered.is_unkept() => {
                py.quietly(|py| calls.leaves(py, entered, has_ended));
            }
            Watch::Calls(_) => {}
        }
    }

    /// Reports to the receiver that the thread has ended during a call.
    pub(crate) fn abandons(&self, entered: Entered) {
        match self.watch {
            Watch::Function(function) => function.abandons(entered),
            Watch::Calls(calls) => calls.abandons(entered),
        }
    }

    /// Returns the requested function that gets the calls, or `None` if they go to another receiver.
    pub(crate) const fn function(&self) -> Option<&'static RequestedFunction> {
        match self.watch {
            Watch::Function(function) => Some(function),
            Watch::Calls(_) => None,
        }
    }

    /// Returns true if both marks have the same receiver.
    pub(crate) fn is_alike(&self, other: &Self) -> bool {
        match (self.watch, other.watch) {
            (Watch::Function(one), Watch::Function(two)) => core::ptr::eq(one, two),
            (Watch::Calls(one), Watch::Calls(two)) => core::ptr::addr_eq(one, two),
            _ => false,
        }
    }

    /// Releases the mark's Python references. The mark must not be in the table of marks any more, and the calling
    /// thread must be in the mark's interpreter.
    pub(crate) fn release(&self, py: Python<'_>) {
        drop(self.code.take(py));
        self.first.iter().for_each(|place| place.release(py));
        self.reader.iter().for_each(|reader| reader.release(py));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tllmprof_config::PyFunction;

    #[test]
    fn marks_are_alike_if_the_same_follows_them() {
        let function = |name: &str| -> &'static RequestedFunction {
            let asked = PyFunction::parse(name).unwrap();
            Box::leak(Box::new(RequestedFunction::new(asked)))
        };
        let (one, two) = (function("a:f"), function("a:f"));
        let mark = |function| Mark::made(Watch::Function(function));
        assert!(mark(one).is_alike(&mark(one)));
        assert!(!mark(one).is_alike(&mark(two)));
        let calls = super::super::tests::mark();
        assert!(calls.is_alike(super::super::tests::mark()));
        assert!(!calls.is_alike(&mark(one)));
        assert!(core::ptr::eq(mark(one).function().unwrap(), one));
        assert!(calls.function().is_none());
    }
}
