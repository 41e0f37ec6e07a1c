//! Collects the ranges, calls and GPU work of a trace, and finds its iterations.

use std::cmp::Reverse;
use std::collections::HashMap;

use tllmprof_calls::CallPurpose;
use tllmprof_config::Step;

use crate::auto::TraceCalls;
use crate::batch::Family;
use crate::ranges::{self, Candidates, Chosen};
use crate::{
    Call, FoundIterations, Iteration, Method, Moment, NotFound, Range, RangeSource, Trace, Work,
    python, range_name,
};

/// Maximum number of stored calls that match the user's rule for iterations (`--step`). Further calls are only counted.
const MAX_COUNTED: usize = 1 << 20;
/// Maximum number of different range names to count. If no range matches the rule for iterations (`--step`), the error
/// message lists the most frequent of these names.
const MAX_NAMES: usize = 1 << 12;
/// Maximum number of range names that the error message lists if no range matches the rule for iterations (`--step`).
const SHOWN: usize = 3;

/// Text in place of the rule for iterations in the report, if no iterations were found.
const WHOLE: &str = "whole trace";

/// Finds the iterations of one process of a trace.
#[derive(Debug, Default)]
pub struct Finder {
    asked: Option<Step>,
    candidates: Candidates,
    calls: TraceCalls,
    /// Calls that the user's rule names: start, end and thread of each.
    counted: Vec<(Moment, Moment, u64)>,
    /// Number of ranges by name. Details by which calls of one PyTorch operator differ, such as `, seq = 7`, are
    /// removed from the names.
    names: HashMap<String, u64>,
    /// Number of calls that launched GPU work, by thread.
    launches: HashMap<u64, u64>,
    left_out: u64,
}

impl Finder {
    /// Creates a finder that has received no ranges, calls or work yet. `asked` is the rule for iterations that the
    /// user typed, if there is one.
    #[must_use]
    pub fn new(asked: Option<Step>) -> Self {
        Self {
            asked,
            ..Self::default()
        }
    }

    /// Returns true if a range may be an iteration. Code that reads a trace may skip all ranges for which this function
    /// returns false, and may cache the answer by the range's name.
    #[must_use]
    pub fn is_candidate(&self, source: RangeSource, name: &str, domain: Option<&str>) -> bool {
        self.is_asked(source, name, domain) || Family::from_name(name).is_some()
    }

    fn is_asked(&self, source: RangeSource, name: &str, domain: Option<&str>) -> bool {
        match &self.asked {
            Some(Step::Nvtx {
                name: regex,
                domain: wanted,
                ..
            }) => {
                let is_there = wanted
                    .as_deref()
                    .is_none_or(|wanted| domain == Some(wanted));
                source != RangeSource::Python && is_there && regex.is_match(name.as_bytes())
            }
            Some(Step::Python { function, .. }) => python::is_call_of(function, source, name),
            _ => false,
        }
    }

    /// Adds a range. Ranges may come in any order.
    pub fn range(&mut self, range: &Range<'_>) {
        let is_asked = self.is_asked(range.source, range.name, range.domain);
        self.candidates.add(range, is_asked);
        if !is_asked {
            self.other_ranges(range.name, 1);
        }
    }

    /// Counts `count` ranges with the name `name` that do not match the user's rule (`--step`). If no range matches the
    /// rule, the error message lists the most frequent names.
    pub fn other_ranges(&mut self, name: &str, count: u64) {
        let is_by_name = matches!(self.asked, Some(Step::Nvtx { .. } | Step::Python { .. }));
        let name = range_name(name);
        if is_by_name && (self.names.len() < MAX_NAMES || self.names.contains_key(name)) {
            *self.names.entry(name.to_owned()).or_default() += count;
        }
    }

    /// Returns true if calls and GPU work are needed to find iterations. All ranges must be added
    /// before this call.
    #[must_use]
    pub fn needs_calls(&self) -> bool {
        match &self.asked {
            Some(Step::Nvtx { .. } | Step::Python { .. }) => false,
            Some(_) => true,
            None => !self.candidates.has_known(),
        }
    }

    /// Adds a call. Calls may come in any order.
    pub fn call(&mut self, call: &Call<'_>) {
        let Some(known) = self.calls.meaning(call.name) else {
            return;
        };
        let (_, meaning) = known;
        if meaning.kind.launches() {
            *self.launches.entry(call.thread).or_default() += 1;
        }
        match &self.asked {
            Some(Step::Call { call: wanted, .. }) if meaning.call != Some(*wanted) => (),
            Some(Step::Call { .. }) if self.counted.len() < MAX_COUNTED => {
                self.counted.push((call.start, call.end, call.thread));
            }
            Some(Step::Call { .. }) => self.left_out += 1,
            _ => self.calls.add(call, known),
        }
    }

    /// Adds a piece of GPU work. Pieces may come in any order; of the work of one graph launch, one
    /// piece is enough.
    pub fn work(&mut self, correlation: u32, work: Work) {
        if !matches!(self.asked, Some(Step::Call { .. })) {
            self.calls.add_work(correlation, work);
        }
    }

    /// Finds the iterations. `kernel_name` returns the name of a kernel; its argument is the number
    /// in [`Work::Kernel`].
    ///
    /// # Errors
    /// Returns an error if the rule that the user typed names a range, a Python function or a CUDA call, and finds no
    /// iterations.
    pub fn finish(
        mut self,
        trace: &Trace,
        kernel_name: &dyn Fn(u32) -> String,
    ) -> Result<FoundIterations, NotFound> {
        let left_out = self.left_out + self.candidates.left_out + self.calls.left_out;
        let mut found = match self.asked.take() {
            Some(step @ (Step::Nvtx { every, .. } | Step::Python { every, .. })) => {
                self.by_ranges(&step, every, trace)?
            }
            Some(step @ Step::Call { call, every, .. }) => {
                self.by_calls(&step, call.kind(), every)?
            }
            Some(Step::AutoInner) => self.learned(true, trace, kernel_name),
            Some(Step::Auto | Step::Symbol { .. }) => self.learned(false, trace, kernel_name),
            None => match self.known(trace) {
                Some(found) => found,
                None => self.learned(false, trace, kernel_name),
            },
        };
        self.candidates.add_batches(&mut found.iterations);
        found.left_out = left_out;
        Ok(found)
    }

    fn by_ranges(
        &mut self,
        step: &Step,
        every: u64,
        trace: &Trace,
    ) -> Result<FoundIterations, NotFound> {
        let chosen = ranges::choose(std::mem::take(&mut self.candidates.asked));
        let iterations = ranges::iterations(&chosen.ranges, every, trace);
        let count = chosen.ranges.len();
        if iterations.is_empty() {
            let why = match (1..every).contains(&(count as u64)) {
                true => format!(
                    "the trace has {count} of these ranges (wanted: {every} for each iteration)"
                ),
                false => format!("no range of the trace matches{}", self.names()),
            };
            return Err(not_found(step, why));
        }
        Ok(FoundIterations {
            method: Method::Asked,
            rule: step.to_string(),
            why: overlapping(&chosen).unwrap_or_default(),
            iterations,
            is_last_open: ranges::is_last_open(count, every),
            left_out: 0,
        })
    }

    /// Returns the most frequent ranges of the trace in words, for the message that no range matches the rule for
    /// iterations (`--step`).
    fn names(&self) -> String {
        let mut names: Vec<_> = self.names.iter().collect();
        names.sort_by_key(|(name, count)| (Reverse(**count), *name));
        if names.is_empty() {
            return " (it has no other ranges)".to_owned();
        }
        let shown = names.iter().take(SHOWN);
        let shown: Vec<_> = shown
            .map(|(name, count)| format!("{name} ({count} times)"))
            .collect();
        format!("; the most frequent ranges are {}", shown.join(", "))
    }

    fn by_calls(
        &mut self,
        step: &Step,
        kind: CallPurpose,
        every: u64,
    ) -> Result<FoundIterations, NotFound> {
        let counted = &mut self.counted;
        counted.sort_unstable_by_key(|(start, end, _)| (*start, Reverse(*end)));
        // A runtime function calls the driver function of the same purpose, so both would be
        // counted. Keep only the outermost of nested calls.
        let mut until: HashMap<u64, Moment> = HashMap::new();
        counted.retain(|(start, end, thread)| {
            let until = until.entry(*thread).or_insert(Moment::MIN);
            // A call without a duration that begins where the previous call ends is not within that call.
            let is_outer = *start >= *until || *end > *until;
            *until = (*until).max(*end);
            is_outer
        });
        let moment = |(start, end, _): &(Moment, Moment, u64)| match kind.waits() {
            true => *end,
            false => *start,
        };
        counted.sort_by_key(moment);
        let every = usize::try_from(every).unwrap_or(usize::MAX).max(1);
        let begins: Vec<_> = counted.iter().step_by(every).collect();
        let pairs = begins.windows(2);
        let iterations = (0..).zip(pairs).map(|(number, two)| Iteration {
            number,
            thread: two[0].2,
            start: moment(two[0]),
            end: moment(two[1]),
            batch: None,
        });
        let iterations: Vec<_> = iterations.filter(|one| one.start < one.end).collect();
        if iterations.is_empty() {
            let count = counted.len();
            let why = format!(
                "the trace has {count} of these calls (wanted: one for each iteration, and one after the last)"
            );
            return Err(not_found(step, why));
        }
        Ok(FoundIterations {
            method: Method::Asked,
            rule: step.to_string(),
            why: String::new(),
            iterations,
            is_last_open: false,
            left_out: 0,
        })
    }

    fn known(&mut self, trace: &Trace) -> Option<FoundIterations> {
        let (family, known) = self.candidates.take_known()?;
        let chosen = ranges::choose(known);
        let iterations = ranges::iterations(&chosen.ranges, 1, trace);
        let mut why = family.words().to_owned();
        if let Some(others) = overlapping(&chosen) {
            why = format!("{why}; {others}");
        }
        (!iterations.is_empty()).then(|| FoundIterations {
            method: Method::Known,
            rule: family.rule().to_owned(),
            why,
            iterations,
            is_last_open: true,
            left_out: 0,
        })
    }

    /// Returns the iterations that the learner of `tllmprof_learn` finds by a repeating pattern of calls. If the
    /// learner finds none, returns the whole trace as one iteration.
    fn learned(
        &mut self,
        inner: bool,
        trace: &Trace,
        kernel_name: &dyn Fn(u32) -> String,
    ) -> FoundIterations {
        let calls = std::mem::take(&mut self.calls);
        let rule = if inner { "auto:inner" } else { "auto" };
        match calls.learn(inner, kernel_name) {
            Some(learned) => FoundIterations {
                method: Method::Learned,
                rule: rule.to_owned(),
                why: learned.words,
                iterations: learned.iterations,
                is_last_open: false,
                left_out: 0,
            },
            None => self.whole(trace),
        }
    }

    fn whole(&self, trace: &Trace) -> FoundIterations {
        let launches = self.launches.iter();
        let most = launches.max_by_key(|(thread, count)| (**count, Reverse(**thread)));
        let thread = most.map(|(thread, _)| *thread).or(trace.main_thread);
        let (calls, call) = match self.launches.is_empty() {
            true => ("no launches", ""),
            false => (
                "neither its launches nor its waits recur often enough",
                ", --step CALL a call, such as cudaStreamSynchronize",
            ),
        };
        let ranges = match self.candidates.most_frequent() {
            None => "it has none of the known ranges".to_owned(),
            Some(family) => format!(
                "{} are not used (--step {} counts them)",
                family.words(),
                family.rule()
            ),
        };
        let one = Some(Iteration {
            number: 0,
            thread: thread.unwrap_or(0),
            start: trace.span.start,
            end: trace.span.end,
            batch: None,
        });
        FoundIterations {
            method: Method::Whole,
            rule: WHOLE.to_owned(),
            why: format!(
                "no iteration was found in it: {ranges}, and {calls}; --step nvtx:REGEX names a range{call}"
            ),
            iterations: Vec::from_iter(one.filter(|one| one.start < one.end)),
            is_last_open: false,
            left_out: 0,
        }
    }
}

fn not_found(step: &Step, why: String) -> NotFound {
    NotFound {
        rule: step.to_string(),
        why,
    }
}

/// Returns a note for the report with the number of ranges that were left out because they belong to other threads than
/// the chosen ranges. Returns `None` if no range was left out for this reason.
fn overlapping(chosen: &Chosen) -> Option<String> {
    let Chosen { others, .. } = chosen;
    (*others > 0)
        .then(|| format!("{others} such ranges of other threads overlap them and do not count"))
}
