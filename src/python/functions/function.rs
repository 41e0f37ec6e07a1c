//! A Python function that is marked or counted, and what a call of it means.

use core::sync::atomic::{AtomicU64, Ordering};

use tllmprof_config::PyFunction;

use crate::capture::marks::{Name, Pushed};

/// A function that was asked for by its name.
pub struct Function {
    /// As it was asked for.
    pub asked: PyFunction,
    /// The name of its ranges; none where it is counted alone, or nobody listens.
    name: Option<Name>,
    /// Calls so far.
    calls: AtomicU64,
}

/// What is kept while a thread is in a call.
pub struct Entered {
    range: Option<Pushed>,
    is_unkept: bool,
}

impl Function {
    pub fn new(asked: PyFunction, name: Option<Name>) -> Self {
        Self {
            asked,
            name,
            calls: AtomicU64::new(0),
        }
    }

    /// A thread enters the function: a call begins, or a generator or coroutine that has yielded
    /// goes on.
    pub fn enters(&'static self, goes_on: bool) -> Entered {
        self.enters_unkept(goes_on);
        Entered::with(self.name.map(Name::push))
    }

    /// As [`Function::enters`], where nothing can be kept of the call, which has no range then and
    /// is left with [`Entered::unkept`].
    pub fn enters_unkept(&'static self, goes_on: bool) {
        if !goes_on {
            self.calls.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The thread leaves it: the call has ended, by returning or raising, or has only yielded.
    pub fn leaves(&'static self, entered: Entered, _has_ended: bool) {
        drop(entered.range);
    }
}

impl Entered {
    pub const fn with(range: Option<Pushed>) -> Self {
        Self {
            range,
            is_unkept: false,
        }
    }

    /// Of a call of which nothing was kept.
    pub const fn unkept() -> Self {
        Self {
            range: None,
            is_unkept: true,
        }
    }

    pub const fn is_unkept(&self) -> bool {
        self.is_unkept
    }

    /// Gives the range up without ending it: it is another process's.
    pub fn forget(self) {
        if let Some(range) = self.range {
            range.forget();
        }
    }
}
