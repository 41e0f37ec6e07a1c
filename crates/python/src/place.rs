//! Finds the location of a function's argument in the frame of a call.

use core::ffi::CStr;

use crate::object::{Held, Object, Python};
use crate::version::Cells;

/// The location of an argument in the frame of a call.
pub(crate) enum Place {
    /// The argument is in the frame's variable with this index.
    Local(usize),
    /// The argument is in a cell (an object for a variable that nested functions share). The frame's variable with this
    /// index refers to the cell.
    Cell(usize),
    /// The argument has to be looked up by this name, a Python str, among the frame's variables.
    Named(Held),
}

impl Place {
    /// Returns the location of the argument `name` in calls of a code object, or of the first
    /// positional argument if `name` is `None`. `yields` is true if calls create generators or
    /// coroutines.
    pub(crate) fn find(
        py: Python<'_>,
        code: &Object<'_>,
        yields: bool,
        name: Option<&str>,
    ) -> Option<Self> {
        let count = |name| count(code, name);
        let arguments = match name {
            Some(_) => all_arguments(code)?,
            None => count(c"co_argcount")?,
        };
        let names = code.attr(c"co_varnames")?;
        let mut names = names.elements().take(arguments).enumerate();
        let (index, found) =
            names.find(|(_, found)| name.is_none_or(|name| found.as_text() == Some(name)))?;
        let place = py.api.version.cells();
        if place == Cells::ByName {
            return Some(Self::Named(Held::new(found)));
        }
        let text = found.as_text()?;
        let cells = code.attr(c"co_cellvars")?;
        let cell = cells
            .elements()
            .position(|cell| cell.as_text() == Some(text));
        Some(Self::at(place, index, cell, count(c"co_nlocals")?, yields))
    }

    /// Returns the names of a code object's arguments, without `*args` and `**kwargs`.
    pub(crate) fn names(code: &Object<'_>) -> Vec<String> {
        let all = || Some((code.attr(c"co_varnames")?, all_arguments(code)?));
        all().map_or_else(Vec::new, |(names, arguments)| {
            let names = names.elements().take(arguments);
            names
                .filter_map(|name| Some(name.as_text()?.to_owned()))
                .collect()
        })
    }

    /// Returns the location of the argument with this index. `cells` is the location of cells in frames of the running
    /// Python version. `cell` is the argument's index among the cells, or `None` if the argument is not in a cell.
    /// `locals` is the code object's number of local variables (`co_nlocals`).
    const fn at(
        cells: Cells,
        index: usize,
        cell: Option<usize>,
        locals: usize,
        yields: bool,
    ) -> Self {
        match (cells, cell) {
            (Cells::BehindLocals, Some(cell)) => Self::Cell(locals + cell),
            (Cells::AmongLocals, Some(_)) if yields => Self::Cell(index),
            _ => Self::Local(index),
        }
    }

    /// Releases the Python reference of the location. The calling thread must be in the reference's
    /// interpreter.
    pub(crate) fn release(&self, py: Python<'_>) {
        if let Self::Named(name) = self {
            drop(name.take(py));
        }
    }
}

fn count(code: &Object<'_>, name: &CStr) -> Option<usize> {
    usize::try_from(code.attr(name)?.as_int()?).ok()
}

/// Returns the number of a code object's arguments, not counting `*args` and `**kwargs`.
fn all_arguments(code: &Object<'_>) -> Option<usize> {
    Some(count(code, c"co_argcount")? + count(code, c"co_kwonlyargcount")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_that_is_a_cell_lies_where_the_version_has_cells() {
        let at = |cells, index, cell, yields| match Place::at(cells, index, cell, 4, yields) {
            Place::Local(index) => ("local", index),
            Place::Cell(index) => ("cell", index),
            Place::Named(_) => unreachable!(),
        };
        assert_eq!(at(Cells::BehindLocals, 0, None, false), ("local", 0));
        assert_eq!(at(Cells::BehindLocals, 1, None, false), ("local", 1));
        assert_eq!(at(Cells::BehindLocals, 0, Some(2), true), ("cell", 6));
        assert_eq!(at(Cells::AmongLocals, 0, None, true), ("local", 0));
        assert_eq!(at(Cells::AmongLocals, 0, Some(1), false), ("local", 0));
        assert_eq!(at(Cells::AmongLocals, 2, Some(1), true), ("cell", 2));
    }
}
