//! What is known of a code object that is marked.

use super::function::{Entered, Function};
use crate::object::{Held, Object, Python};
use crate::version::Cells;

/// What follows the calls of a code object.
#[derive(Clone, Copy)]
pub enum Watch {
    Function(&'static Function),
    Calls(&'static dyn Calls),
}

/// Follows the calls of code objects, in the thread that calls, which has the GIL and no
/// exception set.
pub trait Calls: Sync {
    /// A call begins with `first` as its first positional argument; or a generator or coroutine that
    /// has yielded goes on, and there is none.
    fn enters(&self, py: Python<'_>, first: Option<&Object<'_>>, goes_on: bool) -> Entered;

    /// The call has ended, by returning or raising, or has only yielded.
    fn leaves(&self, py: Python<'_>, entered: Entered, has_ended: bool);

    /// The thread has ended in the midst of a call. There may be no interpreter any more.
    fn abandons(&self, entered: Entered) {
        drop(entered);
    }
}

/// Where a call's first argument is found.
pub enum First {
    /// Nowhere, or nobody wants it.
    Nowhere,
    /// This variable of the frame.
    Local(usize),
    /// In the cell that is this variable of the frame.
    Cell(usize),
    /// The variable with this name.
    Named(Held),
}

/// What is known of a marked code object. Never freed.
pub struct Mark {
    code: Held,
    pub watch: Watch,
    /// It makes generators, coroutines or asynchronous generators.
    pub yields: bool,
    pub first: First,
    /// The number of its interpreter.
    pub interpreter: i64,
}

impl Mark {
    /// Of no code object, for a test without an interpreter.
    #[cfg(test)]
    pub const fn made(watch: Watch) -> Self {
        Self {
            code: Held::none(),
            watch,
            yields: false,
            first: First::Nowhere,
            interpreter: 0,
        }
    }

    /// What `code` shall mean. None if that is no code object.
    pub fn of(py: Python<'_>, code: &Object<'_>, watch: Watch) -> Option<Self> {
        /// `CO_GENERATOR`, `CO_COROUTINE`, `CO_ASYNC_GENERATOR`.
        const YIELDS: i64 = 0x20 | 0x80 | 0x200;
        if !code.is_code() {
            return None;
        }
        let flags = code.attr(c"co_flags")?.as_int()?;
        let yields = flags & YIELDS != 0;
        let first = match watch {
            Watch::Function(_) => First::Nowhere,
            Watch::Calls(_) => First::of(py, code, yields).unwrap_or(First::Nowhere),
        };
        Some(Self {
            code: Held::new(code.clone()),
            watch,
            yields,
            first,
            interpreter: py.interpreter(),
        })
    }

    /// Where its code object lies.
    pub fn code(&self) -> usize {
        self.code.addr()
    }

    pub fn enters<'py>(
        &self,
        py: Python<'py>,
        goes_on: bool,
        first: impl FnOnce(Python<'py>) -> Option<Object<'py>>,
    ) -> Entered {
        match self.watch {
            Watch::Function(function) => function.enters(py, goes_on),
            Watch::Calls(calls) => py.quietly(|py| {
                let first = first(py);
                calls.enters(py, first.as_ref(), goes_on)
            }),
        }
    }

    /// As [`Mark::enters`], where nothing can be kept of the call.
    pub fn enters_unkept(&self, py: Python<'_>, goes_on: bool) {
        if let Watch::Function(function) = self.watch {
            function.enters_unkept(py, goes_on);
        }
    }

    pub fn leaves(&self, py: Python<'_>, entered: Entered, has_ended: bool) {
        match self.watch {
            Watch::Function(function) => function.leaves(py, entered, has_ended),
            Watch::Calls(calls) if !entered.is_unkept() => {
                py.quietly(|py| calls.leaves(py, entered, has_ended));
            }
            Watch::Calls(_) => {}
        }
    }

    /// The thread has ended in the midst of a call.
    pub fn abandons(&self, entered: Entered) {
        match self.watch {
            Watch::Function(function) => function.abandons(entered),
            Watch::Calls(calls) => calls.abandons(entered),
        }
    }

    /// The function whose calls it follows, if it is one that was asked for by its name.
    pub const fn function(&self) -> Option<&'static Function> {
        match self.watch {
            Watch::Function(function) => Some(function),
            Watch::Calls(_) => None,
        }
    }

    /// Whether it means the same.
    pub fn is_alike(&self, other: &Self) -> bool {
        match (self.watch, other.watch) {
            (Watch::Function(one), Watch::Function(two)) => core::ptr::eq(one, two),
            (Watch::Calls(one), Watch::Calls(two)) => core::ptr::addr_eq(one, two),
            _ => false,
        }
    }

    /// Gives its references up. It is in no table any more, and the thread is in its interpreter.
    pub fn release(&self, py: Python<'_>) {
        drop(self.code.take(py));
        if let First::Named(name) = &self.first {
            drop(name.take(py));
        }
    }
}

impl First {
    fn of(py: Python<'_>, code: &Object<'_>, yields: bool) -> Option<Self> {
        if code.attr(c"co_argcount")?.as_int()? == 0 {
            return None;
        }
        let name = code.attr(c"co_varnames")?.elements().next()?;
        let place = py.api.version.cells();
        if place == Cells::ByName {
            return Some(Self::Named(Held::new(name)));
        }
        let text = name.as_text()?;
        let cells = code.attr(c"co_cellvars")?;
        let cell = cells
            .elements()
            .position(|cell| cell.as_text() == Some(text));
        let locals = usize::try_from(code.attr(c"co_nlocals")?.as_int()?).ok()?;
        Some(Self::at(place, cell, locals, yields))
    }

    /// Where it lies in a frame: `cell` is its place among the cells, if it is one, and there are
    /// `locals` other variables.
    const fn at(cells: Cells, cell: Option<usize>, locals: usize, yields: bool) -> Self {
        match (cells, cell) {
            (Cells::BehindLocals, Some(cell)) => Self::Cell(locals + cell),
            (Cells::AmongLocals, Some(_)) if yields => Self::Cell(0),
            _ => Self::Local(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tllmprof_config::PyFunction;

    #[test]
    fn a_first_argument_that_is_a_cell_lies_where_the_version_has_cells() {
        let at = |cells, cell, yields| match First::at(cells, cell, 4, yields) {
            First::Local(index) => ("local", index),
            First::Cell(index) => ("cell", index),
            First::Nowhere | First::Named(_) => unreachable!(),
        };
        assert_eq!(at(Cells::BehindLocals, None, false), ("local", 0));
        assert_eq!(at(Cells::BehindLocals, Some(2), true), ("cell", 6));
        assert_eq!(at(Cells::AmongLocals, None, true), ("local", 0));
        assert_eq!(at(Cells::AmongLocals, Some(1), false), ("local", 0));
        assert_eq!(at(Cells::AmongLocals, Some(1), true), ("cell", 0));
    }

    #[test]
    fn marks_are_alike_if_the_same_follows_them() {
        let function = |name: &str| -> &'static Function {
            let asked = PyFunction::parse(name).unwrap();
            Box::leak(Box::new(Function::new(asked)))
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
