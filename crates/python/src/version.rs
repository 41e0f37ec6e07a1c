//! The differences between the minor versions of CPython, in one table.
//!
//! A version is treated as the newest known one until it proves to be different: a new one needs a change
//! here only if it changes one of these facts. The functions that a version defines are in [`super::api`].
//! The frames of 3.8 to 3.11, which no longer change, are in [`super::functions`].

use core::fmt;

/// A version of CPython 3 from 3.8 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version {
    minor: u32,
}

/// The type of the function that evaluates a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evaluation {
    /// The evaluator has no argument for the thread's state.
    In3_8,
    /// The evaluator gets the thread's state; a call from Python to Python uses the C stack.
    In3_9,
    /// The evaluator is the same as in 3.9, but a call from Python to Python uses the C stack only if an evaluator is
    /// set.
    In3_11,
}

/// The location of the cells in a call's frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cells {
    /// The cells come after the locals.
    BehindLocals,
    /// In the arguments' own variables. The call makes them itself; that of a generator function has made
    /// them before the generator runs.
    AmongLocals,
    /// A variable is looked up by its name.
    ByName,
}

impl Version {
    /// Parses the result of `Py_GetVersion`: `3.12.1 (main, …`.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("3.")?;
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let minor = rest[..digits].parse().ok()?;
        (minor >= 8).then_some(Self { minor })
    }

    /// Returns true if `sys.monitoring` reports calls; before that, a frame evaluator has to see them.
    pub const fn has_monitoring(self) -> bool {
        self.minor >= 12
    }

    /// Returns true if a code object has its qualified name.
    pub const fn has_qualified_names(self) -> bool {
        self.minor >= 11
    }

    /// Returns true if the current thread state is the calling thread's; before that, it is that of the
    /// thread with the GIL.
    pub const fn has_current_state_per_thread(self) -> bool {
        self.minor >= 12
    }

    /// Returns true if a pending call for the main thread is safe whenever there is an interpreter. While it
    /// ends, 3.8 raises an exception, on a thread that may not have the GIL.
    pub const fn takes_pending_calls_to_the_end(self) -> bool {
        self.minor >= 9
    }

    /// Returns true if a thread that waits for the GIL while the interpreter ends is ended by `pthread_exit`;
    /// later versions keep it waiting forever.
    pub const fn ends_waiting_threads(self) -> bool {
        self.minor <= 13
    }

    /// Returns true if a thread that waits for the GIL checks during the wait whether the interpreter ends;
    /// in 3.8 it checks once it has the GIL.
    pub const fn waits_for_end(self) -> bool {
        self.minor >= 9
    }

    /// Returns true if a thread that has the GIL of a sub-interpreter can be recognized.
    pub const fn knows_holders_in_sub_interpreters(self) -> bool {
        self.minor >= 12
    }

    /// Returns true if each interpreter has its own `gc.callbacks`. Before that, all share one list, which
    /// 3.9 calls only in the main one.
    pub const fn has_gc_callbacks_per_interpreter(self) -> bool {
        self.minor >= 10
    }

    /// Returns true if callbacks that are registered with `atexit` are kept without the module.
    pub const fn keeps_atexit_without_module(self) -> bool {
        self.minor >= 10
    }

    /// Returns true if an interpreter has functions to get and set its frame evaluator.
    pub const fn has_evaluator_functions(self) -> bool {
        self.minor >= 9
    }

    /// Returns the evaluator's type, in a version without `sys.monitoring`.
    pub const fn evaluation(self) -> Evaluation {
        match self.minor {
            ..=8 => Evaluation::In3_8,
            9 | 10 => Evaluation::In3_9,
            11.. => Evaluation::In3_11,
        }
    }

    /// Returns the location of a frame's cells.
    pub const fn cells(self) -> Cells {
        match self.minor {
            ..=10 => Cells::BehindLocals,
            11 => Cells::AmongLocals,
            12.. => Cells::ByName,
        }
    }

    /// Returns the second number of the version.
    pub const fn minor(self) -> u32 {
        self.minor
    }

    /// Returns the layout of frames; `None` if they are not read. `layouts` are those of 3.8 and 3.9, of
    /// 3.10, and of 3.11.
    pub const fn frames<T>(self, layouts: [&'static T; 3]) -> Option<&'static T> {
        match self.minor {
            8 | 9 => Some(layouts[0]),
            10 => Some(layouts[1]),
            11 => Some(layouts[2]),
            _ => None,
        }
    }
}

/// Formats it like `3.12`.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "3.{}", self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed() {
        let minor = |text| Version::parse(text).map(|version| version.minor);
        assert_eq!(minor("3.12.1 (main, Dec  8 2023) [GCC]"), Some(12));
        assert_eq!(minor("3.8.20+ (default)"), Some(8));
        assert_eq!(minor("3.16.0a1 (main)"), Some(16));
        assert_eq!(minor("3.7.9 (default)"), None);
        assert_eq!(minor("2.7.18 (default)"), None);
        assert_eq!(minor("3."), None);
        assert_eq!(minor("3.x.1"), None);
    }

    #[test]
    fn an_unknown_version_is_like_the_newest() {
        let new = Version { minor: 16 };
        assert!(new.has_monitoring() && new.has_current_state_per_thread());
        assert!(new.has_gc_callbacks_per_interpreter() && new.keeps_atexit_without_module());
        assert_eq!(new.cells(), Cells::ByName);
        assert_eq!(new.frames([&0, &1, &2]), None);
        assert_eq!(new.to_string(), "3.16");
    }

    #[test]
    fn old_versions_have_their_rows() {
        let of = |minor| {
            let version = Version { minor };
            let frames = version.frames([&0, &1, &2]).copied();
            (version.evaluation(), version.cells(), frames)
        };
        assert_eq!(of(8), (Evaluation::In3_8, Cells::BehindLocals, Some(0)));
        assert_eq!(of(9), (Evaluation::In3_9, Cells::BehindLocals, Some(0)));
        assert_eq!(of(10), (Evaluation::In3_9, Cells::BehindLocals, Some(1)));
        assert_eq!(of(11), (Evaluation::In3_11, Cells::AmongLocals, Some(2)));
    }
}
