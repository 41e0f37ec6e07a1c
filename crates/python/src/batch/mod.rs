//! Reads the batch (requests and tokens) of an engine's step from the arguments of the step's function.
//!
//! [`plain`] reads objects without running code of the program. [`reading`] evaluates formulas, which are expressions
//! that compute the batch from the arguments. The formulas come from the table of known engines or from the user
//! (`TLLMPROF_BATCH`). A batch is read while the calling thread holds the GIL and is about to run the step's function.

mod plain;
mod reading;

use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::ffi::{CStr, CString};

use tllmprof_config::formula::ARGUMENTS;
use tllmprof_config::{Formulas, PyFunction, Step};
use tllmprof_engines::batches;
use tllmprof_platform::log;
use tllmprof_recorder::Batch;
use tllmprof_session::activity;

use crate::object::{AttributeName, Ints, Object, Python};
use crate::place::Place;
use plain::Refused;
use reading::BatchReading;

/// A function that returns an argument of the Python call that is about to begin.
pub(crate) type ArgumentLookup<'a, 'py> = &'a dyn Fn(&Place) -> Option<Object<'py>>;

/// The largest number of consecutive steps whose batch could not be read. Once it is reached, no more batches are
/// read.
const MAX_FAILURES: usize = 64;

/// Reads the batch (requests and tokens) of an engine's step from the arguments of the step's
/// function.
pub(crate) struct BatchReader {
    function: &'static PyFunction,
    is_given: bool,
    ways: Vec<Way>,
    /// The index in `ways` of the formulas with which the last batch was read. They are tried first for the next
    /// batch.
    works: AtomicUsize,
    /// Number of consecutive steps whose batch could not be read.
    failed: AtomicUsize,
}

/// One way to read a batch (requests and tokens): formulas for some versions of an engine, with the names and
/// argument locations that they need.
pub(crate) struct Way {
    formulas: Formulas<3>,
    /// The attribute names that the formulas use.
    names: Vec<AttributeName>,
    /// The name `__get__`. An attribute that an object's class defines is a descriptor if the type of the attribute
    /// defines `__get__`. Then code computes the attribute's value.
    get: AttributeName,
    /// The locations of the formulas' arguments in the function's frame.
    arguments: Vec<Place>,
    /// The memory layout of ints in lists, if it is known.
    ints: Option<Ints>,
}

/// The reason why a batch was not read, and the attribute that was looked up last.
struct ReadFailure<'a> {
    refused: Refused,
    at: Option<&'a str>,
}

impl fmt::Display for ReadFailure<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.refused.text())?;
        match self.at {
            Some(name) => write!(f, " ({name})"),
            None => Ok(()),
        }
    }
}

impl BatchReader {
    /// Returns a reader for the function with the code object `code`. Returns `None` if no formulas fit the function's
    /// arguments, or if an iteration consists of several calls. `yields` is true if calls of the function create
    /// generators or coroutines.
    #[cold]
    pub(crate) fn new(
        py: Python<'_>,
        code: &Object<'_>,
        yields: bool,
        function: &'static PyFunction,
    ) -> Option<Self> {
        let settings = activity::settings()?;
        let given = settings.batch.as_ref();
        let given = given.filter(|batch| batch.function == *function);
        // If `every` is greater than 1, an iteration consists of several calls, each with a batch of its own. No
        // batch is recorded in this case.
        if matches!(&settings.step, Step::Python { function: step, every } if *every > 1 && step == function)
        {
            return None;
        }
        let mut ways = Vec::new();
        if let Some(given) = given {
            match Way::new(py, code, yields, given.formulas.clone()) {
                Ok(way) => ways.extend(way),
                Err(missing) => log::say!(
                    Warn,
                    "TLLMPROF_BATCH: {function} has no argument {missing} (it has {})",
                    Place::names(code).join(", ")
                ),
            }
        } else {
            for row in batches(function) {
                let way = Way::new(py, code, yields, row.formulas().ok()?);
                ways.extend(way.ok().flatten());
            }
        }
        (!ways.is_empty()).then_some(Self {
            function,
            is_given: given.is_some(),
            ways,
            works: AtomicUsize::new(0),
            failed: AtomicUsize::new(0),
        })
    }

    /// Returns true if the user named the function in `TLLMPROF_BATCH`. Its batches are then recorded even if its
    /// calls are not steps.
    pub(crate) const fn is_given(&self) -> bool {
        self.is_given
    }

    /// Reads the batch (requests and tokens) of the call that begins. Returns `None` if none of the formulas can read
    /// it, or if too many consecutive attempts have failed ([`MAX_FAILURES`]).
    #[inline(never)]
    pub(crate) fn read<'py>(
        &self,
        py: Python<'py>,
        arguments: ArgumentLookup<'_, 'py>,
    ) -> Option<Batch> {
        let failed = self.failed.load(Ordering::Relaxed);
        if failed >= MAX_FAILURES {
            return None;
        }
        let works = self.works.load(Ordering::Relaxed);
        let mut failure = None;
        for more in 0..self.ways.len() {
            let index = (works + more) % self.ways.len();
            match self.ways.get(index)?.read(py, arguments) {
                Ok(batch) => {
                    self.works.store(index, Ordering::Relaxed);
                    self.failed.store(0, Ordering::Relaxed);
                    return Some(batch);
                }
                // If no formulas work, report the first error. It is the error of the formulas that worked last,
                // because they are tried first.
                Err(refused) => failure = failure.or(Some(refused)),
            }
        }
        self.failed.store(failed + 1, Ordering::Relaxed);
        if let Some(failure) = failure {
            log::once!(
                Warn,
                "{}: what is in its batch is not recorded: {failure}",
                self.function
            );
        }
        None
    }

    /// Releases the reader's Python references. The calling thread must be in their interpreter.
    #[cold]
    pub(crate) fn release(&self, py: Python<'_>) {
        for way in &self.ways {
            way.get.release(py);
            if let Some(ints) = &way.ints {
                ints.release(py);
            }
            for name in &way.names {
                name.release(py);
            }
            for place in &way.arguments {
                place.release(py);
            }
        }
    }
}

impl Way {
    /// Prepares the formulas for calls of one function: looks up the attribute names and the argument locations that
    /// the formulas need. Returns `None` if Python is out of memory.
    ///
    /// # Errors
    /// Returns the name of an argument that the function does not have.
    fn new(
        py: Python<'_>,
        code: &Object<'_>,
        yields: bool,
        formulas: Formulas<3>,
    ) -> Result<Option<Self>, String> {
        let mut arguments = Vec::new();
        for name in &formulas.arguments {
            let place = Place::find(py, code, yields, Some(name));
            arguments.push(place.ok_or_else(|| name.clone())?);
        }
        let named = |name: &CStr| AttributeName::new(py, name);
        let names = formulas.names.iter();
        let names = names.map(|name| named(&CString::new(name.as_str()).ok()?));
        let names = names.collect::<Option<Vec<_>>>();
        Ok(names.zip(named(c"__get__")).map(|(names, get)| Self {
            formulas,
            names,
            get,
            arguments,
            ints: Ints::detect(py),
        }))
    }

    fn read<'py>(
        &self,
        py: Python<'py>,
        arguments: ArgumentLookup<'_, 'py>,
    ) -> Result<Batch, ReadFailure<'_>> {
        let mut found = [const { None }; ARGUMENTS];
        for (value, place) in found.iter_mut().zip(&self.arguments) {
            *value = arguments(place);
        }
        let mut reading = BatchReading::new(py, self, found);
        let mut values = [0; 3];
        for (value, node) in values.iter_mut().zip(&self.formulas.nodes) {
            *value = reading.number(node).map_err(|refused| ReadFailure {
                refused,
                at: reading.at(),
            })?;
        }
        let [requests, tokens, prefill_tokens] = values;
        Batch::new(requests, tokens, prefill_tokens).ok_or(ReadFailure {
            refused: Refused::NoBatch,
            at: None,
        })
    }
}
