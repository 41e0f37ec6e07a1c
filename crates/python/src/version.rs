//! Facts that differ between the minor versions of CPython. A version that is newer than all versions in this file is
//! treated like the newest of them. So a new version needs a change here only if it changes one of these facts. The
//! functions that a version defines are in [`super::api`]. The layouts of frames in 3.8 to 3.11, which no longer
//! change, are in [`super::functions`].

use core::fmt;

/// A version of CPython 3 from 3.8 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version {
    minor: u32,
}

/// The form of CPython's function that evaluates a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evaluation {
    /// The function that evaluates a frame has no argument for the thread's state.
    In3_8,
    /// The function takes the thread's state. A call from Python to Python uses the C stack.
    In3_9,
    /// The function has the same arguments as in 3.9. A call from Python to Python uses the C stack only if a custom
    /// evaluator is set.
    In3_11,
}

/// The location of cells in a call's frame. A cell holds a variable that a function shares with its nested functions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cells {
    /// The cells come after the locals in the frame.
    BehindLocals,
    /// The cell is stored in place of the argument's variable. In a generator, the cell exists before the generator
    /// first runs. In any other call, the function's own code creates the cell after the call has begun.
    AmongLocals,
    /// The location of the cell is not known, so the variable has to be looked up by its name.
    ByName,
}

impl Version {
    /// Parses the result of `Py_GetVersion`: `3.12.1 (main, …`. Returns `None` unless the version is 3.8 or a later
    /// 3.x.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("3.")?;
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let minor = rest[..digits].parse().ok()?;
        (minor >= 8).then_some(Self { minor })
    }

    /// Returns true if `sys.monitoring` can report calls. Older versions need a frame evaluator for
    /// that.
    pub const fn has_monitoring(self) -> bool {
        self.minor >= 12
    }

    /// Returns true if a code object contains its qualified name.
    pub const fn has_qualified_names(self) -> bool {
        self.minor >= 11
    }

    /// Returns true if each thread has a current thread state of its own. In older versions, the
    /// current state is that of the thread that holds the GIL.
    pub const fn has_current_state_per_thread(self) -> bool {
        self.minor >= 12
    }

    /// Returns true if a pending call for the main thread may be added at any time. In 3.8, a pending call that is
    /// added while the interpreter ends raises an exception on the calling thread, which possibly does not hold the
    /// GIL.
    pub const fn takes_pending_calls_to_the_end(self) -> bool {
        self.minor >= 9
    }

    /// Returns true if a thread that waits for the GIL is ended by `pthread_exit` when the
    /// interpreter ends. Later versions let the thread wait forever.
    pub const fn ends_waiting_threads(self) -> bool {
        self.minor <= 13
    }

    /// Returns true if a thread that waits for the GIL checks during the wait whether the
    /// interpreter ends. In 3.8 the thread checks only after it has the GIL.
    pub const fn waits_for_end(self) -> bool {
        self.minor >= 9
    }

    /// Returns true if the library can recognize that a thread holds the GIL of a sub-interpreter.
    pub const fn knows_holders_in_sub_interpreters(self) -> bool {
        self.minor >= 12
    }

    /// Returns true if each interpreter has its own `gc.callbacks`. In older versions all
    /// interpreters share one list, and 3.9 calls the callbacks in it only in the main interpreter.
    pub const fn has_gc_callbacks_per_interpreter(self) -> bool {
        self.minor >= 10
    }

    /// Returns true if callbacks registered with `atexit` still run after the module `atexit` was freed.
    pub const fn keeps_atexit_without_module(self) -> bool {
        self.minor >= 10
    }

    /// Returns true if CPython has functions to get and set an interpreter's frame evaluator.
    pub const fn has_evaluator_functions(self) -> bool {
        self.minor >= 9
    }

    /// Returns the form of the frame evaluator. Only versions without `sys.monitoring` need it.
    pub const fn evaluation(self) -> Evaluation {
        match self.minor {
            ..=8 => Evaluation::In3_8,
            9 | 10 => Evaluation::In3_9,
            11.. => Evaluation::In3_11,
        }
    }

    /// Returns the location of the cells (variables that nested functions share) in a frame of this
    /// version.
    pub const fn cells(self) -> Cells {
        match self.minor {
            ..=10 => Cells::BehindLocals,
            11 => Cells::AmongLocals,
            12.. => Cells::ByName,
        }
    }

    /// Returns the minor version number, such as 12 for Python 3.12.
    pub const fn minor(self) -> u32 {
        self.minor
    }

    /// Returns the layout of frames, or `None` for versions whose frames are not read. `layouts` has three elements:
    /// the layout of 3.8 and 3.9, the layout of 3.10, and the layout of 3.11.
    pub const fn frames<T>(self, layouts: [&'static T; 3]) -> Option<&'static T> {
        match self.minor {
            8 | 9 => Some(layouts[0]),
            10 => Some(layouts[1]),
            11 => Some(layouts[2]),
            _ => None,
        }
    }
}

/// Formats the version like `3.12`.
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
