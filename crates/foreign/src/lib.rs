//! Decides what an iteration is in a trace that another profiler made: nsys, or the PyTorch profiler.
//!
//! A reader of such a trace gives a [`Finder`] what the trace holds, in any order: named ranges, and, if the ranges are not
//! enough ([`Finder::needs_calls`]), calls and GPU work. [`Finder::finish`] gives the iterations and says how they were
//! found:
//!
//! 1. by the rule that the user typed (`--step`);
//! 2. by known ranges: `ProfilerStep#N`, and the steps of vLLM and SGLang, whose names have batch facts in them;
//! 3. by the learner that the preloaded library runs, on launches and waits;
//! 4. else the whole trace is one iteration.
//!
//! Iterations that tllmprof itself counted come before all of these; a reader that finds them needs no [`Finder`].
//!
//! An iteration lasts until the next one begins, as in a record. This crate holds data and reads no format.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod auto;
mod batch;
mod calls;
mod finder;
mod python;
mod ranges;
mod rows;

use std::fmt;
use std::path::Path;

use tllmprof_config::Step;
use tllmprof_record::{Batch, CopyKind};

pub use batch::is_step_range;
pub use finder::Finder;
pub use rows::{CallRow, CallRows};

/// Nanoseconds on the trace's clock.
pub type Moment = i64;

/// The recorder of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The program, through NVTX.
    Nvtx,
    /// The program, through `torch.profiler.record_function` or the profiler's schedule.
    Annotation,
    /// A profiler that follows Python's calls.
    Python,
}

/// A named range of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range<'a> {
    /// The thread that opened it. Any number that identifies the thread in the trace.
    pub thread: u64,
    /// The recorder.
    pub source: Source,
    /// Its name.
    pub name: &'a str,
    /// Its NVTX domain; `None`: the default one.
    pub domain: Option<&'a str>,
    /// The moment of its begin.
    pub start: Moment,
    /// The moment of its end.
    pub end: Moment,
}

/// A call of a function of CUDA's runtime or driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call<'a> {
    /// The thread that made it.
    pub thread: u64,
    /// The function's name. A suffix for its version, such as `_v2`, may be missing.
    pub name: &'a str,
    /// The number that the call shares with the GPU work that it launched; 0: none.
    pub correlation: u32,
    /// The moment of its begin.
    pub start: Moment,
    /// The moment of its return.
    pub end: Moment,
}

/// GPU work that calls launched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// A kernel, by a number of its name.
    Kernel(u32),
    /// A copy.
    Copy(CopyKind),
}

/// A span of time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Span {
    /// The moment of its begin.
    pub start: Moment,
    /// The moment of its end.
    pub end: Moment,
}

/// Facts about the trace of a process besides its events.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Trace {
    /// From its first CUDA call or GPU work to the end of the last.
    pub span: Span,
    /// The thread that the report shows if no thread launches anything.
    pub main_thread: Option<u64>,
}

/// An iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Iteration {
    /// Its number: the one in its name if all names have increasing numbers, else its place.
    pub number: u64,
    /// The thread that made it.
    pub thread: u64,
    /// The moment of its begin.
    pub start: Moment,
    /// The begin of the next one; of the last one, its end.
    pub end: Moment,
    /// Its batch, if a range's name has the facts.
    pub batch: Option<Batch>,
}

/// The method that found iterations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// The rule that the user typed.
    Asked,
    /// Ranges whose names are known.
    Known,
    /// The learner, from launches and waits.
    Learned,
    /// They were not: the whole trace is one.
    Whole,
}

/// The iterations of a process.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// The method that found them.
    pub method: Method,
    /// The rule, as `--step` names it; `whole trace` if there is none.
    pub rule: String,
    /// The reason for the rule, in words for the report; empty if the user typed it.
    pub why: String,
    /// In the order of their starts; they do not overlap.
    pub iterations: Vec<Iteration>,
    /// Ranges and calls that there was no room for.
    pub left_out: u64,
}

/// The rule that the user typed finds nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotFound {
    /// The rule.
    pub rule: String,
    /// The reason why it finds nothing.
    pub why: String,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--step {}: {}", self.rule, self.why)
    }
}

impl std::error::Error for NotFound {}

/// A range's name without what distinguishes one call of a PyTorch operator from the next: `aten::add` for
/// `aten::add, seq = 7, op_id = 9`.
#[must_use]
pub fn range_name(name: &str) -> &str {
    let ends = [", seq = ", ", op_id = ", ", sizes = "];
    let end = ends.iter().filter_map(|end| name.find(end)).min();
    &name[..end.unwrap_or(name.len())]
}

/// The rank that a file's name says: `rank_3`, `rank-3`, `rank3`.
#[must_use]
pub fn rank_of_file(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    let mut places = name.match_indices("rank");
    places.find_map(|(at, word)| {
        let is_word = !name[..at].ends_with(|c: char| c.is_ascii_alphabetic());
        let rest = name[at + word.len()..].trim_start_matches(['_', '-', '.', '=']);
        let end = rest.find(|c: char| !c.is_ascii_digit());
        let digits = &rest[..end.unwrap_or(rest.len())];
        digits.parse().ok().filter(|_| is_word)
    })
}

/// Checks that a rule can be used with traces.
///
/// # Errors
/// The rule names native functions, which traces do not hold.
pub fn check(step: &Step) -> Result<(), &'static str> {
    match step {
        Step::Symbol { .. } => Err(
            "traces hold no calls of native functions (wanted: nvtx:REGEX, py:MODULE:QUALNAME, a CUDA call, auto or \
             auto:inner)",
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_say_ranks() {
        let rank = |name| rank_of_file(Path::new(name));
        for three in [
            "rank_3.sqlite",
            "a/x-rank-3_b",
            "worker.Rank3.nsys-rep",
            "local_rank.3",
        ] {
            assert_eq!(rank(three), Some(3), "{three}");
        }
        for none in ["rank/3.sqlite", "frank3", "rank", "ranks_of_3"] {
            assert_eq!(rank(none), None, "{none}");
        }
    }

    #[test]
    fn operators_are_called_alike() {
        assert_eq!(
            range_name("aten::add, seq = 3, op_id = 990346"),
            "aten::add"
        );
        assert_eq!(range_name("aten::to, op_id = 1, sizes = []"), "aten::to");
        assert_eq!(range_name("a, b"), "a, b");
    }
}
