//! What is in the batch of an engine's step, read from the arguments of the step's function.
//!
//! [`plain`] decides what may be read: no code of the program runs. [`reading`] follows the formulas of
//! the engine's row. The thread has the GIL and is about to run the function.

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

/// Gives an argument of the call that begins.
pub type Arguments<'a, 'py> = &'a dyn Fn(&Place) -> Option<Object<'py>>;

/// Steps in a row that could not be read, after which no more are tried.
const PATIENCE: usize = 64;

/// Reads the batches of a step's function.
pub struct Reader {
    function: &'static PyFunction,
    is_given: bool,
    ways: Vec<Way>,
    /// The one that worked last.
    works: AtomicUsize,
    /// Steps in a row that could not be read.
    failed: AtomicUsize,
}

/// The formulas for some versions of the engine.
pub struct Way {
    formulas: Formulas<3>,
    /// Those of the formulas.
    names: Vec<AttributeName>,
    /// `__get__`
    get: AttributeName,
    /// Where the arguments are.
    arguments: Vec<Place>,
    /// How whole numbers lie in lists, if that is known.
    ints: Option<Ints>,
}

/// Why a batch was not read, and the last attribute that was looked for.
struct Failure<'a> {
    refused: Refused,
    at: Option<&'a str>,
}

impl fmt::Display for Failure<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.refused.text())?;
        match self.at {
            Some(name) => write!(f, " ({name})"),
            None => Ok(()),
        }
    }
}

impl Reader {
    /// Of a function with that code; none if nothing is known of its arguments.
    #[cold]
    pub fn of(
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
            match Way::of(py, code, yields, given.formulas.clone()) {
                Ok(way) => ways.extend(way),
                Err(missing) => log::say!(
                    Warn,
                    "TLLMPROF_BATCH: {function} has no argument {missing} (it has {})",
                    Place::names(code).join(", ")
                ),
            }
        } else {
            for row in batches(function) {
                let way = Way::of(py, code, yields, row.formulas().ok()?);
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

    /// Whether the user has named the function: it may be none whose calls are steps.
    pub const fn is_given(&self) -> bool {
        self.is_given
    }

    /// What is in the batch of the call that begins.
    #[inline(never)]
    pub fn read<'py>(&self, py: Python<'py>, arguments: Arguments<'_, 'py>) -> Option<Batch> {
        let failed = self.failed.load(Ordering::Relaxed);
        if failed >= PATIENCE {
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
                // What the way said that worked before.
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

    /// Gives its references up. The thread is in its interpreter.
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
    /// None without memory.
    ///
    /// # Errors
    /// The argument that the function does not have.
    fn of(
        py: Python<'_>,
        code: &Object<'_>,
        yields: bool,
        formulas: Formulas<3>,
    ) -> Result<Option<Self>, String> {
        let mut arguments = Vec::new();
        for name in &formulas.arguments {
            let place = Place::of(py, code, yields, Some(name));
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
            ints: Ints::of(py),
        }))
    }

    fn read<'py>(
        &self,
        py: Python<'py>,
        arguments: Arguments<'_, 'py>,
    ) -> Result<Batch, Failure<'_>> {
        let mut found = [const { None }; ARGUMENTS];
        for (value, place) in found.iter_mut().zip(&self.arguments) {
            *value = arguments(place);
        }
        let mut reading = Reading::new(py, self, found);
        let mut values = [0; 3];
        for (value, node) in values.iter_mut().zip(&self.formulas.nodes) {
            *value = reading.number(node).map_err(|refused| Failure {
                refused,
                at: reading.at(),
            })?;
        }
        let [requests, tokens, prefill_tokens] = values;
        Batch::new(requests, tokens, prefill_tokens).ok_or(Failure {
            refused: Refused::NoBatch,
            at: None,
        })
    }
}
