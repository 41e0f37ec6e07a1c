//! Reads the batch of an engine's step from the arguments of the step's function.
//!
//! [`plain`] decides what may be read without running code of the program. [`reading`] evaluates the formulas
//! of the engine's row. The thread has the GIL and is about to run the function.

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
use reading::Reading;

/// Returns an argument of the call that begins.
pub type Arguments<'a, 'py> = &'a dyn Fn(&Place) -> Option<Object<'py>>;

/// Number of consecutive steps that may fail to be read. After that, no more are tried.
const MAX_FAILURES: usize = 64;

/// Reads the batches from the arguments of a step's function.
pub struct BatchReader {
    function: &'static PyFunction,
    is_given: bool,
    ways: Vec<Way>,
    /// The index of the way that worked last.
    works: AtomicUsize,
    /// Number of consecutive steps that could not be read.
    failed: AtomicUsize,
}

/// The formulas for some versions of the engine.
pub struct Way {
    formulas: Formulas<3>,
    /// The attribute names in the formulas.
    names: Vec<AttributeName>,
    /// The name `__get__`.
    get: AttributeName,
    /// The positions of the arguments.
    arguments: Vec<Place>,
    /// The layout of whole numbers in lists, if it is known.
    ints: Option<Ints>,
}

/// The reason why a batch was not read, and the last attribute that was looked up.
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
    /// Returns a reader for the function with this code, or `None` if its arguments are not known.
    #[cold]
    pub fn new(
        py: Python<'_>,
        code: &Object<'_>,
        yields: bool,
        function: &'static PyFunction,
    ) -> Option<Self> {
        let settings = activity::settings()?;
        let given = settings.batch.as_ref();
        let given = given.filter(|batch| batch.function == *function);
        // An iteration of several calls has several batches.
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

    /// Returns true if the user has named the function. Its calls need not be steps then.
    pub const fn is_given(&self) -> bool {
        self.is_given
    }

    /// Reads the batch of the call that begins.
    #[inline(never)]
    pub fn read<'py>(&self, py: Python<'py>, arguments: Arguments<'_, 'py>) -> Option<Batch> {
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
                // Report the error of the way that worked before.
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

    /// Releases its references. The thread is in the references' interpreter.
    #[cold]
    pub fn release(&self, py: Python<'_>) {
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
    /// Returns `None` if there is no memory.
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
        arguments: Arguments<'_, 'py>,
    ) -> Result<Batch, ReadFailure<'_>> {
        let mut found = [const { None }; ARGUMENTS];
        for (value, place) in found.iter_mut().zip(&self.arguments) {
            *value = arguments(place);
        }
        let mut reading = Reading::new(py, self, found);
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
