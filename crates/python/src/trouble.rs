//! Problems because of which the library may miss calls of Python functions, or cannot give them ranges. They are noted
//! when they occur, and logged later, one line for each kind of problem.

use core::sync::atomic::{AtomicU32, Ordering};

use once_cell::race::OnceBox;
use tllmprof_platform::lifecycle;
use tllmprof_platform::log;

lifecycle::global! {
    /// The problems that have occurred in this process, one bit for each.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(keep)]
    static MET: AtomicU32 = AtomicU32::new(0);
}

#[derive(Clone, Copy)]
pub(crate) enum Trouble {
    /// The interpreter does not allow a frame evaluator.
    NoEvaluator,
    /// The interpreter's frames do not have the layout that the library expects, so the evaluator
    /// cannot be used.
    OtherFrames,
    /// Another tool's frame evaluator was installed, at least for a while.
    OtherEvaluator,
    /// `sys.monitoring` has no free tool number ([`tools_are_taken`]).
    NoTool,
    /// The program has taken the tool number or its events away from the library.
    LostTool,
    /// Calls were nested so deeply that the library stopped reporting them, because the thread's stack could have
    /// overflowed.
    Deep,
    /// A thread was in more calls at once than the library stores for a thread.
    ManyOpen,
    /// Another tool's frame evaluator replaced the library's for a while, and no call was recorded during that time.
    EvaluatorTaken,
}

lifecycle::global! {
    /// The names of the tools that use the tool numbers of `sys.monitoring`.
    #[fork(keep = "the interpreter is copied as it is")]
    #[restart(keep)]
    static HOLDERS: OnceBox<String> = OnceBox::new();
}

/// Records that `sys.monitoring` has no free tool number, for [`report`]. `holders` names the tools that use the
/// tool numbers.
pub(crate) fn tools_are_taken(holders: &str) {
    HOLDERS.get_or_init(|| Box::new(holders.to_owned()));
    Trouble::NoTool.note();
}

/// Returns true if no tool number was free when one was needed.
pub(crate) fn has_no_tool() -> bool {
    MET.load(Ordering::Relaxed) & Trouble::NoTool.bit() != 0
}

/// Returns true if a problem has occurred that may have hidden calls of functions that were found.
pub(crate) fn hides_calls() -> bool {
    use Trouble::{Deep, EvaluatorTaken, LostTool, NoTool, OtherEvaluator, OtherFrames};
    let hiding = [
        Deep,
        EvaluatorTaken,
        LostTool,
        NoTool,
        OtherEvaluator,
        OtherFrames,
    ];
    let met = MET.load(Ordering::Relaxed);
    hiding.iter().any(|trouble| met & trouble.bit() != 0)
}

impl Trouble {
    const ALL: [Self; 8] = [
        Self::NoEvaluator,
        Self::OtherFrames,
        Self::OtherEvaluator,
        Self::NoTool,
        Self::LostTool,
        Self::Deep,
        Self::ManyOpen,
        Self::EvaluatorTaken,
    ];

    pub(crate) fn note(self) {
        MET.fetch_or(self.bit(), Ordering::Relaxed);
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// Returns the problems whose bits are in `set`.
    fn in_set(set: u32) -> impl Iterator<Item = Self> {
        let is_in = move |it: &Self| set & it.bit() != 0;
        Self::ALL.into_iter().filter(is_in)
    }

    const fn text(self) -> &'static str {
        match self {
            Self::NoEvaluator => {
                "this Python takes no evaluator of frames: its functions are neither marked nor counted"
            }
            Self::OtherFrames => {
                "this Python's frames are not as expected: its functions are neither marked nor counted"
            }
            Self::OtherEvaluator => {
                "another tool evaluated Python's frames when functions were to be marked: they are marked \
                 and counted once it has gone"
            }
            Self::NoTool => {
                "no tool of sys.monitoring was free for tllmprof: calls of Python functions were not seen"
            }
            Self::LostTool => {
                "the program took tllmprof's tool of sys.monitoring or its events away: calls of Python \
                 functions after that may be missing"
            }
            Self::ManyOpen => {
                "more than 256 calls of marked Python functions were open at once on a thread: calls beyond that are \
                 counted and have no range"
            }
            Self::EvaluatorTaken => {
                "another tool evaluated Python's frames for a time, in which no call of a marked function was seen: calls in \
                 that time may be missing"
            }
            Self::Deep => {
                "Python 3.11: calls were nested so deep that half of a thread's stack was used: functions \
                 were neither marked nor counted inside those"
            }
        }
    }
}

/// Logs the problems that have occurred. Allocates nothing.
pub(crate) fn report() {
    for trouble in Trouble::in_set(MET.load(Ordering::Relaxed)) {
        match (trouble, HOLDERS.get()) {
            (Trouble::NoTool, Some(holders)) => log::say!(Warn, "{} ({holders})", trouble.text()),
            _ => log::say!(Warn, "{}", trouble.text()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_trouble_is_reported_apart_from_the_others() {
        assert_eq!(Trouble::in_set(0).count(), 0);
        let set = Trouble::NoTool.bit() | Trouble::Deep.bit();
        let of_set: Vec<_> = Trouble::in_set(set).map(Trouble::text).collect();
        assert_eq!(of_set, [Trouble::NoTool.text(), Trouble::Deep.text()]);
        let all = Trouble::in_set(u32::MAX).map(Trouble::text);
        let all: std::collections::BTreeSet<_> = all.collect();
        assert_eq!(all.len(), Trouble::ALL.len());
    }
}
