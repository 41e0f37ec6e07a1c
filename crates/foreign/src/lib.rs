//! Decides what an iteration is in a trace that another profiler made: nsys, or the PyTorch profiler.
//!
//! A reader of such a trace passes the trace's data to a [`Finder`], in any order: named ranges, and, if the ranges are
//! not enough ([`Finder::needs_calls`]), calls and GPU work. [`Finder::finish`] returns the iterations and the way in
//! which they were found. The first of these ways that applies is used:
//!
//! 1. by the rule that the user typed (`--step`);
//! 2. by known ranges: `ProfilerStep#N`, and the steps of vLLM and SGLang, whose names describe the batch;
//! 3. by the learner that the preloaded library also runs, from launches and waits;
//! 4. otherwise, the whole trace is one iteration.
//!
//! If tllmprof itself counted iterations in the trace, a reader uses these iterations and needs no [`Finder`].
//!
//! An iteration lasts until the next one begins, as in a record. This crate works on data in memory; other crates read
//! the file formats.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod auto;
mod batch;
mod calls;
mod finder;
mod left_out;
mod python;
mod ranges;
mod rows;
mod streams;

use std::fmt;
use std::path::Path;

use tllmprof_config::Step;
use tllmprof_record::{Batch, CopyKind};

pub use batch::is_step_range;
pub use finder::Finder;
pub use left_out::{LONGEST_EVENT_NS, LeftOut, LeftOutReason, check_times};
pub use rows::{CallRow, CallRows};
pub use streams::StreamNumbers;

/// A moment: nanoseconds on the trace's clock.
pub type Moment = i64;

/// The origin of a range in a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeSource {
    /// The program opened the range with NVTX.
    Nvtx,
    /// PyTorch's profiler recorded the range: a `torch.profiler.record_function` of the program, or a step of the
    /// profiler's schedule (`ProfilerStep#N`).
    Annotation,
    /// The range is a call of a Python function, which a profiler recorded.
    Python,
}

/// A named range of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range<'a> {
    /// The thread that opened the range: any number that identifies the thread in the trace.
    pub thread: u64,
    /// The origin of the range: NVTX, PyTorch's profiler or a Python function.
    pub source: RangeSource,
    /// The range's name.
    pub name: &'a str,
    /// The range's NVTX domain; `None` for the default domain.
    pub domain: Option<&'a str>,
    /// The moment at which the range begins.
    pub start: Moment,
    /// The moment at which the range ends.
    pub end: Moment,
}

/// A call of a function of CUDA's runtime or driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call<'a> {
    /// The thread that made the call.
    pub thread: u64,
    /// The function's name. A suffix for its version, such as `_v2`, may be missing.
    pub name: &'a str,
    /// The correlation number, which the call shares with the GPU work that the call launched; 0 if the call
    /// has no such number.
    pub correlation: u32,
    /// The moment at which the call begins.
    pub start: Moment,
    /// The moment at which the call returns.
    pub end: Moment,
}

/// A piece of GPU work that a call launched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// A kernel, given by a number that identifies its name.
    Kernel(u32),
    /// A copy of memory, given by its direction.
    Copy(CopyKind),
}

/// A span of time on the trace's clock.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Span {
    /// The moment at which the span begins.
    pub start: Moment,
    /// The moment at which the span ends.
    pub end: Moment,
}

/// Properties of a process's trace: its time span and its main thread.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Trace {
    /// The time from the start of the first CUDA call or GPU work to the end of the last.
    pub span: Span,
    /// The thread that the report names if no thread launches work; `None` if it is not known.
    pub main_thread: Option<u64>,
}

/// An iteration that was found in a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Iteration {
    /// The iteration's number: the number in its range's name, if the names of all ranges contain a
    /// number and these numbers increase; otherwise the iteration's index.
    pub number: u64,
    /// The thread whose range or call began the iteration.
    pub thread: u64,
    /// The moment at which the iteration begins.
    pub start: Moment,
    /// The moment at which the next iteration begins. The last iteration ends with the trace, or with its own range if
    /// it would otherwise be far longer than the other iterations. If the trace contains further ranges, but too few
    /// for another iteration, the last iteration ends where the first of these ranges begins.
    pub end: Moment,
    /// The iteration's batch, if the name of a range describes it.
    pub batch: Option<Batch>,
}

/// The method by which iterations were found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// The iterations were counted by the ranges, the Python function or the CUDA call that the user's rule (`--step`)
    /// names.
    Asked,
    /// The iterations are ranges with known names, for which [`is_step_range`] returns true.
    Known,
    /// The learner found the iterations by a repeating pattern of launches and waits.
    Learned,
    /// No iterations were found, so the whole trace counts as one iteration.
    Whole,
}

/// The iterations that were found for a process, and how they were found.
#[derive(Clone, PartialEq, Debug)]
pub struct FoundIterations {
    /// The method by which the iterations were found.
    pub method: Method,
    /// The rule for iterations, in the form of `--step`; `whole trace` if there is no rule.
    pub rule: String,
    /// The reason why this rule was used, in words for the report. If the method is [`Method::Asked`], the text only
    /// states how many overlapping ranges of other threads were left out; it is empty if there are none.
    pub why: String,
    /// The iterations in the order of their starts. They do not overlap.
    pub iterations: Vec<Iteration>,
    /// True if the last iteration ends with its own range or with the trace. False if it ends where a further range or
    /// call begins, and for the whole trace.
    pub is_last_open: bool,
    /// Number of ranges and calls that were dropped because a limit was reached.
    pub left_out: u64,
}

/// The error for a rule (`--step`) that names a range, a Python function or a CUDA call, and finds no iterations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotFound {
    /// The rule for iterations that the user typed (`--step`).
    pub rule: String,
    /// The reason why the rule for iterations finds nothing, in words for the user.
    pub why: String,
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--step {}: {}", self.rule, self.why)
    }
}

impl std::error::Error for NotFound {}

/// Returns a range's name without the details by which calls of one PyTorch operator differ: `aten::add` for
/// `aten::add, seq = 7, op_id = 9`.
#[must_use]
pub fn range_name(name: &str) -> &str {
    let ends = [", seq = ", ", op_id = ", ", sizes = "];
    let end = ends.iter().filter_map(|end| name.find(end)).min();
    &name[..end.unwrap_or(name.len())]
}

/// Returns the rank that the name of a file contains, as `rank_3`, `rank-3` or `rank3`. Returns `None` if the name
/// contains no rank.
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

/// Checks that a rule for iterations can be used with traces.
///
/// # Errors
/// Returns an error if the rule names native functions, because traces do not contain their calls.
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
