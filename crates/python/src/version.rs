//! What differs between the minor versions of CPython, in one table.
//!
//! A version is treated as the newest one that is known until it proves to be different: a new one
//! needs a change here only where it changes one of these. The functions that a version defines are
//! in [`super::api`]; the frames of 3.8 to 3.11, which do not change any more, are in
//! [`super::functions`].

use core::fmt;

/// A version of CPython 3 from 3.8 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Version {
    minor: u32,
}

/// Which function type evaluates a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evaluation {
    /// Without the thread's state.
    In3_8,
    /// With the thread's state; a call from Python to Python takes the C stack.
    In3_9,
    /// As in 3.9; a call from Python to Python takes the C stack only where an evaluator is set.
    In3_11,
}

/// Where the frame of a call has its cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cells {
    /// Behind the locals.
    BehindLocals,
    /// Where the arguments are. The call makes them itself; that of a generator function has made
    /// them before the generator runs.
    AmongLocals,
    /// A variable is asked for by its name.
    ByName,
}

impl Version {
    /// Reads what `Py_GetVersion` returns: `3.12.1 (main, …`.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("3.")?;
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let minor = rest[..digits].parse().ok()?;
        (minor >= 8).then_some(Self { minor })
    }

    /// `sys.monitoring` reports calls; before, an evaluator of frames has to see them.
    pub const fn has_monitoring(self) -> bool {
        self.minor >= 12
    }

    /// A code object has its qualified name.
    pub const fn has_qualified_names(self) -> bool {
        self.minor >= 11
    }

    /// The thread state that is current is the calling thread's; before, that of whoever has the GIL.
    pub const fn has_current_state_per_thread(self) -> bool {
        self.minor >= 12
    }

    /// A call may be left for the main thread whenever there is an interpreter: 3.8 raises an exception where it is
    /// about to end, on a thread that may not have the GIL.
    pub const fn takes_pending_calls_to_the_end(self) -> bool {
        self.minor >= 9
    }

    /// A thread that waits for the GIL while the interpreter ends leaves by `pthread_exit`; later versions keep it for
    /// ever.
    pub const fn ends_waiting_threads(self) -> bool {
        self.minor <= 13
    }

    /// A thread that waits for the GIL looks meanwhile whether the interpreter ends; in 3.8 it looks when it has it.
    pub const fn waits_for_end(self) -> bool {
        self.minor >= 9
    }

    /// A thread that has the GIL of a sub-interpreter is known to have one.
    pub const fn knows_holders_in_sub_interpreters(self) -> bool {
        self.minor >= 12
    }

    /// An interpreter has `gc.callbacks` of its own. Before, all have one list, which 3.9 calls in
    /// the main one alone.
    pub const fn has_gc_callbacks_per_interpreter(self) -> bool {
        self.minor >= 10
    }

    /// What is registered with `atexit` outlives the module.
    pub const fn keeps_atexit_without_module(self) -> bool {
        self.minor >= 10
    }

    /// An interpreter has functions that get and set its evaluator of frames.
    pub const fn has_evaluator_functions(self) -> bool {
        self.minor >= 9
    }

    /// Of a version without `sys.monitoring`.
    pub const fn evaluation(self) -> Evaluation {
        match self.minor {
            ..=8 => Evaluation::In3_8,
            9 | 10 => Evaluation::In3_9,
            11.. => Evaluation::In3_11,
        }
    }

    /// Where a frame has its cells.
    pub const fn cells(self) -> Cells {
        match self.minor {
            ..=10 => Cells::BehindLocals,
            11 => Cells::AmongLocals,
            12.. => Cells::ByName,
        }
    }

    /// The row of a table of all versions from 3.8 on; the last one for a version that is not in it.
    pub fn row<T>(self, rows: &[T; 8]) -> &T {
        &rows[(self.minor as usize - 8).min(rows.len() - 1)]
    }

    /// Which of `layouts` the frames have; None where they are not looked at. In order: 3.8 and 3.9,
    /// 3.10, 3.11.
    pub const fn frames<T>(self, layouts: [&'static T; 3]) -> Option<&'static T> {
        match self.minor {
            8 | 9 => Some(layouts[0]),
            10 => Some(layouts[1]),
            11 => Some(layouts[2]),
            _ => None,
        }
    }
}

/// As `3.12`.
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
